"""From e4m3 values and UE8M0 scales to what tensor cores multiply, in registers.

Scales are powers of two: multiplying by them is exact. With ``FLOAT16`` a pair of e4m3 values becomes a scaled pair of float16 in two instructions;
by way of float32 to bf16 it takes six, and those are most of the decode's loop (1,109 instructions a tile of 32 tokens against 742 on sm_90, 1,037
against 660 on sm_120). float16 also keeps three more bits of queries and weights. Its range suffices for what the engine stores: |value| <= 65,504,
and what lies below 6e-5 is rounded to multiples of 6e-8. ``FLOAT16`` 0 is for a cache of which that cannot be said.
"""

import triton
import triton.language as tl

GROUP = tl.constexpr(64)


@triton.jit
def dequantised(words, low, high, FIRST: tl.constexpr, WIDTH: tl.constexpr, FLOAT16: tl.constexpr, NATIVE: tl.constexpr):
    """The values of a tile of words, scaled, as float16 or bf16 [tokens, WIDTH]."""
    GROUPS: tl.constexpr = WIDTH // GROUP
    scales = _scales(low, high, FIRST // GROUP, GROUPS)
    if FLOAT16 and NATIVE:
        first, second = _scaled_pairs(words, _for_each_of(_twice(scales), words.shape[0], GROUPS, GROUP // 4))
        even = tl.join(_half(first, 0), _half(second, 0))
        odd = tl.join(_half(first, 1), _half(second, 1))
        values = _flat(even, odd, words.shape[0], WIDTH)
    else:
        # In float32: converting e4m3 to bf16 directly takes F2F.BF16.F16, at a quarter of the rate.
        even = tl.join(_byte(words, 0), _byte(words, 2))
        odd = tl.join(_byte(words, 1), _byte(words, 3))
        values = _flat(even, odd, words.shape[0], WIDTH)
        values = (values * _for_each_of(scales, words.shape[0], GROUPS, GROUP)).to(tl.float16 if FLOAT16 else tl.bfloat16)
    return values


@triton.jit
def _flat(even, odd, TOKENS: tl.constexpr, WIDTH: tl.constexpr):
    """Values in order from those at even and at odd places.

    The maximum over an axis of one changes nothing but hides the joins, whose layout the compiler would otherwise choose for the products: not the
    blocked one in which values go to swizzled shared memory 128 bits at a time. (``tl.max`` would make float32 of them.)
    """
    return tl.reduce(tl.reshape(tl.join(even, odd), [TOKENS, WIDTH, 1]), 2, _larger)


@triton.jit
def _larger(left, right):
    return tl.maximum(left, right)


@triton.jit
def _for_each_of(scales, TOKENS: tl.constexpr, GROUPS: tl.constexpr, EACH: tl.constexpr):
    """[tokens, groups] repeated for each of a group's values (or words)."""
    if GROUPS == 1:
        wide = tl.broadcast_to(scales, [TOKENS, EACH])
    else:
        wide = tl.reshape(tl.broadcast_to(scales[:, :, None], [TOKENS, GROUPS, EACH]), [TOKENS, GROUPS * EACH])
    return wide


@triton.jit
def _byte(words, INDEX: tl.constexpr):
    return (words >> (8 * INDEX)).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def _half(words, INDEX: tl.constexpr):
    return (words >> (16 * INDEX)).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def _twice(scales):
    """Each scale as float16 in both halves of a word."""
    return tl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $1, $1;", "=r,f", [scales], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _scaled_pairs(words, scales):
    """The four e4m3 values of each word times its scale, as two words of two float16 values."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        .reg .b32 first, second;
        mov.b32 {low, high}, $2;
        cvt.rn.f16x2.e4m3x2 first, low;
        cvt.rn.f16x2.e4m3x2 second, high;
        mul.rn.f16x2 $0, first, $3;
        mul.rn.f16x2 $1, second, $3;
        }""",
        "=r,=r,r,r",
        [words, scales],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _scales(low, high, FIRST: tl.constexpr, GROUPS: tl.constexpr):
    """The scales of some groups as float32 [tokens, GROUPS], from the eight bytes of each token's footer; no tile has groups of both words."""
    g = FIRST + tl.arange(0, GROUPS)[None, :]
    if FIRST + GROUPS <= 4:
        word = low[:, None]
    else:
        word = high[:, None]
    # UE8M0 is the exponent of a float32; 2^-127, which is not normal there, becomes 2^-126.
    return (tl.maximum((word >> ((g % 4) * 8)) & 255, 1) << 23).to(tl.float32, bitcast=True)
