"""Which rank the others wait for, and what it does longer than they do. Pure.

Ranks that decode together end each collective together: the one that waits least in it came last. What it does longer than the others before that is
the reason: work of its own, or no work at all, while its host was late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from gpuops.profiling.summary import COMMUNICATION, RankProfile

IDLE = "idle"

# Differences below this share of a step are the ranks' ordinary spread, and name nobody.
SPREAD = 0.01


@dataclass(frozen=True)
class Reason:
    """Microseconds a step that the slowest rank spends more on a category (or on :data:`IDLE`) than the others' median."""

    category: str
    us: float


@dataclass(frozen=True)
class Slowest:
    """The rank that came last.

    Attributes:
        waits: microseconds a step that it spends in communication.
        others: the median of what the others spend there.
        stands_out: the difference is more than the ranks' ordinary spread.
        reasons: what it does longer, the most first.
    """

    rank: str
    waits: float
    others: float
    stands_out: bool
    reasons: tuple[Reason, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def slowest(ranks: Sequence[RankProfile]) -> RankProfile:
    """The rank that waits least in communication; where none communicates, the one with the most work."""
    if any(rank.us(COMMUNICATION) for rank in ranks):
        return min(ranks, key=lambda rank: rank.us(COMMUNICATION))
    return max(ranks, key=lambda rank: rank.own)


def explain(ranks: Sequence[RankProfile]) -> Slowest | None:
    """The slowest of several ranks and why; None for a single one, or without communication."""
    rank = slowest(ranks)
    others = [each for each in ranks if each is not rank]
    if not others or not any(each.us(COMMUNICATION) for each in ranks):
        return None
    waits, usual = rank.us(COMMUNICATION), median(each.us(COMMUNICATION) for each in others)
    least = SPREAD * rank.span
    names = {row.name for each in ranks for row in each.categories} - {COMMUNICATION}
    more = [Reason(name, rank.us(name) - median(each.us(name) for each in others)) for name in sorted(names)]
    more.append(Reason(IDLE, rank.idle - median(each.idle for each in others)))
    reasons = sorted((reason for reason in more if reason.us > least), key=lambda reason: -reason.us)
    return Slowest(rank.rank, waits, usual, usual - waits > least, tuple(reasons))
