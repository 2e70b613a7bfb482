"""Random inputs of the indexer in the engine's layout, and what they cost at least.

Unused bytes are poison: pages that no valid token lies in, the tail of a row's last page, page ids beyond a row's length, and the gap between
pages hold NaN or ids far outside the cache, so that a kernel that reads them shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from . import op

# 0x7F is NaN in e4m3, and 0x7F7F7F7F as fp32 is 3.4e38: what is read from unused bytes does not stay unnoticed.
_POISON = 0x7F
_OUTSIDE = 1 << 30


@dataclass(frozen=True)
class Case:
    """One call of the indexer.

    Args:
        q: [B, 64, 128] e4m3.
        cache: [pages, 64, 1, 132] uint8 view with the page stride of the pool.
        weights: [B, 64] fp32, of both signs.
        lengths: [B] int32, in compressed tokens.
        page_table: [B, columns] int32.
        width: columns of the logits.
    """

    q: torch.Tensor
    cache: torch.Tensor
    weights: torch.Tensor
    lengths: torch.Tensor
    page_table: torch.Tensor
    width: int

    @property
    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """What :func:`op.logits` takes."""
        return self.q, self.cache, self.weights, self.lengths, self.page_table, self.width

    @property
    def tokens(self) -> int:
        """Valid compressed tokens of all rows."""
        return int(self.lengths.clamp(0, self.width).sum())

    @property
    def bytes(self) -> int:
        """Keys, scales, page ids and queries of the valid tokens read once, logits written once."""
        pages = int((self.lengths.clamp(0, self.width) + op.PAGE - 1).div(op.PAGE, rounding_mode="floor").sum())
        batch = self.q.shape[0]
        return self.tokens * (op.HEAD_DIM + 4 + 4) + pages * 4 + batch * (op.HEADS * (op.HEAD_DIM + 4) + 4)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        return 2 * self.tokens * op.HEADS * op.HEAD_DIM


def make(device: torch.device | str, lengths: Sequence[int], seed: int, width: int | None = None, gap: int = 0) -> Case:
    """A case with these lengths.

    Args:
        device: where the tensors live.
        lengths: of each row, in compressed tokens; zero and negative stand for padded rows.
        seed: of everything random.
        width: what the graph was captured for, in compressed tokens, a multiple of 64; the longest row's pages when None.
        gap: bytes between pages, a multiple of 16.
    """
    generator = torch.Generator(device).manual_seed(seed)
    batch = len(lengths)
    counts = [-(-max(length, 0) // op.PAGE) for length in lengths]
    columns = max(1, *counts) if width is None else width // op.PAGE
    total = sum(counts)
    pool = total + 3

    storage = torch.full((pool, op.PAGE_BYTES + gap), _POISON, dtype=torch.uint8, device=device)
    order = torch.randperm(pool, generator=generator, device=device)[:total].int()
    page_table = torch.full((batch, columns), _OUTSIDE, dtype=torch.int32, device=device)
    values = op.PAGE * op.HEAD_DIM
    begin = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        if count == 0:
            continue
        pages = order[begin : begin + count]
        page_table[row, :count] = pages
        keys = (
            torch.randn(count * op.PAGE, op.HEAD_DIM, generator=generator, device=device)
            .to(torch.float8_e4m3fn)
            .view(torch.uint8)
        )
        scales = (torch.rand(count * op.PAGE, 1, generator=generator, device=device) + 0.5).view(torch.uint8)
        keys[length:] = _POISON
        scales[length:] = _POISON
        storage[pages.long(), :values] = keys.view(count, values)
        storage[pages.long(), values : op.PAGE_BYTES] = scales.view(count, op.PAGE * 4)
        begin += count

    return Case(
        q=torch.randn(batch, op.HEADS, op.HEAD_DIM, generator=generator, device=device).to(torch.float8_e4m3fn),
        cache=storage.as_strided((pool, op.PAGE, 1, op.HEAD_DIM + 4), (storage.stride(0), op.HEAD_DIM + 4, op.HEAD_DIM + 4, 1)),
        weights=torch.randn(batch, op.HEADS, generator=generator, device=device) / op.HEADS,
        lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
        page_table=page_table,
        width=columns * op.PAGE,
    )


def skewed(batch: int = 64, long: int = 32_768, short: int = 256) -> list[int]:
    """One long row and otherwise short ones; the long one is not the first."""
    lengths = [short] * batch
    lengths[batch // 3] = long
    return lengths
