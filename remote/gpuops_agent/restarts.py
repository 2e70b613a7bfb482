"""Bounded restarts of a server that died while it served: at most so many in a row, only for what a restart can cure, and never in a loop.

The decision is a pure function over the deaths so far (:func:`decide`). Anchors: systemd's StartLimit, s6's one-second floor; and the experience that
a restart heals neither a full disk nor a build that does not fit the card.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from .files import read_json, write_json
from .paths import Service

# Deaths that lie further apart than this are not "in a row", in seconds.
WINDOW_S = 3600.0

# So many equal deaths end it, whatever the playbook allows: the sixth start would die like the five before.
EQUAL_DEATHS = 5


@dataclass(frozen=True)
class Death:
    """How a serving server ended. ``at`` is CLOCK_BOOTTIME in seconds, of the boot ``boot_id``; ``line`` its last meaningful or fatal log line."""

    at: float
    boot_id: str
    code: Optional[int]
    signal: Optional[int]
    line: str

    def alike(self, other: "Death") -> bool:
        """The same end with the same words, numbers in them aside (addresses, times, pids)."""
        return (self.code, self.signal, _words(self.line)) == (other.code, other.signal, _words(other.line))


@dataclass(frozen=True)
class Decision:
    """``wait_s`` seconds until the next start; None: no start, and ``reason`` says why."""

    wait_s: Optional[float]
    reason: str


def decide(policy: Dict[str, Any], deaths: List[Death], incurable: List[Tuple[str, str]]) -> Decision:
    """Whether to start again after the last of ``deaths`` (oldest first).

    Args:
        policy: the playbook's ``restart``: ``max`` starts in a row, ``backoff_s`` before the first, doubled for each further one.
        incurable: (regex on the death's line, why a restart cannot cure it).
    """
    last = deaths[-1]
    allowed = int(policy.get("max") or 0)
    if allowed == 0:
        return Decision(None, "the playbook allows no restarts")
    for pattern, why in incurable:
        if re.search(pattern, last.line):
            return Decision(None, f"a restart cannot cure it: {why}")
    row = [death for death in deaths if death.boot_id == last.boot_id and last.at - death.at <= WINDOW_S]
    if len(row) >= EQUAL_DEATHS and all(death.alike(last) for death in row[-EQUAL_DEATHS:]):
        return Decision(None, f"{EQUAL_DEATHS} equal deaths in a row")
    if len(row) > allowed:
        return Decision(None, f"it was started again {allowed} times in a row already")
    wait_s = float(policy.get("backoff_s") or 0.0) * 2 ** (len(row) - 1)
    return Decision(wait_s, f"restart {len(row)} of {allowed} in a row")


def deaths(service: Service, release: int) -> List[Death]:
    """The recorded deaths of a release's server, oldest first; none when the record is of another release or unreadable."""
    value = read_json(service.run / "deaths.json")
    if value is None or value.get("release") != release:
        return []
    try:
        return [Death(**entry) for entry in value["deaths"]]
    except (KeyError, TypeError):
        return []


def record(service: Service, release: int, death: Death) -> List[Death]:
    """Add a death and return all of them."""
    # More than these are never looked at.
    known = [*deaths(service, release), death][-4 * EQUAL_DEATHS :]
    write_json(service.run / "deaths.json", {"release": release, "deaths": [vars(each) for each in known]})
    return known


def _words(line: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", line)
