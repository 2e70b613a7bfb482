"""The indexer in plain torch and float64, for one row at a time: what the kernels are compared with."""

from __future__ import annotations

import torch

from .. import numerics
from . import op

WORST_DIFFERENCE = 1e-6
"""Of :func:`difference`: of fp8 products with the tensor cores' own accumulation against float64."""


def logits(
    q: torch.Tensor, cache: torch.Tensor, weights: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor
) -> list[torch.Tensor]:
    """The valid logits of each row in float64; arguments as for :func:`op.logits`."""
    rows = []
    limit = page_table.shape[1] * op.PAGE
    for row, length in enumerate(lengths.flatten().tolist()):
        length = min(max(length, 0), limit)
        keys, scales = page_contents(cache, page_table[row, : -(-length // op.PAGE)])
        dots = keys[:length].double() @ q[row].double().T
        rows.append((dots.clamp_min(0) * weights[row].double()).sum(1) * scales[:length].double())
    return rows


def difference(scores: torch.Tensor, expected: list[torch.Tensor]) -> float:
    """calc_diff of the valid logits in ``scores`` [B, width] to those of :func:`logits`; NaN anywhere gives NaN."""
    got = torch.cat([row[: each.numel()] for row, each in zip(scores, expected, strict=True)])
    return numerics.calc_diff(got, torch.cat(expected))


def page_contents(cache: torch.Tensor, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [tokens, 128] (e4m3) and scales [tokens] (fp32) of some pages, in their order."""
    values = op.PAGE * op.HEAD_DIM
    content = cache.view(torch.uint8).flatten(1)[pages.long(), : op.PAGE_BYTES]
    keys = content[:, :values].contiguous().view(torch.float8_e4m3fn).view(-1, op.HEAD_DIM)
    scales = content[:, values:].contiguous().view(torch.float32).flatten()
    return keys, scales


def slots(positions: torch.Tensor, page_table: torch.Tensor, page_size: int) -> torch.Tensor:
    """Physical slots of the positions of one row; -1 stays -1."""
    page = page_table.long()[positions.clamp_min(0) // page_size]
    return torch.where(positions < 0, -1, page * page_size + positions % page_size).to(torch.int32)


def topk_error(raw: torch.Tensor, scores: torch.Tensor, length: int) -> str:
    """What is wrong with ``raw`` [k] as the top-k positions of one row of scores; empty when nothing is.

    Which of the entries that equal the k-th largest are taken is free; that they ascend and that -1 follows is not.
    """
    k = raw.shape[0]
    count = min(max(length, 0), k)
    chosen, rest = raw[:count].long(), raw[count:]
    if not bool((rest == -1).all()):
        return f"{int((rest != -1).sum())} entries are not -1 after the first {count}"
    if count and not bool((chosen[1:] > chosen[:-1]).all() and chosen[0] >= 0 and chosen[-1] < length):
        return f"positions do not ascend within [0, {length}): {chosen.tolist()}"
    expected = scores[: max(length, 0)].topk(count).values.sort().values
    if not torch.equal(scores[chosen].sort().values, expected):
        return f"{int((scores[chosen].sort().values != expected).sum())} of {count} values are not the largest"
    return ""
