"""Sparse MLA decode over two paged FP8 caches: a split-K kernel on tensor cores, and the kernel that combines its partial results.

A token is 512 dimensions: seven groups of 64 e4m3 values with one UE8M0 scale each, and a group of 64 bf16 values (RoPE). Keys and values are the
same tensor. Numbers below are of an H200, with 128 + 512 tokens a row, from Nsight Compute and from replayed CUDA graphs.

**Tiles.** A tile of tokens is four two-dimensional tiles: 256 + 128 + 64 e4m3 values and the 64 bf16 values. Their widths are powers of two, so
nothing is padded and nothing is merged. Each is dequantised in registers (dequantise.py), put into shared memory once, in the swizzled layout that
``ldmatrix`` reads without bank conflicts, and used for QK and, transposed by ``ldmatrix``, for PV. The obvious form, one product with a leading
axis of eight groups, has no such layout: its operands were loaded in 13.7-way conflicts, and 8 heads of 64 rows took 84 us where these tiles took
31 (both with the same combine, 10 of them). Merging the four into one tile of 512 needs a layout conversion, and 103 us for 64 heads of 64 rows
instead of 58. What conflicts remain are in the 128-bit stores: 8.4-way, of which 4 are the width's.

**Orientation.** ``TRANS`` computes tokens x heads and dimensions x heads. Heads are then N of ``mma.sync``, of which 8 suffice: a rank with 8 heads
multiplies no padding. Otherwise heads are M, 16 or more.

**Prefetch.** While a tile is multiplied, the bytes of the next one and the indices of the one after are on their way in registers, so a split pays
the chain length -> index -> gather once. e4m3 values travel as words of four: carried by a loop as bytes they would take a register each. With
``EARLY`` they set out before this tile's words are dequantised and not after it: a quarter of a tile sooner, but both tiles' words are then held at
once, and moved in every round (8 heads on sm_90: 721 instructions a tile instead of 672, and 234 registers instead of 205).

The tokens of the sliding-window cache and of the compressed cache are one list of tiles; each split takes a contiguous share of the tiles that the
lengths on the device make non-empty. Partial results are normalised, and bf16: they are averaged with weights that sum to one, so their rounding is
no larger than that of the result (relative error 2.4e-3 instead of 2.0e-3, of which 1.7e-3 is the result's own bf16).

Both kernels are programmatic dependent launches: the combine is on its way to the multiprocessors before the last split ends.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..keys import settle
from .dequantise import dequantised

HEAD_DIM = tl.constexpr(512)
TOKEN_BYTES = tl.constexpr(576)
ROPE_BYTE = tl.constexpr(448)
SCALE_BYTES = tl.constexpr(8)

# The tiles of a token: where each starts, which is also its first byte.
A, A_WIDTH = tl.constexpr(0), tl.constexpr(256)
B, B_WIDTH = tl.constexpr(256), tl.constexpr(128)
C, C_WIDTH = tl.constexpr(384), tl.constexpr(64)
R, R_WIDTH = tl.constexpr(448), tl.constexpr(64)

# Strides come in units of 16 bytes: the compiler then knows that addresses are aligned for 128-bit loads, whatever the value at run time.
UNIT = tl.constexpr(16)

# Scores are kept in base 2: exp2 is one instruction.
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Below every finite score, and finite: no inf - inf.
LOWEST = tl.constexpr(-1e30)


@triton.jit(
    do_not_specialize=[
        "scale",
        "heads",
        "splits",
        "q_row_stride",
        "q_head_stride",
        "main_topk",
        "extra_topk",
        "main_row_stride",
        "extra_row_stride",
        "main_has_lengths",
        "extra_has_lengths",
        "main_shift",
        "extra_shift",
        "main_stride",
        "extra_stride",
        "out_row_stride",
        "has_sink",
    ]
)
def mla_decode_split(
    q_ptr,
    main_cache,
    extra_cache,
    main_indices,
    extra_indices,
    main_lengths,
    extra_lengths,
    sink_ptr,
    out_ptr,
    lse_ptr,
    partial_ptr,
    partial_lse_ptr,
    scale,
    heads,
    splits,
    q_row_stride,
    q_head_stride,
    main_topk,
    extra_topk,
    main_row_stride,
    extra_row_stride,
    main_has_lengths,
    extra_has_lengths,
    main_shift,
    extra_shift,
    main_stride,
    extra_stride,
    out_row_stride,
    has_sink,
    BLOCK_H: tl.constexpr,
    BLOCK_T: tl.constexpr,
    TRANS: tl.constexpr,
    FLOAT16: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """One share of a row's tokens for BLOCK_H heads. Grid: (rows x splits x head tiles,).

    With one split it writes the result; otherwise its share's result, as if there were no other tokens, to ``partial`` bf16 [row, head, split, 512]
    and its LSE in base 2 to ``partial_lse`` [row, head, split]: zeros and -inf for a share without tokens.
    """
    # Head tiles of one row are neighbours in the grid: they read the same tokens at about the same time, all but the first from L2.
    head_tiles = tl.cdiv(heads, BLOCK_H)
    program = tl.program_id(0)
    head_tile = program % head_tiles
    split = (program // head_tiles) % splits
    row = program // (head_tiles * splits)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()

    main_count = tl.load(main_lengths + row, mask=main_has_lengths != 0, other=main_topk)
    extra_count = tl.load(extra_lengths + row, mask=extra_has_lengths != 0, other=extra_topk)
    main_count = tl.minimum(tl.maximum(main_count, 0), main_topk)
    extra_count = tl.minimum(tl.maximum(extra_count, 0), extra_topk)
    main_tiles = tl.cdiv(main_count, BLOCK_T)
    tiles = main_tiles + tl.cdiv(extra_count, BLOCK_T)
    share = tl.cdiv(tiles, splits)
    begin = split * share
    end = tl.minimum(begin + share, tiles)
    main_row = main_indices + row.to(tl.int64) * main_row_stride
    extra_row = extra_indices + row.to(tl.int64) * extra_row_stride
    index = _indices(begin, end, main_tiles, main_count, extra_count, main_row, extra_row, BLOCK_T)
    next_index = _indices(begin + 1, end, main_tiles, main_count, extra_count, main_row, extra_row, BLOCK_T)

    h = head_tile * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = h < heads
    at = (row.to(tl.int64) * q_row_stride + h * q_head_stride) * (UNIT // 2)
    q_a = _queries(q_ptr, at, is_head, A, A_WIDTH, FLOAT16, TRANS)
    q_b = _queries(q_ptr, at, is_head, B, B_WIDTH, FLOAT16, TRANS)
    q_c = _queries(q_ptr, at, is_head, C, C_WIDTH, FLOAT16, TRANS)
    q_r = _queries(q_ptr, at, is_head, R, R_WIDTH, FLOAT16, TRANS)

    a, b, c, r, low, high = _gather(
        index, begin, main_tiles, main_cache, extra_cache, main_shift, extra_shift, main_stride, extra_stride
    )
    to_base_2 = tl.cast(scale, tl.float32) * LOG2E
    highest = tl.full([BLOCK_H], LOWEST, tl.float32)
    # Totals stay a tile, summed after the last one, where it is small: tokens are spread over the warps, and a sum over them is three barriers.
    SUM_LAST: tl.constexpr = BLOCK_H * BLOCK_T <= 1024
    if SUM_LAST:
        totals = _zeros(BLOCK_T, BLOCK_H, TRANS)
    else:
        totals = tl.zeros([BLOCK_H], tl.float32)
    sum_a = _zeros(A_WIDTH, BLOCK_H, TRANS)
    sum_b = _zeros(B_WIDTH, BLOCK_H, TRANS)
    sum_c = _zeros(C_WIDTH, BLOCK_H, TRANS)
    sum_r = _zeros(R_WIDTH, BLOCK_H, TRANS)
    for tile in tl.range(begin, end, num_stages=1):
        if EARLY:
            next_a, next_b, next_c, next_r, next_low, next_high = _gather(
                next_index, tile + 1, main_tiles, main_cache, extra_cache, main_shift, extra_shift, main_stride, extra_stride
            )
        k_a = dequantised(a, low, high, A, A_WIDTH, FLOAT16, PDL)
        k_b = dequantised(b, low, high, B, B_WIDTH, FLOAT16, PDL)
        k_c = dequantised(c, low, high, C, C_WIDTH, FLOAT16, PDL)
        k_r = r.to(q_r.dtype)
        if not EARLY:
            next_a, next_b, next_c, next_r, next_low, next_high = _gather(
                next_index, tile + 1, main_tiles, main_cache, extra_cache, main_shift, extra_shift, main_stride, extra_stride
            )
        after_next = _indices(tile + 2, end, main_tiles, main_count, extra_count, main_row, extra_row, BLOCK_T)
        # One chain of accumulation: a second one is another tile of registers, and no faster.
        scores = _scores(q_a, k_a, _zeros(BLOCK_T, BLOCK_H, TRANS), TRANS)
        scores = _scores(q_b, k_b, scores, TRANS)
        scores = _scores(q_c, k_c, scores, TRANS)
        scores = _scores(q_r, k_r, scores, TRANS)
        weights, highest, totals, decay = _softmax(scores * to_base_2, index >= 0, highest, totals, SUM_LAST, TRANS)
        weights = weights.to(q_a.dtype)
        sum_a = _weighted(weights, k_a, sum_a, decay, TRANS)
        sum_b = _weighted(weights, k_b, sum_b, decay, TRANS)
        sum_c = _weighted(weights, k_c, sum_c, decay, TRANS)
        sum_r = _weighted(weights, k_r, sum_r, decay, TRANS)

        index, next_index = next_index, after_next
        a, b, c, r, low, high = next_a, next_b, next_c, next_r, next_low, next_high

    # Where nothing was there, the weights were exp2(0) and the values 0: the result is 0, and so has to be the total, and the LSE -inf.
    total = tl.where(highest > LOWEST / 2, tl.sum(totals, 0 if TRANS else 1) if SUM_LAST else totals, 0.0)
    lse = tl.where(total > 0, highest + tl.log2(total), float("-inf"))
    pair = row.to(tl.int64) * heads + h
    if splits == 1:
        sink = tl.load(sink_ptr + h, mask=is_head & (has_sink != 0), other=float("-inf")) * LOG2E
        # exp2 may overflow to inf, which rightly makes the result 0.
        factor = 1.0 / tl.where(total > 0, total + tl.exp2(sink - highest), 1.0)
        at = row.to(tl.int64) * out_row_stride * (UNIT // 2) + h * HEAD_DIM
        _store(out_ptr, at, sum_a, factor, is_head, A, A_WIDTH, TRANS)
        _store(out_ptr, at, sum_b, factor, is_head, B, B_WIDTH, TRANS)
        _store(out_ptr, at, sum_c, factor, is_head, C, C_WIDTH, TRANS)
        _store(out_ptr, at, sum_r, factor, is_head, R, R_WIDTH, TRANS)
        tl.store(lse_ptr + pair, lse * LN2, mask=is_head)
    else:
        factor = 1.0 / tl.where(total > 0, total, 1.0)
        pair = pair * splits + split
        _store(partial_ptr, pair * HEAD_DIM, sum_a, factor, is_head, A, A_WIDTH, TRANS)
        _store(partial_ptr, pair * HEAD_DIM, sum_b, factor, is_head, B, B_WIDTH, TRANS)
        _store(partial_ptr, pair * HEAD_DIM, sum_c, factor, is_head, C, C_WIDTH, TRANS)
        _store(partial_ptr, pair * HEAD_DIM, sum_r, factor, is_head, R, R_WIDTH, TRANS)
        tl.store(partial_lse_ptr + pair, lse, mask=is_head)


@triton.jit(do_not_specialize=["heads", "splits", "out_row_stride", "has_sink"])
def mla_decode_combine(
    partial_ptr,
    partial_lse_ptr,
    sink_ptr,
    out_ptr,
    lse_ptr,
    heads,
    splits,
    out_row_stride,
    has_sink,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """Merge the partial results of a (row, head) by their LSE, with the sink in the denominator. Grid: (rows x heads, 512 / BLOCK_D).

    A program is best one warp, whose lanes share BLOCK_S splits of BLOCK_D dimensions: they are summed by shuffles. Several warps would exchange
    their sums through shared memory, and one lane for all splits of its dimensions is a long chain in front of everything that waits for the result.
    """
    pair = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = pair // heads
    head = pair % heads
    first_lse = partial_lse_ptr + pair.to(tl.int64) * splits
    first_partial = partial_ptr + pair.to(tl.int64) * splits * HEAD_DIM
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    sink = tl.load(sink_ptr + head, mask=has_sink != 0, other=float("-inf")) * LOG2E

    highest = LOWEST
    total = 0.0
    accumulator = tl.zeros([BLOCK_D], tl.float32)
    for first in tl.range(0, splits, BLOCK_S, num_stages=1):
        split = first + tl.arange(0, BLOCK_S)
        exists = split < splits
        partials = tl.load(first_partial + split[:, None] * HEAD_DIM + d[None, :], mask=exists[:, None], other=0.0)
        lses = tl.load(first_lse + split, mask=exists, other=float("-inf"))
        higher = tl.maximum(highest, tl.max(lses, 0))
        decay = tl.exp2(highest - higher)
        weights = tl.exp2(lses - higher)
        accumulator = accumulator * decay + tl.sum(partials.to(tl.float32) * weights[:, None], 0)
        total = total * decay + tl.sum(weights, 0)
        highest = higher

    factor = 1.0 / tl.where(total > 0, total + tl.exp2(sink - highest), 1.0)
    at = row.to(tl.int64) * out_row_stride * (UNIT // 2) + head * HEAD_DIM
    tl.store(out_ptr + at + d, (accumulator * factor).to(tl.bfloat16))
    lse = tl.where(total > 0, highest + tl.log2(total), float("-inf")) * LN2
    tl.store(lse_ptr + pair, lse, mask=tl.program_id(1) == 0)


@triton.jit
def _indices(tile, end, main_tiles, main_count, extra_count, main_row, extra_row, BLOCK_T: tl.constexpr):
    """The token slots of a tile, -1 where there is none; all of them from ``end`` on."""
    extra = tile >= main_tiles
    t = tl.where(extra, tile - main_tiles, tile) * BLOCK_T + tl.arange(0, BLOCK_T)
    count = tl.where(tile < end, tl.where(extra, extra_count, main_count), 0)
    return tl.load(tl.where(extra, extra_row, main_row) + t, mask=t < count, other=-1)


@triton.jit
def _queries(q_ptr, at, is_head, FIRST: tl.constexpr, WIDTH: tl.constexpr, FLOAT16: tl.constexpr, TRANS: tl.constexpr):
    """Some dimensions of BLOCK_H queries."""
    d = FIRST + tl.arange(0, WIDTH)
    where = at[None, :] + d[:, None] if TRANS else at[:, None] + d[None, :]
    mask = is_head[None, :] if TRANS else is_head[:, None]
    queries = tl.load(q_ptr + where, mask=mask, other=0.0)
    return queries.to(tl.float16) if FLOAT16 else queries


@triton.jit
def _gather(index, tile, main_tiles, main_cache, extra_cache, main_shift, extra_shift, main_stride, extra_stride):
    """A tile of tokens as it is in memory: words of e4m3, bf16, and both words of the scales; 0 where there is no token."""
    extra = tile >= main_tiles
    cache = tl.where(extra, extra_cache, main_cache)
    shift = tl.where(extra, extra_shift, main_shift)
    valid = index >= 0
    slot = tl.maximum(index, 0)
    page = cache + (slot >> shift).to(tl.int64) * (tl.where(extra, extra_stride, main_stride).to(tl.int64) * UNIT)
    offset = slot & ((1 << shift) - 1)
    token = page + offset * TOKEN_BYTES
    footer = (page + ((TOKEN_BYTES << shift) + offset * SCALE_BYTES)).to(tl.pointer_type(tl.int32))
    a = _words(token, valid, A, A_WIDTH)
    b = _words(token, valid, B, B_WIDTH)
    c = _words(token, valid, C, C_WIDTH)
    rope = (token + ROPE_BYTE).to(tl.pointer_type(tl.bfloat16))
    r = tl.load(rope[:, None] + tl.arange(0, R_WIDTH)[None, :], mask=valid[:, None], other=0.0)
    low = tl.load(footer, mask=valid, other=0)
    high = tl.load(footer + 1, mask=valid, other=0)
    return a, b, c, r, low, high


@triton.jit
def _words(token, valid, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    w = FIRST // 4 + tl.arange(0, WIDTH // 4)
    return tl.load(token.to(tl.pointer_type(tl.int32))[:, None] + w[None, :], mask=valid[:, None], other=0)


@triton.jit
def _zeros(ROWS: tl.constexpr, BLOCK_H: tl.constexpr, TRANS: tl.constexpr):
    return tl.zeros([ROWS, BLOCK_H] if TRANS else [BLOCK_H, ROWS], tl.float32)


@triton.jit
def _scores(q, tokens, scores, TRANS: tl.constexpr):
    return tl.dot(tokens, q, scores) if TRANS else tl.dot(q, tl.trans(tokens), scores)


@triton.jit
def _softmax(scores, valid, highest, totals, SUM_LAST: tl.constexpr, TRANS: tl.constexpr):
    """A step of the online softmax: the weights, each head's new maximum, the totals so far, and what older sums are multiplied with."""
    if TRANS:
        scores = tl.where(valid[:, None], scores, LOWEST)
        higher = tl.maximum(highest, tl.max(scores, 0))
        weights = tl.exp2(scores - higher[None, :])
    else:
        scores = tl.where(valid[None, :], scores, LOWEST)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
    decay = tl.exp2(highest - higher)
    if SUM_LAST:
        totals = totals * (decay[None, :] if TRANS else decay[:, None]) + weights
    else:
        totals = totals * decay + tl.sum(weights, 0 if TRANS else 1)
    return weights, higher, totals, decay


@triton.jit
def _weighted(weights, tokens, accumulator, decay, TRANS: tl.constexpr):
    if TRANS:
        accumulator = tl.dot(tl.trans(tokens), weights, accumulator * decay[None, :])
    else:
        accumulator = tl.dot(weights, tokens, accumulator * decay[:, None])
    return accumulator


@triton.jit
def _store(ptr, at, accumulator, factor, is_head, FIRST: tl.constexpr, WIDTH: tl.constexpr, TRANS: tl.constexpr):
    d = FIRST + tl.arange(0, WIDTH)
    if TRANS:
        result = (accumulator * factor[None, :]).to(tl.bfloat16)
        tl.store(ptr + at[None, :] + d[:, None], result, mask=is_head[None, :])
    else:
        result = (accumulator * factor[:, None]).to(tl.bfloat16)
        tl.store(ptr + at[:, None] + d[None, :], result, mask=is_head[:, None])


settle(globals())
