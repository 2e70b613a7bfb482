"""Glue in Triton: each kernel does in one pass over a row what an engine does in two to four launches.

These kernels move a few kilobytes a row and are launched hundreds of times in a decode step: what counts is how many there are, then their
latency. Hence one program a row (or a row and role), all loads before the first reduction, and no tensor core.

Row strides come in units of 16 bytes, so that the compiler knows that addresses are aligned for 128-bit loads, whatever the value.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..keys import settle

FP8_MAX = tl.constexpr(448.0)
UNIT = tl.constexpr(8)
"""bf16 elements in 16 bytes."""

NOPE = tl.constexpr(448)
ROPE = tl.constexpr(64)
HEAD = tl.constexpr(512)
GROUP = tl.constexpr(64)
TOKEN_BYTES = tl.constexpr(576)
SCALE_BYTES = tl.constexpr(8)
STREAMS = tl.constexpr(4)

# Of the FP8 cache's scales: fused_k_norm_rope_flashmla in SGLang's jit_kernel/csrc/deepseek_v4/main_norm_rope.cuh.
CACHE_AMAX = tl.constexpr(1e-4)
# Of activation scales: LOCAL_ABSMAX_ABS in SGLang's jit_kernel/csrc/gemm/per_token_group_quant_8bit_v2.cuh.
ACTIVATION_AMAX = tl.constexpr(1e-10)


@triton.jit(do_not_specialize=["x_stride", "scale_row", "scale_group"])
def norm_quantise(
    x,
    weight,
    normed,
    q,
    scales,
    x_stride,
    scale_row,
    scale_group,
    eps,
    WIDTH: tl.constexpr,
    QUANT: tl.constexpr,
    UE8M0: tl.constexpr,
):
    """RMSNorm of a row, then its FP8 groups. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    _norm_quantise(x + row * x_stride * UNIT, weight, normed, q, scales, row, scale_row, scale_group, eps, WIDTH, QUANT, UE8M0)


@triton.jit(do_not_specialize=["x_stride", "scale_row", "scale_group"])
def swiglu_quantise(
    gate_up,
    q,
    scales,
    x_stride,
    scale_row,
    scale_group,
    limit,
    WIDTH: tl.constexpr,
    QUANT: tl.constexpr,
    LIMIT: tl.constexpr,
    UE8M0: tl.constexpr,
):
    """``silu(gate) * up`` of a row [gate | up], both clamped to the limit, rounded to bf16, then its FP8 groups. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    source = gate_up + row * x_stride * UNIT + column
    gate = tl.load(source).to(tl.float32)
    up = tl.load(source + WIDTH).to(tl.float32)
    if LIMIT:
        most = tl.cast(limit, tl.float32)
        gate = tl.minimum(gate, most)
        up = tl.minimum(tl.maximum(up, -most), most)
    value = gate * tl.sigmoid(gate) * up
    _quantise(value.to(tl.bfloat16), q, scales, row, scale_row, scale_group, WIDTH, QUANT, UE8M0)


@triton.jit(do_not_specialize=["x_stride", "scale_row", "scale_group"])
def quantise(x, q, scales, x_stride, scale_row, scale_group, WIDTH: tl.constexpr, QUANT: tl.constexpr, UE8M0: tl.constexpr):
    """FP8 groups of a row whose producer could not be fused. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    value = tl.load(x + row * x_stride * UNIT + tl.arange(0, WIDTH))
    _quantise(value, q, scales, row, scale_row, scale_group, WIDTH, QUANT, UE8M0)


@triton.jit(do_not_specialize=["kv_stride", "page_stride"])
def kv_store(kv, weight, rotation, positions, slots, cache, cache_bf16, kv_stride, page_stride, eps, PAGE: tl.constexpr):
    """RMSNorm and rotary embedding of a row of KV, into the paged FP8 cache. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    _kv_store(
        kv + row * kv_stride * UNIT, weight, rotation, positions + row, slots + row, cache, cache_bf16, page_stride, eps, PAGE
    )


@triton.jit(do_not_specialize=["stride", "page_stride", "scale_row", "scale_group"])
def latents(
    qkv,
    q_weight,
    normed,
    q,
    scales,
    kv_weight,
    rotation,
    positions,
    slots,
    cache,
    cache_bf16,
    stride,
    page_stride,
    scale_row,
    scale_group,
    eps,
    Q_WIDTH: tl.constexpr,
    QUANT: tl.constexpr,
    UE8M0: tl.constexpr,
    PAGE: tl.constexpr,
):
    """All that follows the fused projection [q latent | kv]: norm and FP8 groups of one, norm, rope and store of the other. Grid: (rows, 2)."""
    row = tl.program_id(0).to(tl.int64)
    source = qkv + row * stride * UNIT
    if tl.program_id(1) == 0:
        _norm_quantise(source, q_weight, normed, q, scales, row, scale_row, scale_group, eps, Q_WIDTH, QUANT, UE8M0)
    else:
        _kv_store(source + Q_WIDTH, kv_weight, rotation, positions + row, slots + row, cache, cache_bf16, page_stride, eps, PAGE)


@triton.jit
def streams_update(x, residual, post, comb, streams, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """mHC-post: ``streams[o] = post[o] * x + sum over i of comb[i, o] * residual[i]``. Grid: (rows, hidden / BLOCK)."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    old = residual + row * (STREAMS * HIDDEN) + h
    update = tl.load(x + row * HIDDEN + h).to(tl.float32)
    r0 = tl.load(old).to(tl.float32)
    r1 = tl.load(old + HIDDEN).to(tl.float32)
    r2 = tl.load(old + 2 * HIDDEN).to(tl.float32)
    r3 = tl.load(old + 3 * HIDDEN).to(tl.float32)
    for stream in tl.static_range(4):
        mix = comb + row * (STREAMS * STREAMS) + stream
        value = tl.load(post + row * STREAMS + stream) * update
        value += tl.load(mix) * r0
        value += tl.load(mix + STREAMS) * r1
        value += tl.load(mix + 2 * STREAMS) * r2
        value += tl.load(mix + 3 * STREAMS) * r3
        tl.store(streams + row * (STREAMS * HIDDEN) + stream * HIDDEN + h, value.to(tl.bfloat16))


@triton.jit
def streams_combine(streams, pre, out, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """The weighted sum of the four streams, which mHC-pre does itself, for an engine that has its weights already. Grid: (rows, hidden / BLOCK)."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.zeros([BLOCK], tl.float32)
    for stream in tl.static_range(4):
        each = tl.load(streams + row * (STREAMS * HIDDEN) + stream * HIDDEN + h).to(tl.float32)
        value += tl.load(pre + row * STREAMS + stream) * each
    tl.store(out + row * HIDDEN + h, value.to(tl.bfloat16))


@triton.jit
def _norm_quantise(
    source,
    weight,
    normed,
    q,
    scales,
    row,
    scale_row,
    scale_group,
    eps,
    WIDTH: tl.constexpr,
    QUANT: tl.constexpr,
    UE8M0: tl.constexpr,
):
    column = tl.arange(0, WIDTH)
    value = tl.load(source + column).to(tl.float32)
    gain = tl.load(weight + column).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + tl.cast(eps, tl.float32))
    rounded = (value * gain).to(tl.bfloat16)
    tl.store(normed + row * WIDTH + column, rounded)
    _quantise(rounded, q, scales, row, scale_row, scale_group, WIDTH, QUANT, UE8M0)


@triton.jit
def _quantise(value, q, scales, row, scale_row, scale_group, WIDTH: tl.constexpr, QUANT: tl.constexpr, UE8M0: tl.constexpr):
    """FP8 groups of QUANT values, from bf16 ones: what an unfused quantisation would have read."""
    GROUPS: tl.constexpr = WIDTH // QUANT
    group = tl.arange(0, GROUPS)
    tile = tl.reshape(value.to(tl.float32), [GROUPS, QUANT])
    amax = tl.maximum(tl.max(tl.abs(tile), axis=1), ACTIVATION_AMAX)
    if UE8M0:
        exponent = _ceil_exponent(amax)
        scale = (exponent << 23).to(tl.float32, bitcast=True)
        factor = _inverse(exponent)
    else:
        scale = amax * (1.0 / FP8_MAX)
        factor = tl.div_rn(tl.full([GROUPS], FP8_MAX, tl.float32), amax)
    scaled = tl.minimum(tl.maximum(tile * factor[:, None], -FP8_MAX), FP8_MAX)
    column = group[:, None] * QUANT + tl.arange(0, QUANT)[None, :]
    tl.store(q + row * WIDTH + column, scaled.to(tl.float8e4nv))
    tl.store(scales + row * scale_row + group.to(tl.int64) * scale_group, scale)


@triton.jit
def _kv_store(source, weight, rotation, position, slot, cache, cache_bf16, page_stride, eps, PAGE: tl.constexpr):
    """A slot below zero is a padded row: it is not stored. Seven groups of 64 become e4m3 with a UE8M0 scale each; the last 64 are rotated."""
    slot = tl.load(slot).to(tl.int64)
    if slot >= 0:
        group = tl.arange(0, 8)
        column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        value = tl.load(source + column).to(tl.float32)
        gain = tl.load(weight + column).to(tl.float32)
        pair = tl.arange(0, ROPE // 2)
        real = tl.load(source + NOPE + 2 * pair).to(tl.float32)
        imaginary = tl.load(source + NOPE + 2 * pair + 1).to(tl.float32)
        real_gain = tl.load(weight + NOPE + 2 * pair).to(tl.float32)
        imaginary_gain = tl.load(weight + NOPE + 2 * pair + 1).to(tl.float32)
        turn = rotation + tl.load(position).to(tl.int64) * ROPE + 2 * pair
        cosine = tl.load(turn)
        sine = tl.load(turn + 1)

        norm = tl.rsqrt(tl.sum(tl.sum(value * value, axis=1), axis=0) / HEAD + tl.cast(eps, tl.float32))
        value = value * norm * gain
        exponent = _ceil_exponent(tl.maximum(tl.max(tl.abs(value), axis=1), CACHE_AMAX))
        scaled = tl.minimum(tl.maximum(value * _inverse(exponent)[:, None], -FP8_MAX), FP8_MAX)

        page = slot // PAGE
        place = slot - page * PAGE
        token = page * page_stride * 16 + place * TOKEN_BYTES
        stored = group < NOPE // GROUP
        tl.store(cache + token + column, scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True), mask=stored[:, None])
        footer = page * page_stride * 16 + PAGE * TOKEN_BYTES + place * SCALE_BYTES
        tl.store(cache + footer + group, exponent.to(tl.uint8), mask=stored)
        real = real * norm * real_gain
        imaginary = imaginary * norm * imaginary_gain
        rope = cache_bf16 + (token + NOPE) // 2 + 2 * pair
        tl.store(rope, (real * cosine - imaginary * sine).to(tl.bfloat16))
        tl.store(rope + 1, (real * sine + imaginary * cosine).to(tl.bfloat16))


@triton.jit
def _ceil_exponent(amax):
    """The biased exponent of the least power of two that is not below ``amax / 448``; the division is exact where it matters, at powers of two."""
    bits = tl.div_rn(amax, tl.full(amax.shape, FP8_MAX, tl.float32)).to(tl.int32, bitcast=True)
    return (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)


@triton.jit
def _inverse(exponent):
    """``2 ** (127 - exponent)``."""
    return ((254 - exponent) << 23).to(tl.float32, bitcast=True)


settle(globals())
