"""mHC-pre in Triton: split-K partial dot products on tensor cores, and what turns them into a layer's input.

A layer reads four residual streams, x of [rows, 4 x hidden] bf16, through a linear of 24 outputs whose weight is fp32. One bf16 weight is not
enough (calc_diff 1.5e-6); two are, hi + lo (3e-12), and they are as many bytes as the fp32 weight. Both products run in the same K loop.

The prepared weight has 48 rows of K values, three tiles of 16 rows so that no tensor-core column is padding:

    tile 0: hi of outputs 0..15      tile 1: lo of outputs 0..15      tile 2: hi of outputs 16..23, then lo of outputs 16..23

A partial result is 32 fp32 values: outputs 0..15, then hi and lo of outputs 16..23, which whoever reduces adds. Partials are [rows, splits, 32]
(and [rows, splits] for the squares), so that a row is reduced from contiguous memory, in a fixed order: no float atomics, the same bits each time.

Tiles have 16 rows in decode: that is the M of `mma.sync`, the same instruction on sm_90 and sm_120. A call moves 1.6 MB of weight whatever the
batch, so K is split until every multiprocessor has its share.

Every kernel is a programmatic dependent launch: its programs are resident, and have loaded what never changes (weights), when the kernel before
it ends. All wait before they write anything or read what may have been written. The first kernel of a pair lets the second one start only after
its own wait, so that whatever is older than the first is complete when the second starts, which may therefore read it early (``STREAMS_ARE_OLD``).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..keys import settle

STREAMS = tl.constexpr(4)
OUTPUTS = tl.constexpr(24)
TILE = tl.constexpr(16)
PARTIAL = tl.constexpr(32)
EACH = tl.constexpr(8)


@triton.jit(do_not_specialize=["rows", "splits", "blocks_per_split"])
def linear_partials(
    x,
    weight,
    dots,
    squares,
    rows,
    splits,
    blocks_per_split,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The dot products and the sum of squares of BLOCK_M rows over one share of K. Grid: (row tiles, splits).

    ``ONE_BLOCK``: a share is one block, as in decode. Its whole weight is then in flight before the wait for the kernel that writes ``x``.
    """
    split = tl.program_id(1)
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    valid = row < rows
    # Three chains of accumulation: one would double the latency of what is a latency-bound kernel.
    high = tl.zeros([BLOCK_M, TILE], tl.float32)
    low = tl.zeros([BLOCK_M, TILE], tl.float32)
    tail = tl.zeros([BLOCK_M, TILE], tl.float32)
    square = tl.zeros([BLOCK_M], tl.float32)
    if ONE_BLOCK:
        k = split * BLOCK_K + tl.arange(0, BLOCK_K)
        high, low, tail, square = _linear_block(x, weight, row, valid, k, high, low, tail, square, WIDTH, PDL)
    else:
        _wait(PDL)
        for block in range(split * blocks_per_split, (split + 1) * blocks_per_split):
            k = block * BLOCK_K + tl.arange(0, BLOCK_K)
            high, low, tail, square = _linear_block(x, weight, row, valid, k, high, low, tail, square, WIDTH, False)
    _store_partials(dots, squares, row, valid, split, splits, high + low, tail, square)


@triton.jit(do_not_specialize=["rows", "splits", "blocks_per_split"])
def boundary_partials(
    x,
    residual,
    post,
    comb,
    weight,
    streams,
    dots,
    squares,
    rows,
    splits,
    blocks_per_split,
    HIDDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """mHC-post of one sublayer and the partial dot products of the next one's mHC-pre. Grid: (row tiles, splits).

    ``streams[r, o] = post[r, o] * x[r] + sum over i of comb[r, i, o] * residual[r, i]``, rounded to bf16, is stored and multiplied while it is
    still in registers. A block is BLOCK_K / 4 columns of all four streams: every old value is read once and used four times.
    """
    COLUMNS: tl.constexpr = BLOCK_K // STREAMS
    split = tl.program_id(1)
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    valid = row < rows
    high = tl.zeros([BLOCK_M, TILE], tl.float32)
    low = tl.zeros([BLOCK_M, TILE], tl.float32)
    tail = tl.zeros([BLOCK_M, TILE], tl.float32)
    square = tl.zeros([BLOCK_M], tl.float32)
    if ONE_BLOCK:
        h = split * COLUMNS + tl.arange(0, COLUMNS)
        high, low, tail, square = _boundary_block(
            x, residual, post, comb, weight, streams, row, valid, h, high, low, tail, square, HIDDEN, PDL
        )
    else:
        _wait(PDL)
        for block in range(split * blocks_per_split, (split + 1) * blocks_per_split):
            h = block * COLUMNS + tl.arange(0, COLUMNS)
            high, low, tail, square = _boundary_block(
                x, residual, post, comb, weight, streams, row, valid, h, high, low, tail, square, HIDDEN, False
            )
    _store_partials(dots, squares, row, valid, split, splits, high + low, tail, square)


@triton.jit(do_not_specialize=["splits"])
def linear_reduce(dots, squares, out, square_sums, splits, BLOCK_S: tl.constexpr, PDL: tl.constexpr):
    """The bare linear: eight outputs of one row from its partials. Grid: (rows, 3).

    A program is best one warp: 32 sums in one program of several warps meet in shared memory, behind seven barriers.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    output = part * EACH + tl.arange(0, EACH)
    total = tl.zeros([BLOCK_S, EACH], tl.float32)
    square = tl.zeros([BLOCK_S], tl.float32)
    for start in range(0, splits, BLOCK_S):
        split = row * splits + start + tl.arange(0, BLOCK_S)
        mine = start + tl.arange(0, BLOCK_S) < splits
        source = dots + split[:, None] * PARTIAL + output[None, :]
        total += tl.load(source, mask=mine[:, None], other=0.0)
        # These were hi of the last eight outputs: lo of them comes next.
        total += tl.load(source + EACH, mask=mine[:, None] & (part == 2), other=0.0)
        square += tl.load(squares + split, mask=mine & (part == 0), other=0.0)
    tl.store(out + row * OUTPUTS + output, tl.sum(total, axis=0))
    tl.store(square_sums + row, tl.sum(square, axis=0), mask=part == 0)


@triton.jit(do_not_specialize=["splits", "sinkhorn_repeat"])
def pre_finish(
    dots,
    squares,
    streams,
    scale,
    base,
    norm_weight,
    post,
    comb,
    layer_input,
    splits,
    sinkhorn_repeat,
    rms_eps,
    pre_eps,
    sinkhorn_eps,
    post_mult,
    norm_eps,
    HIDDEN: tl.constexpr,
    BLOCK_S: tl.constexpr,
    NORM: tl.constexpr,
    STREAMS_ARE_OLD: tl.constexpr,
    PDL: tl.constexpr,
):
    """From partials to a layer's input, and to the mixes that its mHC-post will need. Grid: (rows, 2).

    Program (row, 0) sums the streams (and normalises); program (row, 1) does the Sinkhorn iterations, a chain of some forty divisions that would
    otherwise be in front of them. Each reduces the partials that it needs.

    ``STREAMS_ARE_OLD``: the kernel before this one did not write ``streams``, so that they may be read before it ends.
    """
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    stream = tl.arange(0, 4)
    dots += row * splits * PARTIAL
    squares += row * splits
    if tl.program_id(1) == 0:
        h = tl.arange(0, HIDDEN)
        source = streams + row * (STREAMS * HIDDEN) + h
        pre_scale = tl.load(scale)
        pre_base = tl.load(base + stream)
        if NORM:
            gain = tl.load(norm_weight + h)
        if PDL and not STREAMS_ARE_OLD:
            gdc_wait()
        x0 = tl.load(source)
        x1 = tl.load(source + HIDDEN)
        x2 = tl.load(source + 2 * HIDDEN)
        x3 = tl.load(source + 3 * HIDDEN)
        if PDL and STREAMS_ARE_OLD:
            gdc_wait()
        totals, square = _totals(dots, squares, splits, BLOCK_S)
        rms = tl.rsqrt(square / (STREAMS * HIDDEN) + tl.cast(rms_eps, tl.float32))
        pre = tl.sigmoid(_outputs(totals, 0) * rms * pre_scale + pre_base) + tl.cast(pre_eps, tl.float32)
        y = _at(pre, stream, 0) * x0.to(tl.float32)
        y += _at(pre, stream, 1) * x1.to(tl.float32)
        y += _at(pre, stream, 2) * x2.to(tl.float32)
        y += _at(pre, stream, 3) * x3.to(tl.float32)
        result = y.to(tl.bfloat16)
        if NORM:
            # The norm reads what an unfused norm would read: the rounded sum.
            y = result.to(tl.float32)
            y *= tl.rsqrt(tl.sum(y * y, axis=0) / HIDDEN + tl.cast(norm_eps, tl.float32))
            result = (y * gain.to(tl.float32)).to(tl.bfloat16)
        tl.store(layer_input + row * HIDDEN + h, result)
    else:
        post_scale = tl.load(scale + 1)
        post_base = tl.load(base + STREAMS + stream)
        comb_scale = tl.load(scale + 2)
        comb_base = base + 2 * STREAMS + stream
        b0 = tl.load(comb_base)
        b1 = tl.load(comb_base + STREAMS)
        b2 = tl.load(comb_base + 2 * STREAMS)
        b3 = tl.load(comb_base + 3 * STREAMS)
        if PDL:
            gdc_wait()
        totals, square = _totals(dots, squares, splits, BLOCK_S)
        rms = tl.rsqrt(square / (STREAMS * HIDDEN) + tl.cast(rms_eps, tl.float32))
        gate = tl.sigmoid(_outputs(totals, 1) * rms * post_scale + post_base)
        tl.store(post + row * STREAMS + stream, gate * tl.cast(post_mult, tl.float32))

        # One vector for each row of the 4 x 4 matrix: column sums then need no exchange between lanes.
        comb_scale *= rms
        eps = tl.cast(sinkhorn_eps, tl.float32)
        c0 = _softmax(_outputs(totals, 2) * comb_scale + b0) + eps
        c1 = _softmax(_outputs(totals, 3) * comb_scale + b1) + eps
        c2 = _softmax(_outputs(totals, 4) * comb_scale + b2) + eps
        c3 = _softmax(_outputs(totals, 5) * comb_scale + b3) + eps
        factor = _reciprocal((c0 + c1) + (c2 + c3) + eps, PDL)
        c0, c1, c2, c3 = c0 * factor, c1 * factor, c2 * factor, c3 * factor
        for _ in range(1, sinkhorn_repeat):
            c0 *= _reciprocal(tl.sum(c0, axis=0) + eps, PDL)
            c1 *= _reciprocal(tl.sum(c1, axis=0) + eps, PDL)
            c2 *= _reciprocal(tl.sum(c2, axis=0) + eps, PDL)
            c3 *= _reciprocal(tl.sum(c3, axis=0) + eps, PDL)
            factor = _reciprocal((c0 + c1) + (c2 + c3) + eps, PDL)
            c0, c1, c2, c3 = c0 * factor, c1 * factor, c2 * factor, c3 * factor
        target = comb + row * (STREAMS * STREAMS) + stream
        tl.store(target, c0)
        tl.store(target + STREAMS, c1)
        tl.store(target + 2 * STREAMS, c2)
        tl.store(target + 3 * STREAMS, c3)


@triton.jit
def _wait(PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _linear_block(x, weight, row, valid, k, high, low, tail, square, WIDTH: tl.constexpr, WAIT: tl.constexpr):
    # All loads before the first product, whose barrier would hold back those after it.
    w_high, w_low, w_tail = _weight_tiles(weight, k, WIDTH)
    _wait(WAIT)
    values = tl.load(x + row[:, None] * WIDTH + k[None, :], mask=valid[:, None], other=0.0)
    return _products(values, w_high, w_low, w_tail, high, low, tail, square)


@triton.jit
def _boundary_block(
    x, residual, post, comb, weight, streams, row, valid, h, high, low, tail, square, HIDDEN: tl.constexpr, WAIT: tl.constexpr
):
    WIDTH: tl.constexpr = STREAMS * HIDDEN
    high0, low0, tail0 = _weight_tiles(weight, h, WIDTH)
    high1, low1, tail1 = _weight_tiles(weight, h + HIDDEN, WIDTH)
    high2, low2, tail2 = _weight_tiles(weight, h + 2 * HIDDEN, WIDTH)
    high3, low3, tail3 = _weight_tiles(weight, h + 3 * HIDDEN, WIDTH)
    _wait(WAIT)
    mask = valid[:, None]
    old = residual + row[:, None] * WIDTH + h[None, :]
    update = tl.load(x + row[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
    r0 = tl.load(old, mask=mask, other=0.0)
    r1 = tl.load(old + HIDDEN, mask=mask, other=0.0)
    r2 = tl.load(old + 2 * HIDDEN, mask=mask, other=0.0)
    r3 = tl.load(old + 3 * HIDDEN, mask=mask, other=0.0)
    gate = post + row * STREAMS
    mix = comb + row * (STREAMS * STREAMS)
    n0 = _new_stream(update, r0, r1, r2, r3, gate, mix, valid)
    n1 = _new_stream(update, r0, r1, r2, r3, gate + 1, mix + 1, valid)
    n2 = _new_stream(update, r0, r1, r2, r3, gate + 2, mix + 2, valid)
    n3 = _new_stream(update, r0, r1, r2, r3, gate + 3, mix + 3, valid)
    new = streams + row[:, None] * WIDTH + h[None, :]
    tl.store(new, n0, mask=mask)
    tl.store(new + HIDDEN, n1, mask=mask)
    tl.store(new + 2 * HIDDEN, n2, mask=mask)
    tl.store(new + 3 * HIDDEN, n3, mask=mask)
    high, low, tail, square = _products(n0, high0, low0, tail0, high, low, tail, square)
    high, low, tail, square = _products(n1, high1, low1, tail1, high, low, tail, square)
    high, low, tail, square = _products(n2, high2, low2, tail2, high, low, tail, square)
    return _products(n3, high3, low3, tail3, high, low, tail, square)


@triton.jit
def _weight_tiles(weight, k, WIDTH: tl.constexpr):
    """The three tiles of 16 rows (see the module) at columns k, each [k, 16].

    They are addressed as the second operand of a product and not transposed into one: Triton moves a transposition, and the exchange through
    shared memory behind it, up to each load, which makes one memory latency of all loads into one for each.
    """
    tile = weight + tl.arange(0, TILE)[None, :] * WIDTH + k[:, None]
    return tl.load(tile), tl.load(tile + TILE * WIDTH), tl.load(tile + 2 * TILE * WIDTH)


@triton.jit
def _new_stream(update, r0, r1, r2, r3, gate, mix, valid):
    value = tl.load(gate, mask=valid, other=0.0)[:, None] * update.to(tl.float32)
    value += tl.load(mix, mask=valid, other=0.0)[:, None] * r0.to(tl.float32)
    value += tl.load(mix + STREAMS, mask=valid, other=0.0)[:, None] * r1.to(tl.float32)
    value += tl.load(mix + 2 * STREAMS, mask=valid, other=0.0)[:, None] * r2.to(tl.float32)
    value += tl.load(mix + 3 * STREAMS, mask=valid, other=0.0)[:, None] * r3.to(tl.float32)
    return _computed_before_use(value).to(tl.bfloat16)


@triton.jit
def _products(values, w_high, w_low, w_tail, high, low, tail, square):
    high = tl.dot(values, w_high, high)
    low = tl.dot(values, w_low, low)
    tail = tl.dot(values, w_tail, tail)
    wide = values.to(tl.float32)
    return high, low, tail, square + tl.sum(wide * wide, axis=1)


@triton.jit
def _computed_before_use(value):
    """The value itself, through a reduction that is none, which keeps the arithmetic in front of it in the layout of its loads.

    Triton moves the conversion to a tensor-core operand's layout up to the loads, through elementwise operations: each warp would then compute the
    whole tile, from five converted ones (4.6 times the instructions, and 784 bytes of spills).
    """
    return tl.max(tl.join(value, value), axis=2)


@triton.jit
def _store_partials(dots, squares, row, valid, split, splits, body, tail, square):
    output = tl.arange(0, TILE)
    target = dots + ((row * splits + split) * PARTIAL)[:, None] + output[None, :]
    tl.store(target, body, mask=valid[:, None])
    tl.store(target + TILE, tail, mask=valid[:, None])
    tl.store(squares + row * splits + split, square, mask=valid)


@triton.jit
def _totals(dots, squares, splits, BLOCK_S: tl.constexpr):
    """The partials of one row, summed over the splits in a fixed order: [8, 4] (see `_outputs`), and the sum of squares."""
    value = tl.arange(0, PARTIAL)
    total = tl.zeros([BLOCK_S, PARTIAL], tl.float32)
    square = tl.zeros([BLOCK_S], tl.float32)
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        total += tl.load(dots + split[:, None] * PARTIAL + value[None, :], mask=(split < splits)[:, None], other=0.0)
        square += tl.load(squares + split, mask=split < splits, other=0.0)
    return tl.reshape(tl.sum(total, axis=0), [8, 4]), tl.sum(square, axis=0)


@triton.jit
def _outputs(totals, i: tl.constexpr):
    """Outputs 4i .. 4i+3 of the linear. Rows 0..3 of ``totals`` are sums of hi and lo; 4 and 5 are hi of the last eight outputs, 6 and 7 lo."""
    row = tl.arange(0, 8)
    wanted = row == i
    if i >= 4:
        wanted = wanted | (row == i + 2)
    return tl.sum(tl.where(wanted[:, None], totals, 0.0), axis=0)


@triton.jit
def _at(vector, index, i):
    return tl.sum(tl.where(index == i, vector, 0.0), axis=0)


@triton.jit
def _softmax(logits):
    shifted = tl.exp(logits - tl.max(logits, axis=0))
    return shifted / tl.sum(shifted, axis=0)


@triton.jit
def _reciprocal(value, NATIVE: tl.constexpr):
    """1 / value: a division's scaling, which only numbers near the ends of fp32 need, is half of the latency of a Sinkhorn iteration."""
    if NATIVE:
        inverse = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1)
    else:
        inverse = 1.0 / value
    return inverse


settle(globals())
