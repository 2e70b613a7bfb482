"""What the gate compiles of sparse MLA decode, and what a plugin warms up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import registry
from . import layout, op

# Columns of the ratio-128 index table at a context of a million tokens.
_LONGEST_TABLE = 8192


def _call(heads: int, extra: tuple[int, int] | None, page_size: int = 256) -> Callable[[int], None]:
    def call(batch: int) -> None:
        op.sparse_mla_decode(
            torch.zeros((batch, heads, layout.HEAD_DIM), dtype=torch.bfloat16),
            _cache(page_size),
            torch.zeros((batch, 128), dtype=torch.int32),
            scale=layout.HEAD_DIM**-0.5,
            lengths=torch.zeros(batch, dtype=torch.int32),
            sink=torch.zeros(heads),
            extra_cache=None if extra is None else _cache(extra[1]),
            extra_indices=None if extra is None else torch.zeros((batch, extra[0]), dtype=torch.int32),
            extra_lengths=None if extra is None else torch.zeros(batch, dtype=torch.int32),
        )

    return call


def _cache(page_size: int) -> torch.Tensor:
    memory = torch.zeros((3, layout.page_bytes(page_size)), dtype=torch.uint8)
    view = memory[:, : page_size * layout.BYTES_PER_TOKEN].view(3, page_size, 1, layout.BYTES_PER_TOKEN)
    return view.view(torch.float8_e4m3fn)


FAMILY = registry.Family(
    name="mla_decode",
    keys=(
        ("mla_decode.split", "heads8"),
        ("mla_decode.split", "heads16"),
        ("mla_decode.split", "heads128"),
        ("mla_decode.combine", "any"),
    ),
    launches=(
        registry.Launch("heads8/swa-c4", _call(8, (512, 64))),
        registry.Launch("heads8/swa-c128", _call(8, (_LONGEST_TABLE, 2))),
        registry.Launch("heads8/swa", _call(8, None)),
        registry.Launch("heads8/swa64-c4", _call(8, (512, 64), page_size=64)),
        registry.Launch("heads16/swa-c4", _call(16, (512, 64))),
        registry.Launch("heads64/swa-c4", _call(64, (512, 64))),
        registry.Launch("heads64/swa-c128", _call(64, (_LONGEST_TABLE, 2))),
        registry.Launch("heads64/swa", _call(64, None)),
    ),
    expectations={
        "mla_decode_split": registry.Expectation(mma=True, wide_loads=True),
        "mla_decode_combine": registry.Expectation(wide_loads=True),
    },
)
