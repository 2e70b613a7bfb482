"""Sparse MLA decode as an engine calls it: one split-K launch over both caches, and one launch that combines.

:func:`sparse_mla_decode` is the operation; two functions with SGLang's names and signatures stand before it. Both SGLang 0.5.15.post1
(``sglang.srt.layers.attention.flash_mla_sm120``) and 0.5.23 (``sglang.kernels.ops.attention.flash_mla_sm120``) call
``flash_mla_with_kvcache_sm120(**kwargs)`` from ``DeepseekV4AttnBackend.forward``, imported at each call, with the same keywords, and take element 0
of the result; below it, in both, lies ``flash_mla_sparse_decode_triton`` of the module ``flash_mla_sm120_triton`` beside it, also imported at each
call. So one function of each name serves both versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from .. import configs, devices
from . import kernel, layout

# The kernel takes strides in units of 16 bytes.
_UNIT = 16
_Q_UNIT = _UNIT // 2

# In the interpreter there is nothing to launch early, and no instruction to wait with.
_PDL = not triton.knobs.runtime.interpret
_DEPENDENT = {"launch_pdl": True} if _PDL else {}


@dataclass(frozen=True)
class Plan:
    """How a batch is cut up: from shapes and constants alone, so that a captured graph serves every data.

    Args:
        head_tiles: tiles of BLOCK_H heads.
        splits: shares of a row's tokens, each a program; 1 needs no combine launch.
        split: constants and launch options of the split kernel.
        combine: constants and launch options of the combine kernel.
    """

    head_tiles: int
    splits: int
    split: dict[str, int]
    combine: dict[str, int]


def sparse_mla_decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    lengths: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    extra_cache: torch.Tensor | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_lengths: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each query row over its selected tokens of one or two paged caches.

    Args:
        q: bf16 [B, H, 512]; the last axis contiguous, the other strides multiples of 8. H is 1 to 128.
        cache: e4m3 or uint8 [pages, page size, 1, 584], a view of the engine's pool: ``stride(0)`` is the bytes of a page with its padding (a
            multiple of 16), the page size a power of two. See :mod:`.layout`.
        indices: int32 [B, topk], token slots (page * page size + offset), -1 where there is none; the last axis contiguous.
        scale: what scores are multiplied with, 512^-0.5 for DeepSeek-V4.
        lengths: int32 [B], how many of a row's indices count, clamped to 0..topk on the device; None means all.
        sink: float32 [at least H], a score without a value, in the denominator of every row's softmax; None means none.
        extra_cache, extra_indices, extra_lengths: a second cache, its indices and lengths; None for layers without compression.
        out: bf16 [B, H, 512] to write to, as q strided but for contiguous heads; allocated when None.
        lse: float32 [B, H] to write to; allocated when None.

    Returns:
        out, and lse: the natural logarithm of the sum of exp(score), without the sink (as FlashMLA returns it). A row that selects nothing has
        zeros in out and -inf in lse.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
        configs.MissingConfigurationError

    Lengths and indices are read on the device, and the grid depends on the batch, the widths of the index tables and the device alone: the call
    can be captured in a CUDA graph and replayed with other data. Slots outside the pool are not checked.
    """
    batch, heads, _ = q.shape
    if out is None:
        out = torch.empty((batch, heads, layout.HEAD_DIM), dtype=torch.bfloat16, device=q.device)
    if lse is None:
        lse = torch.empty((batch, heads), dtype=torch.float32, device=q.device)
    # torch.compile sees one opaque operator: it need not trace checks and configurations, and Inductor cannot retype the scalars.
    launch = torch.ops.gpuops.sparse_mla_decode if torch.compiler.is_compiling() else _launch
    launch(q, cache, indices, scale, lengths, sink, extra_cache, extra_indices, extra_lengths, out, lse)
    return out, lse


def flash_mla_with_kvcache_sm120(*, heads: int | None = None, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of the function of this name in ``flash_mla_sm120``.

    Args:
        heads: compute only the first ``heads``, and leave the rest of the result unwritten. Not an argument of SGLang's: 0.5.15.post1 pads a
            rank's heads to 64, leaves the padding of q uninitialised, and drops it from the result; a plugin that knows the rank's heads binds
            this with ``functools.partial``. None computes all.
        arguments: as SGLang passes them: q bf16 [B, 1, H, 512], k_cache [pages, page size, 1, 584], indices int32 [B, 1, topk], topk_length
            int32 [B] or None, attn_sink float32 [H] or None, head_dim_v (512), softmax_scale (None means 512^-0.5), extra_k_cache,
            extra_indices_in_kvcache, extra_topk_length (each may be None or absent). Others are ignored, as SGLang's function does.

    Returns:
        out bf16 [B, 1, H, 512] and lse float32 [B, H, 1] without the sink, as SGLang's torch implementation returns them. (Its Triton one
        includes the sink, its FlashInfer one returns None; no caller reads it.)

    Raises:
        ValueError
        configs.MissingConfigurationError
    """
    return flash_mla_sparse_decode_triton(
        arguments["q"],
        arguments["k_cache"],
        arguments["indices"],
        arguments.get("topk_length"),
        arguments.get("attn_sink"),
        arguments["head_dim_v"],
        arguments.get("softmax_scale"),
        arguments.get("extra_k_cache"),
        arguments.get("extra_indices_in_kvcache"),
        arguments.get("extra_topk_length"),
        heads=heads,
    )


def flash_mla_sparse_decode_triton(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: torch.Tensor | None,
    attn_sink: torch.Tensor | None,
    head_dim_v: int,
    softmax_scale: float | None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    *,
    heads: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of the function of this name in ``flash_mla_sm120_triton``; see :func:`flash_mla_with_kvcache_sm120`.

    Raises:
        ValueError: also when head_dim_v is not 512.
        configs.MissingConfigurationError
    """
    if head_dim_v != layout.HEAD_DIM:
        raise ValueError(f"head_dim_v has to be {layout.HEAD_DIM}; it is {head_dim_v}")
    rows = q.squeeze(1) if q.dim() == 4 else q
    batch, all_heads, _ = rows.shape
    computed = all_heads if heads is None else min(heads, all_heads)
    out = torch.empty((batch, all_heads, layout.HEAD_DIM), dtype=torch.bfloat16, device=q.device)
    with_extra = extra_k_cache is not None and extra_indices is not None
    _, lse = sparse_mla_decode(
        rows[:, :computed],
        k_cache,
        _two_axes(indices),
        scale=layout.HEAD_DIM**-0.5 if softmax_scale is None else softmax_scale,
        lengths=topk_length,
        sink=attn_sink,
        extra_cache=extra_k_cache if with_extra else None,
        extra_indices=_two_axes(extra_indices) if with_extra else None,
        extra_lengths=extra_topk_length if with_extra else None,
        out=out[:, :computed],
    )
    return out.unsqueeze(1), lse.unsqueeze(2)


def plan(device: torch.device, batch: int, heads: int, topk: int, extra_topk: int) -> Plan:
    """Cut up a batch.

    Enough splits that the programs fill PROGRAMS_PER_SM of every multiprocessor once, but no more than a full row has tiles, and at most
    MAX_SPLITS. A batch that fills the device without splitting is not split, and its programs write the result themselves.

    Raises:
        configs.MissingConfigurationError
    """
    found = configs.lookup(device, "mla_decode.split", shape_key(heads))
    constants = dict(found.constants)
    programs_per_sm, max_splits = constants.pop("PROGRAMS_PER_SM"), constants.pop("MAX_SPLITS")
    head_tiles = -(-heads // constants["BLOCK_H"])
    tiles = -(-topk // constants["BLOCK_T"]) + -(-extra_topk // constants["BLOCK_T"])
    programs = programs_per_sm * devices.multiprocessors(device)
    splits = max(1, min(programs // max(1, batch * head_tiles), tiles, max_splits))
    # Equal shares: 20 tiles in 13 splits take as long as in 10.
    splits = max(1, -(-tiles // -(-tiles // splits))) if tiles else 1
    options = {**constants, "num_warps": found.num_warps, "num_stages": found.num_stages}
    return Plan(head_tiles, splits, options, configs.lookup(device, "mla_decode.combine", "any").options)


def shape_key(heads: int) -> str:
    """The key of a head count's configuration: 8 heads are a whole tile of a tensor-core instruction's N, 16 of its M."""
    return next((f"heads{most}" for most in (8, 16) if heads <= most), "heads128")


def _two_axes(indices: torch.Tensor | None) -> torch.Tensor | None:
    # Not reshape(rows, -1): with no rows, any width would do.
    return indices if indices is None else indices.flatten(1)


def _launch(
    q: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    lengths: torch.Tensor | None,
    sink: torch.Tensor | None,
    extra_cache: torch.Tensor | None,
    extra_indices: torch.Tensor | None,
    extra_lengths: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    _check(q, cache, indices, lengths, sink, extra_cache, extra_indices, extra_lengths, out, lse)
    batch, heads, _ = q.shape
    if batch == 0:
        return
    topk = indices.shape[1]
    extra_topk = extra_indices.shape[1] if extra_indices is not None else 0
    cut = plan(q.device, batch, heads, topk, extra_topk)
    pairs = batch * heads
    # With one split nothing is written here; the pointers have to be valid and of the same types.
    held = pairs * cut.splits if cut.splits > 1 else 1
    partial = torch.empty((held, layout.HEAD_DIM), dtype=torch.bfloat16, device=q.device)
    partial_lse = torch.empty((held,), dtype=torch.float32, device=q.device)
    second = cache if extra_cache is None else extra_cache
    second_indices = indices if extra_indices is None else extra_indices
    kernel.mla_decode_split[(cut.head_tiles * cut.splits * batch,)](
        q,
        cache.view(torch.uint8),
        second.view(torch.uint8),
        indices,
        second_indices,
        indices if lengths is None else lengths,
        second_indices if extra_lengths is None else extra_lengths,
        partial_lse if sink is None else sink,
        out,
        lse,
        partial,
        partial_lse,
        float(scale),
        heads,
        cut.splits,
        q.stride(0) // _Q_UNIT,
        q.stride(1) // _Q_UNIT,
        topk,
        extra_topk,
        indices.stride(0),
        second_indices.stride(0),
        int(lengths is not None),
        int(extra_lengths is not None),
        cache.shape[1].bit_length() - 1,
        second.shape[1].bit_length() - 1,
        cache.stride(0) // _UNIT,
        second.stride(0) // _UNIT,
        out.stride(0) // _Q_UNIT,
        int(sink is not None),
        PDL=_PDL,
        **cut.split,
        **_DEPENDENT,
    )
    if cut.splits == 1:
        return
    kernel.mla_decode_combine[(pairs, layout.HEAD_DIM // cut.combine["BLOCK_D"])](
        partial,
        partial_lse,
        partial_lse if sink is None else sink,
        out,
        lse,
        heads,
        cut.splits,
        out.stride(0) // _Q_UNIT,
        int(sink is not None),
        PDL=_PDL,
        **cut.combine,
        **_DEPENDENT,
    )


torch.library.custom_op("gpuops::sparse_mla_decode", _launch, mutates_args=("out", "lse"))


def _check(
    q: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    lengths: torch.Tensor | None,
    sink: torch.Tensor | None,
    extra_cache: torch.Tensor | None,
    extra_indices: torch.Tensor | None,
    extra_lengths: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    batch, heads, dim = q.shape
    _require(q.dtype == torch.bfloat16 and dim == layout.HEAD_DIM and 1 <= heads <= 128, "q", "bf16 [B, 1..128, 512]", q)
    _require(
        q.stride(2) == 1 and q.stride(0) % _Q_UNIT == 0 and q.stride(1) % _Q_UNIT == 0,
        "q",
        "strided by multiples of 8, last axis 1",
        q,
    )
    _check_cache("cache", cache, "indices", indices, "lengths", lengths, batch)
    _require(
        sink is None or (sink.dtype == torch.float32 and sink.dim() == 1 and sink.shape[0] >= heads and sink.is_contiguous()),
        "sink",
        f"contiguous float32 [>= {heads}]",
        sink,
    )
    if (extra_cache is None) != (extra_indices is None):
        raise ValueError("extra_cache and extra_indices go together: one of them is None")
    if extra_cache is not None and extra_indices is not None:
        _check_cache("extra_cache", extra_cache, "extra_indices", extra_indices, "extra_lengths", extra_lengths, batch)
    _require(
        out.dtype == torch.bfloat16
        and out.shape == q.shape
        and out.stride(0) % _Q_UNIT == 0
        and tuple(out.stride()[1:]) == (layout.HEAD_DIM, 1),
        "out",
        "bf16 of q's shape with contiguous heads",
        out,
    )
    _require(
        lse.dtype == torch.float32 and lse.shape == q.shape[:2] and lse.is_contiguous(), "lse", "contiguous float32 [B, H]", lse
    )


def _check_cache(
    cache_name: str,
    cache: torch.Tensor,
    indices_name: str,
    indices: torch.Tensor,
    lengths_name: str,
    lengths: torch.Tensor | None,
    batch: int,
) -> None:
    _require(
        cache.dtype in (torch.float8_e4m3fn, torch.uint8)
        and cache.dim() == 4
        and tuple(cache.shape[2:]) == (1, layout.BYTES_PER_TOKEN),
        cache_name,
        "e4m3 or uint8 [pages, page size, 1, 584]",
        cache,
    )
    page_size = cache.shape[1]
    _require(page_size & (page_size - 1) == 0, cache_name, "of a page size that is a power of two", cache)
    _require(
        cache.stride(0) % _UNIT == 0 and cache.stride(0) >= page_size * layout.BYTES_PER_TOKEN,
        cache_name,
        f"strided by a multiple of 16 bytes, at least {page_size * layout.BYTES_PER_TOKEN}",
        cache,
    )
    _require(
        indices.dtype == torch.int32 and indices.dim() == 2 and indices.shape[0] == batch and indices.stride(1) == 1,
        indices_name,
        f"int32 [{batch}, topk], last axis contiguous",
        indices,
    )
    _require(
        lengths is None or (lengths.dtype == torch.int32 and tuple(lengths.shape) == (batch,) and lengths.is_contiguous()),
        lengths_name,
        f"contiguous int32 [{batch}]",
        lengths,
    )


def _require(holds: bool, name: str, wanted: str, got: torch.Tensor | None) -> None:
    if holds or got is None:
        return
    raise ValueError(f"{name} has to be {wanted}; it is {got.dtype} {tuple(got.shape)} with strides {tuple(got.stride())}")
