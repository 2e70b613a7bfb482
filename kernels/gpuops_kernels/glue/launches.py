"""What the gate compiles of this family, with the shapes of DeepSeek-V4-Flash at TP=8."""

from __future__ import annotations

import torch

from ..mla_decode import layout
from ..registry import Expectation, Family, Launch
from . import op

_WIDTHS = (256, 1024, 4096)
_HIDDEN = 4096
_PAGES = (2, 64, 256)
_SWA_PAGES = (64, 256)
_Q_WIDTH = 1024
_INTERMEDIATE = 256


def _bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def _cache_rows(rows: int, page_size: int) -> op.CacheRows:
    return op.CacheRows(
        torch.empty(4, layout.page_bytes(page_size), dtype=torch.uint8),
        page_size,
        torch.empty(rows, dtype=torch.int32),
        torch.empty(rows, dtype=torch.int64),
        torch.empty(1024, layout.ROPE_DIM),
    )


def _quantise(rows: int) -> None:
    for width in _WIDTHS:
        op.quantise(_bf16(rows, width))


def _norm_quantise(rows: int) -> None:
    op.norm_quantise(_bf16(rows, _Q_WIDTH + layout.HEAD_DIM)[:, :_Q_WIDTH], _bf16(_Q_WIDTH), 1e-6)


def _swiglu_quantise(rows: int) -> None:
    op.swiglu_quantise(_bf16(rows, 2 * _INTERMEDIATE), 10.0)


def _kv_store(rows: int) -> None:
    for page_size in _PAGES:
        kv = _bf16(rows, _Q_WIDTH + layout.HEAD_DIM)[:, _Q_WIDTH:]
        op.kv_store(kv, _bf16(layout.HEAD_DIM), 1e-6, _cache_rows(rows, page_size))


def _latents(rows: int) -> None:
    for page_size in _SWA_PAGES:
        qkv = _bf16(rows, _Q_WIDTH + layout.HEAD_DIM)
        op.latents(qkv, _bf16(_Q_WIDTH), _bf16(layout.HEAD_DIM), 1e-6, _cache_rows(rows, page_size))


def _streams_update(rows: int) -> None:
    residual = _bf16(rows, op.STREAMS, _HIDDEN)
    op.streams_update(_bf16(rows, _HIDDEN), residual, torch.empty(rows, op.STREAMS), torch.empty(rows, op.STREAMS, op.STREAMS))


def _streams_combine(rows: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        op.streams_combine(torch.empty(rows, op.STREAMS, _HIDDEN, dtype=dtype), torch.empty(rows, op.STREAMS))


FAMILY = Family(
    name="glue",
    keys=(
        *(("glue.quantise", f"width{width}") for width in _WIDTHS),
        ("glue.norm_quantise", f"width{_Q_WIDTH}"),
        ("glue.swiglu_quantise", f"width{_INTERMEDIATE}"),
        *(("glue.kv_store", f"page{page_size}") for page_size in _PAGES),
        *(("glue.latents", f"width{_Q_WIDTH}-page{page_size}") for page_size in _SWA_PAGES),
        ("glue.streams_update", f"hidden{_HIDDEN}"),
        ("glue.streams_combine", f"hidden{_HIDDEN}"),
    ),
    launches=(
        Launch("decode/quantise", _quantise),
        Launch("decode/norm_quantise", _norm_quantise),
        Launch("decode/swiglu_quantise", _swiglu_quantise),
        Launch("decode/kv_store", _kv_store),
        Launch("decode/latents", _latents),
        Launch("decode/streams_update", _streams_update),
        Launch("decode/streams_combine", _streams_combine),
    ),
    expectations={
        # One for each width.
        "quantise": Expectation(wide_loads=True, binaries=len(_WIDTHS)),
        "norm_quantise": Expectation(wide_loads=True),
        # Rows of 256 values are 16 bytes a lane for one warp.
        "swiglu_quantise": Expectation(wide_loads=True),
        # One for each size of pages.
        "kv_store": Expectation(wide_loads=True, binaries=len(_PAGES)),
        "latents": Expectation(wide_loads=True, binaries=len(_SWA_PAGES)),
        "streams_update": Expectation(wide_loads=True),
        # bf16 and fp32 streams.
        "streams_combine": Expectation(wide_loads=True, binaries=2),
    },
)
