"""What the gate compiles of the indexer."""

from __future__ import annotations

import torch

from ..registry import Expectation, Family, Launch
from . import op

# The page table of a context of 262,144 tokens: 65,536 compressed ones.
_COLUMNS = 1024


def _logits(batch: int) -> None:
    q = torch.empty(batch, 1, op.HEADS, op.HEAD_DIM, dtype=torch.float8_e4m3fn)
    cache = torch.empty(8, op.PAGE, 1, op.HEAD_DIM + 4, dtype=torch.uint8)
    weights = torch.empty(batch, op.HEADS)
    lengths = torch.empty(batch, dtype=torch.int32)
    table = torch.empty(batch, _COLUMNS, dtype=torch.int32)
    op.fp8_paged_mqa_logits(q, cache, weights, lengths, table, None, _COLUMNS * op.PAGE, False)


def _topk(batch: int, k: int, raw: bool) -> None:
    scores = torch.empty(batch, _COLUMNS * op.PAGE)
    lengths = torch.empty(batch, dtype=torch.int32)
    table = torch.empty(batch, _COLUMNS, dtype=torch.int32)
    slots = torch.empty(batch, k, dtype=torch.int32)
    op.topk_transform(scores, lengths, table, slots, op.PAGE, torch.empty_like(slots) if raw else None)


FAMILY = Family(
    name="indexer",
    keys=(("indexer.logits", "heads64-page64"), ("indexer.topk", "k512"), ("indexer.topk", "k1024")),
    launches=(
        Launch("logits/heads64-page64", _logits),
        Launch("topk/k512", lambda batch: _topk(batch, 512, False)),
        Launch("topk/k512-raw", lambda batch: _topk(batch, 512, True)),
        Launch("topk/k1024", lambda batch: _topk(batch, 1024, False)),
    ),
    expectations={
        "indexer_logits": Expectation(mma=True, wide_loads=True),
        # k512 with and without the raw positions, k1024.
        "indexer_topk": Expectation(binaries=3),
    },
)
