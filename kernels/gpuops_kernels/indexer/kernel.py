"""Triton kernels of the DeepSeek-V4 indexer: paged MQA logits whose cost follows the actual context, and a top-k that reads only valid entries.

Logits. The unit of work is one page of one row (64 tokens x 64 heads x 128 dimensions: 8,448 bytes and 1 MFLOP). The grid is a constant number of
programs; each finds its own equal share of all units from the lengths on the device, so one long row among short ones is spread over the whole
card, and a captured graph costs what today's lengths cost. Reading at most a few KB of lengths again in every program costs less than a second
launch that would write a schedule.

Tokens are the rows (M = 64) of the product and heads its columns: on sm_90 that is one wgmma a page, on sm_120 mma.sync with the fp8 operands
read by ldmatrix; the sum over heads stays within a warp or two.

Top-k. A row of at most CAP entries is held in registers and its threshold found by bisection on order-preserving integers; a longer row is first
reduced to at most CAP candidates in (nearly always) one pass, with a pivot from a strided sample (Floyd and Rivest's SELECT, 1975).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..keys import settle

_SIZES = ["batch", "page_stride_16", "table_stride", "logits_stride", "limit"]


@triton.jit
def score_pages(q, cache, weights, table, logits, row, first, last, length, page_stride_16, table_stride, logits_stride,
                HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
    """Logits of the pages ``first`` to ``last`` (exclusive) of one row."""
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, DIM)
    tokens = tl.arange(0, PAGE)
    wide_row = row.to(tl.int64)
    pages = table + wide_row * table_stride
    out = logits + wide_row * logits_stride
    # Ids are loaded two pages ahead and scales one (page 0's after the last): a page would otherwise wait for three memory latencies in
    # sequence. Keys are pipelined by the compiler, which does so only for what a product reads.
    page = tl.maximum(tl.load(pages + first, mask=first < last, other=0), 0).to(tl.int64)
    # A stride counted in 16 bytes keeps 128-bit loads without a specialisation for each stride.
    stride = page_stride_16 * 16
    query = tl.load(q + wide_row * (HEADS * DIM) + heads[:, None] * DIM + dims[None, :])
    weight = tl.load(weights + wide_row * HEADS + heads)
    scale = tl.load((cache + page * stride + PAGE * DIM).to(tl.pointer_type(tl.float32)) + tokens)
    for index in tl.range(first, last):
        base = cache + page * stride
        page = tl.maximum(tl.load(pages + index + 1, mask=index + 1 < last, other=0), 0).to(tl.int64)
        next_scale = tl.load((cache + page * stride + PAGE * DIM).to(tl.pointer_type(tl.float32)) + tokens)
        key = tl.load(base + tokens[:, None] * DIM + dims[None, :])
        products = tl.dot(key, tl.trans(query))
        scores = tl.sum(tl.maximum(products, 0.0) * weight[None, :], 1) * scale
        position = index * PAGE + tokens
        tl.store(out + position, scores, mask=position < length)
        scale = next_scale


@triton.jit
def _pages(lengths, rows, batch, limit, PAGE: tl.constexpr):
    """Pages of each row; a padded row's length may be anything, negative too."""
    length = tl.load(lengths + rows, mask=rows < batch, other=0)
    return tl.cdiv(tl.minimum(tl.maximum(length, 0), limit), PAGE)


@triton.jit(do_not_specialize=_SIZES)
def indexer_logits(q, cache, weights, lengths, table, logits, batch, page_stride_16, table_stride, logits_stride, limit,
                   HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """logits[b, t] = sum_h weights[b, h] * relu(q[b, h] . key[t]) * scale[t] for t < lengths[b]; nothing else is written."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    lanes = tl.arange(0, ROWS)
    counts = _pages(lengths, lanes, batch, limit, PAGE)
    sums = counts
    for start in range(ROWS, batch, ROWS):
        sums += _pages(lengths, start + lanes, batch, limit, PAGE)
    total = tl.sum(sums, 0)
    share = tl.cdiv(total, tl.num_programs(0))
    unit = tl.program_id(0) * share
    end = tl.minimum(unit + share, total)
    if unit >= end:
        return

    # The row that holds this program's first unit, and the number of units before that row.
    chunk = 0
    before = 0
    inclusive = tl.cumsum(counts, 0)
    whole = tl.max(inclusive, 0)
    while before + whole <= unit:
        before += whole
        chunk += ROWS
        inclusive = tl.cumsum(_pages(lengths, chunk + lanes, batch, limit, PAGE), 0)
        whole = tl.max(inclusive, 0)
    passed = before + inclusive <= unit
    row = chunk + tl.sum(passed.to(tl.int32), 0)
    before += tl.max(tl.where(passed, inclusive, 0), 0)

    while unit < end:
        length = tl.minimum(tl.load(lengths + row), limit)
        count = tl.cdiv(tl.maximum(length, 0), PAGE)
        last = tl.minimum(end - before, count)
        score_pages(
            q,
            cache,
            weights,
            table,
            logits,
            row,
            unit - before,
            last,
            length,
            page_stride_16,
            table_stride,
            logits_stride,
            HEADS,
            DIM,
            PAGE,
        )
        unit = tl.maximum(unit, before + last)
        before += count
        row += 1


@triton.jit
def _ordered(values):
    """fp32 as int32 of the same order (-0.0 comes before 0.0; NaN beyond the infinity of its sign)."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _middle(low, high):
    """The mean of two int32, rounded down, without overflow."""
    return (low & high) + ((low ^ high) >> 1)


@triton.jit
def _threshold(keys, wanted, count):
    """Bisect to the ``wanted``-th largest of ``count`` keys.

    Returns (strict, ties, room): keys >= strict are selected, and the first ``room`` of those equal to ``ties``.
    """
    low = -2147483648
    high = 2147483647
    at_low = count
    at_high = 0
    while (at_low != wanted) & (high - 1 > low):
        middle = _middle(low, high)
        reached = tl.sum((keys >= middle).to(tl.int32), 0)
        if reached >= wanted:
            low = middle
            at_low = reached
        else:
            high = middle
            at_high = reached
    exact = at_low == wanted
    return tl.where(exact, low, high), low, tl.where(exact, 0, wanted - at_high)


@triton.jit
def _emit(
    slots, raw, pages, keys, tokens, valid, strict, ties, room, written, tied, page_bits, K: tl.constexpr, RAW: tl.constexpr
):
    """Write the selected of one tile after the ``written`` earlier ones; returns how many are written and how many ties were seen."""
    tie = valid & (keys == ties) & (keys < strict)
    rank = tied + tl.cumsum(tie.to(tl.int32), 0)
    chosen = (valid & (keys >= strict)) | (tie & (rank <= room))
    place = written + tl.cumsum(chosen.to(tl.int32), 0) - 1
    chosen = chosen & (place < K)
    page = tl.load(pages + (tokens >> page_bits), mask=chosen, other=0)
    tl.store(slots + place, (page << page_bits) | (tokens & ((1 << page_bits) - 1)), mask=chosen)
    if RAW:
        tl.store(raw + place, tokens, mask=chosen)
    return written + tl.sum(chosen.to(tl.int32), 0), tied + tl.sum(tie.to(tl.int32), 0)


@triton.jit
def _gather_candidates(scores, candidates, length, pivot, CAP: tl.constexpr, TILE: tl.constexpr):
    """Write the positions of the first CAP keys >= pivot, in order; returns how many keys reach the pivot."""
    lanes = tl.arange(0, TILE)
    found = 0
    for start in tl.range(0, length, TILE, num_stages=3):
        tokens = start + lanes
        valid = tokens < length
        reached = valid & (_ordered(tl.load(scores + tokens, mask=valid, other=0.0)) >= pivot)
        place = found + tl.cumsum(reached.to(tl.int32), 0) - 1
        tl.store(candidates + place, tokens, mask=reached & (place < CAP))
        found += tl.sum(reached.to(tl.int32), 0)
    return found


@triton.jit
def _select_long(scores, slots, raw, pages, candidates, length, page_bits, K: tl.constexpr, CAP: tl.constexpr, TILE: tl.constexpr,
                 RAW: tl.constexpr):  # fmt: skip
    """A row of more than CAP entries: a pivot from a sample, candidates in one pass, then the same selection among those."""
    lanes = tl.arange(0, CAP)
    stride = tl.cdiv(length, CAP)
    sampled = lanes * stride < length
    sample = tl.where(sampled, _ordered(tl.load(scores + lanes * stride, mask=sampled, other=0.0)), -2147483648)
    # Aim at CAP / 2 candidates: several standard deviations from both K (too few) and CAP (too many).
    _, pivot, _ = _threshold(sample, tl.maximum(CAP // 2 // stride, 1), tl.cdiv(length, stride))
    low = -2147483648
    high = 2147483647
    at_high = 0
    first = 1
    found = _gather_candidates(scores, candidates, length, pivot, CAP, TILE)
    while ((found < K) | (found > CAP)) & (high - 1 > low):
        if found < K:
            high = pivot
            at_high = found
        else:
            low = pivot
        if high - 1 > low:
            # Too many at first are mostly equals of the pivot (a row of zeros): then the next key above it closes the bracket.
            pivot = tl.where((first == 1) & (low == pivot), pivot + 1, _middle(low, high))
            first = 0
            found = _gather_candidates(scores, candidates, length, pivot, CAP, TILE)
    # The candidates were written by other threads of this program.
    tl.debug_barrier()
    if (found >= K) & (found <= CAP):
        valid = lanes < found
        tokens = tl.load(candidates + lanes, mask=valid, other=0)
        keys = tl.where(valid, _ordered(tl.load(scores + tokens, mask=valid, other=0.0)), -2147483648)
        strict, ties, room = _threshold(keys, K, found)
        _emit(slots, raw, pages, keys, tokens, valid, strict, ties, room, 0, 0, page_bits, K, RAW)
    else:
        # More than CAP - K entries equal the K-th: everything above it, then the first of its equals.
        written = 0
        tied = 0
        for start in tl.range(0, length, TILE):
            tokens = start + tl.arange(0, TILE)
            valid = tokens < length
            keys = _ordered(tl.load(scores + tokens, mask=valid, other=0.0))
            written, tied = _emit(
                slots, raw, pages, keys, tokens, valid, high, low, K - at_high, written, tied, page_bits, K, RAW
            )
    # The next row's candidates must not overwrite what a slower thread still reads.
    tl.debug_barrier()


@triton.jit(do_not_specialize=["batch", "table_stride", "logits_stride_4", "limit", "page_bits"])
def indexer_topk(logits, lengths, table, slots, raw, candidates, batch, table_stride, logits_stride_4, limit, page_bits,
                 K: tl.constexpr, CAP: tl.constexpr, TILE: tl.constexpr, RAW: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """The K largest of the first ``lengths[b]`` logits of each row, as physical slots in ascending order of position; -1 beyond them."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    mine = candidates + tl.program_id(0) * CAP
    for row in range(tl.program_id(0), batch, tl.num_programs(0)):
        wide_row = tl.cast(row, tl.int64)
        length = tl.minimum(tl.load(lengths + row), limit)
        scores = logits + wide_row * (logits_stride_4.to(tl.int64) * 4)
        pages = table + wide_row * table_stride
        row_slots = slots + wide_row * K
        row_raw = raw + wide_row * K
        if length <= K:
            tokens = tl.arange(0, K)
            valid = tokens < length
            page = tl.load(pages + (tokens >> page_bits), mask=valid, other=0)
            tl.store(row_slots + tokens, tl.where(valid, (page << page_bits) | (tokens & ((1 << page_bits) - 1)), -1))
            if RAW:
                tl.store(row_raw + tokens, tl.where(valid, tokens, -1))
        elif length <= CAP:
            tokens = tl.arange(0, CAP)
            valid = tokens < length
            keys = tl.where(valid, _ordered(tl.load(scores + tokens, mask=valid, other=0.0)), -2147483648)
            strict, ties, room = _threshold(keys, K, length)
            _emit(row_slots, row_raw, pages, keys, tokens, valid, strict, ties, room, 0, 0, page_bits, K, RAW)
        else:
            _select_long(scores, row_slots, row_raw, pages, mine, length, page_bits, K, CAP, TILE, RAW)


settle(globals())
