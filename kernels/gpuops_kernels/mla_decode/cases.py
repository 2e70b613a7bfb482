"""Random inputs in the engine's layouts; whatever a right kernel has no business reading is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import layout, reference

_POISON = 0xFF  # NaN as e4m3, as half of a bf16 and as UE8M0
# Exponents of the scales: values come out with a standard deviation of about one.
_EXPONENTS = (119, 124)


@dataclass(frozen=True)
class Selection:
    """A paged cache and what each row selects of it; shapes as :func:`.op.sparse_mla_decode` takes them."""

    cache: torch.Tensor
    indices: torch.Tensor
    lengths: torch.Tensor | None


@dataclass(frozen=True)
class Case:
    """The inputs of one call."""

    q: torch.Tensor
    main: Selection
    extra: Selection | None
    sink: torch.Tensor | None
    scale: float = layout.HEAD_DIM**-0.5

    @property
    def positional(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The positional arguments of the operation and of its reference."""
        return self.q, self.main.cache, self.main.indices

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of the operation and of its reference."""
        keywords: dict[str, Any] = {"scale": self.scale, "lengths": self.main.lengths, "sink": self.sink}
        if self.extra is not None:
            keywords |= {
                "extra_cache": self.extra.cache,
                "extra_indices": self.extra.indices,
                "extra_lengths": self.extra.lengths,
            }
        return keywords

    @property
    def stock(self) -> dict[str, Any]:
        """The same inputs as SGLang passes them to ``flash_mla_with_kvcache_sm120``."""
        return {
            "q": self.q.unsqueeze(1),
            "k_cache": self.main.cache,
            "head_dim_v": layout.HEAD_DIM,
            "softmax_scale": self.scale,
            "indices": self.main.indices.unsqueeze(1),
            "topk_length": self.main.lengths,
            "attn_sink": self.sink,
            "extra_k_cache": self.extra.cache if self.extra else None,
            "extra_indices_in_kvcache": self.extra.indices.unsqueeze(1) if self.extra else None,
            "extra_topk_length": self.extra.lengths if self.extra else None,
        }

    @property
    def bytes(self) -> int:
        """Bytes that have to move: each selected token of the batch once, counted from the indices, and q, the indices that count, and out."""
        selections = [self.main] + ([self.extra] if self.extra else [])
        total = 2 * self.q.numel() * self.q.element_size()
        for each in selections:
            rows = [reference.selected(each.indices, each.lengths, row) for row in range(self.q.shape[0])]
            total += torch.cat(rows).unique().numel() * layout.BYTES_PER_TOKEN + sum(row.numel() for row in rows) * 4
        return int(total)

    @property
    def flops(self) -> int:
        """Multiplications and additions of QK and PV over the selected tokens."""
        selections = [self.main] + ([self.extra] if self.extra else [])
        count = sum(
            reference.selected(each.indices, each.lengths, row).numel() for each in selections for row in range(self.q.shape[0])
        )
        return int(2 * 2 * layout.HEAD_DIM * self.q.shape[1] * count)


def make(
    device: torch.device | str,
    batch: int,
    heads: int,
    seed: int,
    *,
    topk: int = 128,
    page_size: int = 256,
    lengths: Sequence[int] | None = None,
    extra_topk: int | None = 512,
    extra_page_size: int = 64,
    extra_lengths: Sequence[int] | None = None,
    absent: float = 0.0,
    with_sink: bool = True,
    pool: int | None = None,
) -> Case:
    """A random case.

    Args:
        topk, extra_topk: widths of the index tables; ``extra_topk`` None leaves the second cache out.
        lengths, extra_lengths: of each row, repeated as needed; None passes no lengths at all.
        absent: share of the indices that are -1.
        pool: tokens in each cache; by default as many as the batch selects, so that rows share few of them.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    q = torch.randn((batch, heads, layout.HEAD_DIM), generator=generator, device=device) * 1.5
    sink = torch.randn((heads,), generator=generator, device=device) * 2 if with_sink else None
    main = _selection(generator, device, batch, topk, page_size, lengths, absent, pool)
    extra = (
        None
        if extra_topk is None
        else _selection(generator, device, batch, extra_topk, extra_page_size, extra_lengths, absent, pool)
    )
    return Case(q.to(torch.bfloat16), main, extra, sink)


def _selection(
    generator: torch.Generator,
    device: torch.device | str,
    batch: int,
    topk: int,
    page_size: int,
    lengths: Sequence[int] | None,
    absent: float,
    pool: int | None,
) -> Selection:
    count = max(pool or batch * topk, topk)
    cache = paged_cache(generator, device, count, page_size)
    poisoned = (cache.shape[0] - 1) * page_size
    flat = torch.randperm(max(count, batch * topk), generator=generator, device=device)[: batch * topk] % count
    indices = flat.to(torch.int32).view(batch, topk).contiguous()
    indices[torch.rand((batch, topk), generator=generator, device=device) < absent] = -1
    if lengths is None:
        return Selection(cache, indices, None)
    held = torch.tensor([lengths[row % len(lengths)] for row in range(batch)], dtype=torch.int32, device=device)
    indices[torch.arange(topk, device=device)[None, :] >= held.clamp(0, topk)[:, None]] = poisoned
    return Selection(cache, indices, held)


def paged_cache(generator: torch.Generator, device: torch.device | str, count: int, page_size: int) -> torch.Tensor:
    """A cache of random tokens as the engine's view of it, e4m3 [pages, page size, 1, 584]; padding and the last page are NaN."""
    pages = -(-count // page_size) + 1
    stride = layout.page_bytes(page_size)
    memory = torch.full((pages, stride), _POISON, dtype=torch.uint8, device=device)
    held = pages - 1
    exponents = torch.randint(*_EXPONENTS, (held * page_size, layout.GROUPS), generator=generator, device=device)
    values = torch.randn((held * page_size, layout.GROUPS, layout.GROUP), generator=generator, device=device)
    quantised = (values * torch.exp2(127.0 - exponents)[:, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    rope = torch.randn((held * page_size, layout.ROPE_DIM), generator=generator, device=device).to(torch.bfloat16)
    data = torch.cat([quantised.view(torch.uint8).flatten(1), rope.view(torch.uint8)], 1)
    boundary = page_size * layout.TOKEN_BYTES
    memory[:held, :boundary] = data.view(held, boundary)
    footer = memory[:held, boundary : boundary + page_size * layout.SCALE_BYTES].unflatten(1, (page_size, layout.SCALE_BYTES))
    footer[:, :, : layout.GROUPS] = exponents.to(torch.uint8).view(held, page_size, layout.GROUPS)
    view = memory[:, : page_size * layout.BYTES_PER_TOKEN].view(pages, page_size, 1, layout.BYTES_PER_TOKEN)
    return view.view(torch.float8_e4m3fn)
