"""What an engine calls: indexer logits and the top-k over them, and the same with the signatures of SGLang's own functions.

Shapes and terms, for one layer: B rows (one query token each: in decode, one for each request), 64 heads of 128 dimensions, a paged index cache
whose page holds 64 compressed tokens as 64 x 128 bytes of e4m3, then 64 fp32 scales (8,448 bytes; pages may lie further apart), and a page table
of int32 [B, columns]. Lengths count compressed tokens, are read on the device, and may be anything from zero, or negative for a padded row, to
more than what the page table or the output holds: they are cut to that.

Everything here can be captured into a CUDA graph: the grid depends on the batch size and the card alone.
"""

from __future__ import annotations

import torch
import triton

from .. import configs, devices
from .kernel import indexer_logits, indexer_topk

HEADS = 64
HEAD_DIM = 128
PAGE = 64
PAGE_BYTES = PAGE * (HEAD_DIM + 4)

# Programmatic dependent launch: a kernel's programs start while its predecessor's last ones finish, and wait before they read. The interpreter has no
# such instruction.
_PDL = not triton.knobs.runtime.interpret
_DEPENDENT = {"launch_pdl": True} if _PDL else {}


def logits(
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    width: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``out[b, t] = sum_h weights[b, h] * relu(q[b, h] . key[t]) * scale[t]`` for ``t < lengths[b]``; fp8 products, fp32 sums.

    Args:
        q: float8_e4m3fn [B, 64, 128], contiguous.
        cache: one byte a element (uint8 or float8_e4m3fn), [pages, ...]; a page is contiguous, ``stride(0)`` is the distance of pages in bytes, a
            multiple of 16.
        weights: float32 [B, 64], contiguous.
        lengths: int32 [B] or [B, 1], contiguous.
        page_table: int32 [B, columns], ``stride(1) == 1``; a negative page within a row's length is read as page 0.
        width: columns of the output: the most compressed tokens that a row can have.
        out: float32 [B, width], ``stride(1) == 1``; allocated when None.

    Returns:
        ``out``. Columns from ``lengths[b]`` on are not written: whoever reads them has to know the lengths, as SGLang's top-k does.

    Raises:
        ValueError: a shape, type or stride other than these.
        gpuops_kernels.configs.MissingConfigurationError: nothing is configured for this card.
    """
    batch = q.shape[0]
    _check("q", q, torch.float8_e4m3fn, (batch, HEADS, HEAD_DIM))
    _check("weights", weights, torch.float32, (batch, HEADS))
    _check_rows(lengths, page_table, batch)
    if cache.element_size() != 1 or cache.stride(-1) != 1 or cache.stride(0) % 16 or cache.stride(0) < PAGE_BYTES:
        raise ValueError(
            f"cache: pages of {PAGE_BYTES} bytes or more, 16-byte aligned, expected; got {cache.dtype} with strides {cache.stride()}"
        )
    if out is None:
        out = torch.empty(batch, width, dtype=torch.float32, device=q.device)
    elif out.dtype != torch.float32 or out.shape != (batch, width) or out.stride(1) != 1:
        raise ValueError(
            f"out: float32 {(batch, width)} with stride(1) == 1 expected; got {out.dtype} {tuple(out.shape)}, strides {out.stride()}"
        )
    if batch == 0:
        return out
    launch = torch.ops.gpuops.indexer_logits if torch.compiler.is_compiling() else _launch_logits
    launch(q, cache, weights, lengths, page_table, out)
    return out


def topk(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    slots: torch.Tensor,
    page_size: int = PAGE,
    raw: torch.Tensor | None = None,
) -> torch.Tensor:
    """The k largest of the first ``lengths[b]`` scores of each row, as physical slots.

    Position t is written as ``page_table[b, t // page_size] * page_size + t % page_size``. A row of at most k entries selects all of
    them. Slots are in ascending order of position, followed by -1. Of entries that equal the k-th largest the first ones are taken; -0.0
    counts as less than 0.0, and NaN as beyond the infinity of its sign. Entries from ``lengths[b]`` on are not read. The result is the
    same at every call: no atomics.

    Args:
        scores: float32 [B, width], ``stride(1) == 1``, ``stride(0)`` a multiple of 4.
        lengths: int32 [B] or [B, 1], contiguous.
        page_table: int32 [B, columns], ``stride(1) == 1``.
        slots: int32 [B, k], contiguous, k = 512 or 1,024: the output.
        page_size: entries of a page, a power of two.
        raw: int32 [B, k], contiguous: receives the positions themselves in the same order, when given.

    Returns:
        ``slots``.

    Raises:
        ValueError: a shape, type or stride other than these.
        gpuops_kernels.configs.MissingConfigurationError: nothing is configured for this card or this k.
    """
    batch, k = slots.shape
    _check_rows(lengths, page_table, batch)
    _check("slots", slots, torch.int32, (batch, k))
    if raw is not None:
        _check("raw", raw, torch.int32, (batch, k))
    if scores.dtype != torch.float32 or scores.shape[0] != batch or scores.stride(1) != 1 or scores.stride(0) % 4:
        raise ValueError(
            f"scores: float32 [{batch}, width] with stride(1) == 1 and rows that start 16 bytes aligned expected; "
            f"got {scores.dtype} {tuple(scores.shape)}, strides {scores.stride()}"
        )
    if page_size <= 0 or page_size & (page_size - 1):
        raise ValueError(f"page_size: a power of two expected; got {page_size}")
    if batch == 0:
        return slots
    launch = torch.ops.gpuops.indexer_topk if torch.compiler.is_compiling() else _launch_topk
    launch(scores, lengths, page_table, slots, raw, page_size)
    return slots


def fp8_paged_mqa_logits(
    q_fp8: torch.Tensor,
    kvcache_fp8: torch.Tensor,
    weight: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    deep_gemm_metadata: object,
    max_seq_len: int,
    clean_logits: bool = True,
) -> torch.Tensor:
    """:func:`logits` with the signature that all of SGLang's indexer functions share, in 0.5.15.post1 and in 0.5.23.

    It stands in for ``tilelang_fp8_paged_mqa_logits`` (``sglang.srt.layers.attention.dsa.tilelang_kernel``, from 0.5.16 on
    ``sglang.kernels.ops.attention.dsa.tilelang_kernel``; imported at each call of ``forward_c4_indexer``), for ``fp8_paged_mqa_logits_torch`` and
    ``fp8_paged_mqa_logits_torch_sm120`` (``sglang.srt.layers.attention.dsv4.indexer``; globals of the caller's module) and for
    ``deep_gemm.fp8_paged_mqa_logits``. All are called as ``fn(q [B, 1, 64, 128], cache [pages, 64, 1, 132], weights [B, 64], lengths, page_table,
    metadata, max_seq_len, False)``.

    Beyond a row's length the torch function for sm_120 writes -inf, the other torch function 0, TileLang and DeepGEMM nothing; every top-k of both
    versions reads the lengths. With ``clean_logits`` those columns hold -inf, at a cost that follows ``max_seq_len``; the engine never asks for it.
    DeepGEMM's schedule is ignored: each program of the kernel derives its own share.
    """
    del deep_gemm_metadata
    batch, tokens, heads, dim = q_fp8.shape
    if tokens != 1:
        raise ValueError(f"q: one token a row expected; got {tokens}")
    out = torch.full((batch, max_seq_len), float("-inf"), dtype=torch.float32, device=q_fp8.device) if clean_logits else None
    return logits(q_fp8.view(batch, heads, dim), kvcache_fp8, weight, seq_lens, page_table, max_seq_len, out)


def topk_transform(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_tables: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
    out_raw_indices: torch.Tensor | None = None,
) -> None:
    """:func:`topk` with the signature of SGLang's first top-k: the one in use on sm_120.

    It stands in for ``topk_transform_512`` (0.5.15.post1) and ``topk_transform_paged`` (0.5.23), both names in
    ``sglang.srt.layers.attention.dsv4.indexer``, and for the torch versions of the same file (``topk_transform_512_pytorch_vectorized``,
    ``topk_transform_pytorch_vectorized``). Their order among the selected is that of their atomics; ours is that of positions.
    """
    topk(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices)


def _launch_logits(
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
) -> None:
    programs, options = _limits(q.device, "indexer.logits", "heads64-page64")
    batch, width = out.shape
    indexer_logits[(programs,)](
        q,
        cache.view(torch.float8_e4m3fn),
        weights,
        lengths,
        page_table,
        out,
        batch,
        cache.stride(0) // 16,
        page_table.stride(0),
        out.stride(0),
        min(width, page_table.shape[1] * PAGE),
        HEADS=HEADS,
        DIM=HEAD_DIM,
        PAGE=PAGE,
        PDL=_PDL,
        **options,
        **_DEPENDENT,
    )


def _launch_topk(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    slots: torch.Tensor,
    raw: torch.Tensor | None,
    page_size: int,
) -> None:
    batch, k = slots.shape
    most, options = _limits(slots.device, "indexer.topk", f"k{k}")
    programs = min(batch, most)
    candidates = torch.empty(programs, options["CAP"], dtype=torch.int32, device=slots.device)
    indexer_topk[(programs,)](
        scores,
        lengths,
        page_table,
        slots,
        candidates if raw is None else raw,
        candidates,
        batch,
        page_table.stride(0),
        scores.stride(0) // 4,
        min(scores.shape[1], page_table.shape[1] * page_size),
        page_size.bit_length() - 1,
        K=k,
        RAW=raw is not None,
        PDL=_PDL,
        **options,
        **_DEPENDENT,
    )


# Under torch.compile a call is one opaque operator that says what it writes. Left to look inside (a plain launch, or `triton_op`), Inductor analyses
# the kernel for what it writes, gives up at the wait for the kernel in front of it (inline assembly with an effect), and takes every argument as
# written: an index cache that is passed as uint8 is then copied onto itself, whole, once a graph. Its launch would also lose `launch_pdl`. Nothing is
# given up for it: there is nothing in a persistent kernel to fuse with, and eager calls do not come by here.
torch.library.custom_op("gpuops::indexer_logits", _launch_logits, mutates_args=("out",))
torch.library.custom_op("gpuops::indexer_topk", _launch_topk, mutates_args=("slots", "raw"))


def _limits(device: torch.device, kernel: str, shape: str) -> tuple[int, dict[str, int]]:
    """The most programs a launch takes on this card, and the launch's options."""
    options = configs.lookup(device, kernel, shape).options
    return devices.multiprocessors(device) * options.pop("PROGRAMS_PER_SM"), options


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
        raise ValueError(
            f"{name}: contiguous {dtype} {shape} expected; got {tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}"
        )


def _check_rows(lengths: torch.Tensor, page_table: torch.Tensor, batch: int) -> None:
    if lengths.dtype != torch.int32 or lengths.numel() != batch or not lengths.is_contiguous():
        raise ValueError(
            f"lengths: contiguous int32 [{batch}] expected; got {lengths.dtype} {tuple(lengths.shape)}, strides {lengths.stride()}"
        )
    if page_table.dtype != torch.int32 or page_table.shape[0] != batch or page_table.stride(1) != 1:
        raise ValueError(
            f"page_table: int32 [{batch}, columns] with stride(1) == 1 expected; "
            f"got {page_table.dtype} {tuple(page_table.shape)}, strides {page_table.stride()}"
        )
