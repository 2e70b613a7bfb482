"""Glue in plain torch: float64 arithmetic, and the roundings to bf16 that an engine makes where it stores a value between two kernels.

Source of the definitions: SGLang 0.5.15.post1, jit_kernel/csrc/deepseek_v4/main_norm_rope.cuh and silu_and_mul_masked_post_quant.cuh, and
jit_kernel/csrc/gemm/per_token_group_quant_8bit_v2.cuh (Apache-2.0).
"""

from __future__ import annotations

import torch

from ..mla_decode import layout
from .op import GROUP, CacheRows, Quantised

_FP8_MAX = 448.0


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """float64."""
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


def swiglu(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


def quantise(x: torch.Tensor, ue8m0: bool) -> Quantised:
    """Scales and e4m3 values of a bf16 activation."""
    groups = x.double().unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1).clamp(min=1e-10) / _FP8_MAX).float()
    if ue8m0:
        # By the bits: a logarithm can miss a power of two by its last digit, and so by a factor of two.
        fraction, exponent = torch.frexp(scales)
        scales = torch.ldexp(torch.ones_like(scales), exponent - (fraction == 0.5).int())
    values = (groups / scales.double()[..., None]).clamp(-_FP8_MAX, _FP8_MAX).float().to(torch.float8_e4m3fn)
    return Quantised(values.flatten(-2), scales)


def dequantise(quantised: Quantised) -> torch.Tensor:
    """float64."""
    return (quantised.values.double().unflatten(-1, (-1, GROUP)) * quantised.scales.double()[..., None]).flatten(-2)


def kv_rows(kv: torch.Tensor, weight: torch.Tensor, eps: float, rows: CacheRows) -> torch.Tensor:
    """What the cache should hold for each row before quantisation, [rows, 512] float64."""
    normed = rms_norm(kv, weight, eps)
    turn = torch.view_as_complex(rows.rotation.double()[rows.positions.long()].unflatten(-1, (-1, 2)).contiguous())
    pairs = torch.view_as_complex(normed[:, layout.NOPE_DIM :].unflatten(-1, (-1, 2)).contiguous())
    return torch.cat([normed[:, : layout.NOPE_DIM], torch.view_as_real(pairs * turn).flatten(-2)], dim=-1)


def read_cache(rows: CacheRows) -> tuple[torch.Tensor, torch.Tensor]:
    """The stored rows, dequantised, [rows, 512] float64, and their scales, [rows, 7] float64."""
    stored, scales = [], []
    for slot in rows.slots.tolist():
        page, place = divmod(slot, rows.page_size)
        token = rows.cache[page, place * layout.TOKEN_BYTES : (place + 1) * layout.TOKEN_BYTES]
        footer = rows.page_size * layout.TOKEN_BYTES + place * layout.SCALE_BYTES
        exponents = rows.cache[page, footer : footer + layout.GROUPS].double() - 127
        scales.append(torch.exp2(exponents))
        nope = token[: layout.NOPE_DIM].view(torch.float8_e4m3fn).double().unflatten(0, (layout.GROUPS, -1)) * scales[-1][:, None]
        stored.append(torch.cat([nope.flatten(), token[layout.NOPE_DIM :].view(torch.bfloat16).double()]))
    return torch.stack(stored), torch.stack(scales)
