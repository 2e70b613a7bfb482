"""Glue as an engine calls it. Every call is one launch whose grid follows from the number of rows; nothing is read back.

Activation quantisation: groups of 128 values of a row, one fp32 scale each, ``value = e4m3 * scale``; with ``ue8m0`` the scales are powers of two.
The paged cache is the engine's uint8 buffer (see :mod:`gpuops_kernels.mla_decode.layout`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..mla_decode import layout
from . import operators

GROUP = operators.GROUP
STREAMS = 4


@dataclass(frozen=True)
class Quantised:
    """A quantised activation.

    Args:
        values: [rows, width] e4m3, contiguous.
        scales: [rows, width / 128] fp32.
    """

    values: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True)
class CacheRows:
    """Where the rows of a batch go in the paged FP8 cache.

    Args:
        cache: [pages, page bytes] uint8, the engine's buffer; rows a multiple of 16 bytes apart.
        page_size: tokens of a page: 256, 64 or 2.
        slots: [rows] int32 or int64, page x page size + place; below zero for a padded row, which is not stored.
        positions: [rows] int32 or int64, rows of ``rotation``.
        rotation: [positions, 64] fp32, cosine and sine of each of 32 pairs in turn (``torch.view_as_real(freqs_cis).flatten(1)``).
    """

    cache: torch.Tensor
    page_size: int
    slots: torch.Tensor
    positions: torch.Tensor
    rotation: torch.Tensor


def quantise(x: torch.Tensor, *, ue8m0: bool = False, scales: torch.Tensor | None = None) -> Quantised:
    """Quantise an activation whose producer could not be fused.

    Args:
        x: [rows, width] bf16, columns contiguous, rows a multiple of 16 bytes apart; width a power of two of at least 128.
        scales: [rows, width / 128] fp32 with any strides (a column-major view, for instance), allocated row-major when None.

    Raises:
        ValueError: a dtype, shape or stride is not as above.
    """
    rows, width = x.shape
    result = _quantised(x, width, scales)
    if rows:
        launch = torch.ops.gpuops.glue_quantise if torch.compiler.is_compiling() else operators.quantise
        launch(x, result.values, result.scales, ue8m0)
    return result


def norm_quantise(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    ue8m0: bool = False,
    normed: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Quantised]:
    """RMSNorm, and the quantisation of its result.

    Args:
        x: [rows, width] bf16 as for :func:`quantise`; it may be a slice of a wider row.
        weight: [width] bf16 or fp32.
        normed: [rows, width] bf16, contiguous, allocated when None.
        scales: as for :func:`quantise`.

    Returns:
        The normed rows in bf16 and quantised.

    Raises:
        ValueError: a dtype, shape or stride is not as above.
    """
    rows, width = x.shape
    _require("weight", weight, (width,), weight.dtype)
    normed = x.new_empty((rows, width)) if normed is None else normed
    _require("normed", normed, (rows, width), torch.bfloat16)
    result = _quantised(x, width, scales)
    if rows:
        launch = torch.ops.gpuops.glue_norm_quantise if torch.compiler.is_compiling() else operators.norm_quantise
        launch(x, weight, normed, result.values, result.scales, eps, ue8m0)
    return normed, result


def swiglu_quantise(
    gate_up: torch.Tensor, limit: float | None = None, *, ue8m0: bool = False, scales: torch.Tensor | None = None
) -> Quantised:
    """``silu(gate) * up``, and the quantisation of its result.

    Args:
        gate_up: [rows, 2 x width] bf16, as for :func:`quantise`; the gate comes first.
        limit: the gate is clamped from above, ``up`` from both sides; None clamps neither.
        scales: as for :func:`quantise`.

    Raises:
        ValueError: a dtype, shape or stride is not as above.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    result = _quantised(gate_up, width, scales)
    if rows:
        launch = torch.ops.gpuops.glue_swiglu_quantise if torch.compiler.is_compiling() else operators.swiglu_quantise
        launch(gate_up, result.values, result.scales, limit, ue8m0)
    return result


def kv_store(kv: torch.Tensor, weight: torch.Tensor, eps: float, rows: CacheRows) -> None:
    """RMSNorm, rotary embedding of the last 64 values, quantisation of the first 448, and the store into the paged cache.

    Args:
        kv: [rows, 512] bf16, columns contiguous, rows a multiple of 16 bytes apart.
        weight: [512] bf16 or fp32.

    Raises:
        ValueError: a dtype, shape or stride is not as above.
    """
    count, _ = kv.shape
    _require_rows("kv", kv, (count, layout.HEAD_DIM))
    _require("weight", weight, (layout.HEAD_DIM,), weight.dtype)
    _require_cache(rows, count)
    if count:
        launch = torch.ops.gpuops.glue_kv_store if torch.compiler.is_compiling() else operators.kv_store
        launch(kv, weight, rows.rotation, rows.positions, rows.slots, rows.cache, eps, rows.page_size)


def latents(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    kv_weight: torch.Tensor,
    eps: float,
    rows: CacheRows,
    *,
    ue8m0: bool = False,
    normed: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Quantised]:
    """What follows the fused projection of an attention layer, in one launch: :func:`norm_quantise` of q's latent, :func:`kv_store` of kv.

    Args:
        qkv: [rows, q width + 512] bf16, columns contiguous, rows a multiple of 16 bytes apart.
        q_weight, kv_weight: [q width] and [512], bf16 or fp32.

    Returns:
        q's latent, normed in bf16 and quantised.

    Raises:
        ValueError: a dtype, shape or stride is not as above.
    """
    count, width = qkv.shape[0], qkv.shape[1] - layout.HEAD_DIM
    _require("q_weight", q_weight, (width,), q_weight.dtype)
    _require("kv_weight", kv_weight, (layout.HEAD_DIM,), kv_weight.dtype)
    _require_cache(rows, count)
    normed = qkv.new_empty((count, width)) if normed is None else normed
    _require("normed", normed, (count, width), torch.bfloat16)
    result = _quantised(qkv, width, scales)
    if count:
        launch = torch.ops.gpuops.glue_latents if torch.compiler.is_compiling() else operators.latents
        launch(
            qkv,
            q_weight,
            normed,
            result.values,
            result.scales,
            kv_weight,
            rows.rotation,
            rows.positions,
            rows.slots,
            rows.cache,
            eps,
            rows.page_size,
            ue8m0,
        )
    return normed, result


def streams_update(
    x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, *, streams: torch.Tensor | None = None
) -> torch.Tensor:
    """mHC-post where no mHC-pre follows (elsewhere :func:`gpuops_kernels.mhc.op.post_pre` does both).

    Args:
        x: [rows, hidden] bf16, contiguous.
        residual: [rows, 4, hidden] bf16, contiguous. It may be ``streams``: each element is read before it is written.
        post: [rows, 4] or [rows, 4, 1] fp32, contiguous.
        comb: [rows, 4, 4] fp32, contiguous; ``comb[r, i, o]`` is the share of stream i in the next stream o.

    Returns:
        ``streams``, [rows, 4, hidden] bf16.

    Raises:
        ValueError: a dtype, shape or stride is not as above.
    """
    rows, _, hidden = residual.shape
    _require("x", x, (rows, hidden), torch.bfloat16)
    _require("residual", residual, (rows, STREAMS, hidden), torch.bfloat16)
    _require("post", post, (rows, STREAMS, 1) if post.dim() == 3 else (rows, STREAMS), torch.float32)
    _require("comb", comb, (rows, STREAMS, STREAMS), torch.float32)
    streams = torch.empty_like(residual) if streams is None else streams
    _require("streams", streams, (rows, STREAMS, hidden), torch.bfloat16)
    if rows:
        launch = torch.ops.gpuops.glue_streams_update if torch.compiler.is_compiling() else operators.streams_update
        launch(x, residual, post, comb, streams)
    return streams


def streams_combine(streams: torch.Tensor, pre: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The weighted sum of the four streams.

    Args:
        streams: [rows, 4, hidden] bf16 or fp32, contiguous.
        pre: [rows, 4] fp32, contiguous.

    Returns:
        ``out``, [rows, hidden] bf16.

    Raises:
        ValueError: a dtype, shape or stride is not as above.
    """
    rows, _, hidden = streams.shape
    _require("streams", streams, (rows, STREAMS, hidden), streams.dtype)
    _require("pre", pre, (rows, STREAMS), torch.float32)
    out = streams.new_empty((rows, hidden), dtype=torch.bfloat16) if out is None else out
    _require("out", out, (rows, hidden), torch.bfloat16)
    if rows:
        launch = torch.ops.gpuops.glue_streams_combine if torch.compiler.is_compiling() else operators.streams_combine
        launch(streams, pre, out)
    return out


def _quantised(x: torch.Tensor, width: int, scales: torch.Tensor | None) -> Quantised:
    rows = x.shape[0]
    _require_rows("x", x, tuple(x.shape))
    if width < GROUP or width & (width - 1):
        raise ValueError(f"x has {width} values a row to quantise; a power of two of at least {GROUP} is needed")
    values = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((rows, width // GROUP), dtype=torch.float32, device=x.device) if scales is None else scales
    if tuple(scales.shape) != (rows, width // GROUP) or scales.dtype != torch.float32:
        raise ValueError(f"scales is not a [{rows}, {width // GROUP}] tensor of torch.float32 but {_described(scales)}")
    return Quantised(values, scales)


def _require_cache(rows: CacheRows, count: int) -> None:
    cache = rows.cache
    if cache.dim() != 2 or cache.dtype != torch.uint8 or cache.stride(1) != 1 or cache.stride(0) % operators.UNIT_BYTES:
        raise ValueError(
            f"cache is not a [pages, page bytes] tensor of torch.uint8, pages a multiple of 16 bytes apart, but {_described(cache)}"
        )
    if cache.shape[1] < rows.page_size * layout.BYTES_PER_TOKEN:
        raise ValueError(f"a page of {rows.page_size} tokens does not fit the cache's {cache.shape[1]} bytes a page")
    for name, indices in (("slots", rows.slots), ("positions", rows.positions)):
        if tuple(indices.shape) != (count,) or indices.dtype not in (torch.int32, torch.int64) or not indices.is_contiguous():
            raise ValueError(f"{name} is not a contiguous [{count}] tensor of int32 or int64 but {_described(indices)}")
    _require("rotation", rows.rotation, (rows.rotation.shape[0], layout.ROPE_DIM), torch.float32)


def _require_rows(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    aligned = tensor.stride(1) == 1 and tensor.stride(0) * tensor.element_size() % operators.UNIT_BYTES == 0
    if tuple(tensor.shape) != shape or tensor.dtype != torch.bfloat16 or not aligned:
        raise ValueError(
            f"{name} is not a {list(shape)} tensor of torch.bfloat16, rows a multiple of 16 bytes apart, but {_described(tensor)}"
        )


def _require(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(f"{name} is not a contiguous {list(shape)} tensor of {dtype} but {_described(tensor)}")


def _described(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype} with strides {list(tensor.stride())}"
