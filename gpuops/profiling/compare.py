"""Two profiles side by side: what a step spends more, and less, time on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.profiling.ranks import slowest
from gpuops.profiling.summary import RankProfile, Row

TOP = 15


@dataclass(frozen=True)
class Change:
    """One line: microseconds and launches a step in A and in B; None where there is none of it."""

    name: str
    category: str
    us: tuple[float | None, float | None]
    launches: tuple[float | None, float | None]

    @property
    def delta(self) -> float:
        return (self.us[1] or 0.0) - (self.us[0] or 0.0)


@dataclass(frozen=True)
class Comparison:
    """``sides`` are the ranks that are compared; ``totals`` the step's own (span, busy, idle, overlap); ``kernels`` those that changed most."""

    sides: tuple[RankProfile, RankProfile]
    totals: tuple[Change, ...]
    categories: tuple[Change, ...]
    kernels: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        def rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
            return [{**vars(change), "delta": change.delta} for change in changes]

        parts = {name: rows(getattr(self, name)) for name in ("totals", "categories", "kernels")}
        of = {name: [getattr(side, name) for side in self.sides] for name in ("steps", "whole", "agree")}
        return {"ranks": [side.rank for side in self.sides], **of, **parts}


def compare(a: Sequence[RankProfile], b: Sequence[RankProfile]) -> Comparison:
    """The slowest rank of A against the slowest of B."""
    first, second = slowest(a), slowest(b)
    totals = [
        Change(name, "", (getattr(first, name), getattr(second, name)), (None, None))
        for name in ("span", "busy", "idle", "summed", "overlap")
    ]
    launches = Change("launches", "", (None, None), (first.launches, second.launches))
    kernels = _rows(first.kernels, second.kernels)
    return Comparison(
        (first, second),
        (*totals, launches),
        tuple(_rows(first.categories, second.categories)),
        tuple(sorted(kernels, key=lambda change: -abs(change.delta))[:TOP]),
    )


def _rows(first: Sequence[Row], second: Sequence[Row]) -> list[Change]:
    left, right = ({row.name: row for row in rows} for rows in (first, second))
    names = [*left, *(name for name in right if name not in left)]
    return [_change(name, left.get(name), right.get(name)) for name in names]


def _change(name: str, left: Row | None, right: Row | None) -> Change:
    category = (left or right or Row(name, 0.0, 0.0)).category
    us = (left.us if left else None, right.us if right else None)
    return Change(name, category, us, (left.launches if left else None, right.launches if right else None))
