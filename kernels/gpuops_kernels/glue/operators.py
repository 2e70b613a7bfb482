"""The launches of this family, also registered as torch operators.

Under torch.compile a call is one opaque operator: Inductor neither recompiles the kernels nor retypes their scalars. Arguments have been checked.
"""

from __future__ import annotations

import torch

from .. import configs
from . import kernel

GROUP = 128
"""Values of an activation that share a scale."""

UNIT_BYTES = 16
"""Strides of rows and pages are given to the kernels in units of so many bytes."""


def quantise(x: torch.Tensor, q: torch.Tensor, scales: torch.Tensor, ue8m0: bool) -> None:
    rows, width = q.shape
    kernel.quantise[(rows,)](
        x,
        q,
        scales,
        _units(x),
        *scales.stride(),
        WIDTH=width,
        QUANT=GROUP,
        UE8M0=ue8m0,
        **_options(x, "quantise", f"width{width}"),
    )


def norm_quantise(
    x: torch.Tensor, weight: torch.Tensor, normed: torch.Tensor, q: torch.Tensor, scales: torch.Tensor, eps: float, ue8m0: bool
) -> None:
    rows, width = q.shape
    kernel.norm_quantise[(rows,)](
        x,
        weight,
        normed,
        q,
        scales,
        _units(x),
        *scales.stride(),
        eps,
        WIDTH=width,
        QUANT=GROUP,
        UE8M0=ue8m0,
        **_options(x, "norm_quantise", f"width{width}"),
    )


def swiglu_quantise(gate_up: torch.Tensor, q: torch.Tensor, scales: torch.Tensor, limit: float | None, ue8m0: bool) -> None:
    rows, width = q.shape
    kernel.swiglu_quantise[(rows,)](
        gate_up,
        q,
        scales,
        _units(gate_up),
        *scales.stride(),
        0.0 if limit is None else limit,
        WIDTH=width,
        QUANT=GROUP,
        LIMIT=limit is not None,
        UE8M0=ue8m0,
        **_options(gate_up, "swiglu_quantise", f"width{width}"),
    )


def kv_store(
    kv: torch.Tensor,
    weight: torch.Tensor,
    rotation: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    eps: float,
    page_size: int,
) -> None:
    kernel.kv_store[(kv.shape[0],)](
        kv,
        weight,
        rotation,
        positions,
        slots,
        cache,
        cache.view(torch.bfloat16),
        _units(kv),
        cache.stride(0) // UNIT_BYTES,
        eps,
        PAGE=page_size,
        **_options(kv, "kv_store", f"page{page_size}"),
    )


def latents(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    normed: torch.Tensor,
    q: torch.Tensor,
    scales: torch.Tensor,
    kv_weight: torch.Tensor,
    rotation: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    eps: float,
    page_size: int,
    ue8m0: bool,
) -> None:
    rows, width = q.shape
    kernel.latents[(rows, 2)](
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
        cache.view(torch.bfloat16),
        _units(qkv),
        cache.stride(0) // UNIT_BYTES,
        *scales.stride(),
        eps,
        Q_WIDTH=width,
        QUANT=GROUP,
        UE8M0=ue8m0,
        PAGE=page_size,
        **_options(qkv, "latents", f"width{width}-page{page_size}"),
    )


def streams_update(
    x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, streams: torch.Tensor
) -> None:
    rows, _, hidden = residual.shape
    options = _options(x, "streams_update", f"hidden{hidden}")
    kernel.streams_update[(rows, hidden // options["BLOCK"])](x, residual, post, comb, streams, HIDDEN=hidden, **options)


def streams_combine(streams: torch.Tensor, pre: torch.Tensor, out: torch.Tensor) -> None:
    rows, _, hidden = streams.shape
    options = _options(out, "streams_combine", f"hidden{hidden}")
    kernel.streams_combine[(rows, hidden // options["BLOCK"])](streams, pre, out, HIDDEN=hidden, **options)


torch.library.custom_op("gpuops::glue_quantise", quantise, mutates_args=("q", "scales"))
torch.library.custom_op("gpuops::glue_norm_quantise", norm_quantise, mutates_args=("normed", "q", "scales"))
torch.library.custom_op("gpuops::glue_swiglu_quantise", swiglu_quantise, mutates_args=("q", "scales"))
torch.library.custom_op("gpuops::glue_kv_store", kv_store, mutates_args=("cache",))
torch.library.custom_op("gpuops::glue_latents", latents, mutates_args=("normed", "q", "scales", "cache"))
torch.library.custom_op("gpuops::glue_streams_update", streams_update, mutates_args=("streams",))
torch.library.custom_op("gpuops::glue_streams_combine", streams_combine, mutates_args=("out",))


def _units(rows: torch.Tensor) -> int:
    return rows.stride(0) * rows.element_size() // UNIT_BYTES


def _options(tensor: torch.Tensor, name: str, shape: str) -> dict[str, int]:
    return configs.lookup(tensor.device, f"glue.{name}", shape).options
