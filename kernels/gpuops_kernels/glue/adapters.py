"""The engine's own signatures in front of :mod:`.op`, for SGLang 0.5.13 to 0.5.23."""

from __future__ import annotations

import torch

from . import op


def fused_k_norm_rope_flashmla(
    kv: torch.Tensor,
    kv_weight: torch.Tensor,
    eps: float,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    kvcache: torch.Tensor,
    page_size: int,
) -> None:
    """In place of the function of this name in ``sglang.jit_kernel.dsv4.elementwise`` (0.5.15.post1).

    Args:
        freqs_cis: [positions, 32] complex64.
        kvcache: [pages, page bytes] uint8.
    """
    rotation = torch.view_as_real(freqs_cis).flatten(-2)
    op.kv_store(kv, kv_weight, eps, op.CacheRows(kvcache.view(torch.uint8), page_size, out_loc, positions, rotation))


def mhc_post(x: torch.Tensor, residual: torch.Tensor, post_layer_mix: torch.Tensor, comb_res_mix: torch.Tensor) -> torch.Tensor:
    """In place of ``mhc_post`` of ``sglang.srt.layers.mhc`` (to 0.5.15.post1) and ``sglang.kernels.ops.layernorm.mhc`` (from 0.5.16)."""
    return op.streams_update(x.contiguous(), residual.contiguous(), post_layer_mix.contiguous(), comb_res_mix.contiguous())


def mhc_combine(x_flat: torch.Tensor, pre: torch.Tensor, hc: int, out_dtype: torch.dtype) -> torch.Tensor:
    """In place of ``mhc_combine`` of ``sglang.kernels.ops.layernorm.mhc`` (0.5.21 to 0.5.23)."""
    return op.streams_combine(x_flat.unflatten(1, (hc, -1)).contiguous(), pre.contiguous()).to(out_dtype)
