"""The loss of ranks in words: which of how many, by the engine's own names, and how they ended. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence, Union

from .records import ExitRecord, LostRank

# Ranks that end within this of the first are lost with it; those that end later, in seconds, ended because of it.
TOGETHER_S = 0.1


def lost(found: Sequence[LostRank], ranks: Mapping[str, Any]) -> str:
    """``1 of 2 ranks lost: TP1, signal 9``; empty where no rank is lost.

    Args:
        found: oldest first.
        ranks: of the engine's facts. An engine of one rank, and a process that is none of the counted ones, are told by title and pid.
    """
    if not found:
        return ""
    first = together(found)
    number, name = ranks.get("schedulers") or 0, ranks.get("name")
    named = {each: _name(each.title, name) for each in first} if name and number > 1 else {}
    counted = [each for each in first if named.get(each)]
    if not counted:
        return "; ".join(f"{each.title} (pid {each.pid}) {how(each)}" for each in first)
    endings: Dict[str, List[str]] = {}
    for each in counted:
        endings.setdefault(_briefly(each), []).append(named[each])
    listed = "; ".join(f"{', '.join(names)}, {ending}" for ending, names in endings.items())
    return f"{len(counted)} of {number} ranks lost: {listed}"


def together(found: Sequence[LostRank]) -> List[LostRank]:
    """The first rank that was lost, and those that went with it."""
    return [each for each in found if each.at - found[0].at <= TOGETHER_S]


def how(ended: Union[ExitRecord, LostRank]) -> str:
    """How a process ended, as the end of a sentence."""
    if ended.signal is not None:
        return f"was killed by signal {ended.signal}"
    return "is gone" if ended.code is None else f"exited with status {ended.code}"


def _name(title: str, pattern: str) -> str:
    """What people call a rank, ``TP1``; empty for a process that is none."""
    matched = re.match(pattern, title)
    return (matched["rank"] or "").replace("_", " ") if matched else ""


def _briefly(rank: LostRank) -> str:
    if rank.signal is not None:
        return f"signal {rank.signal}"
    return "nobody saw how" if rank.code is None else f"status {rank.code}"
