"""How long a rollout will leave a service without a server, from what its own rollouts took: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

# The newest rollouts of a service that count: older ones had another model, or another disk.
NEWEST = 5

_STOP = ("stop",)
_START = ("launch", "weights", "capture", "warm-up", "listening", "generating")

# Outcomes of one stop and one start each; one that failed has the phases of two starts in it.
_CLEAN = ("promoted", "recovered", "restored", "stopped")


@dataclass(frozen=True)
class Outage:
    """Seconds from TERM to the end of the old server, and from launch to the first answer of the new one: medians of so many rollouts.

    Args:
        stop_s: None when no server was ever stopped.
        start_s: None when none was ever started by us.
    """

    stop_s: float | None
    start_s: float | None
    rollouts: int

    @property
    def seconds(self) -> float | None:
        """All of it; None when the start is not known. A stop that is not known is left out."""
        return None if self.start_s is None else self.start_s + (self.stop_s or 0.0)

    def to_json(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "stop_s": self.stop_s, "start_s": self.start_s, "rollouts": self.rollouts}


def expected(history: Mapping[str, Any]) -> Outage:
    """What a rollout of this service takes, from the ``operations`` of the agent's ``history``, which are newest first."""
    clean = [each for each in history.get("operations", ()) if each.get("outcome") in _CLEAN and each.get("code") == 0]
    stops = _sums(clean, _STOP)
    starts = _sums(clean, _START)
    return Outage(_middle(stops), _middle(starts), max(len(stops), len(starts)))


def _sums(operations: Sequence[Mapping[str, Any]], phases: Sequence[str]) -> list[float]:
    """For each of the newest operations that had such phases, how long these took together."""
    told = (each.get("phases") or {} for each in operations)
    sums = [sum(said[name] for name in phases if name in said) for said in told if phases[0] in said]
    return sums[:NEWEST]


def _middle(values: Sequence[float]) -> float | None:
    return round(median(values), 3) if values else None
