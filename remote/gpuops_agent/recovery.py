"""What a crashed rollout, a dead server or a reboot left behind, and what is to be done about it.

The facts are read here, the decision is a pure function over them (:func:`decide`), the rollout plays it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

from . import ab_lease, journal, operations, ranks, releases
from .files import read_json, write_json
from .paths import Service
from .recorder import outcome, outcome_file
from .records import lost_ranks, server_alive
from .releases import GOOD, READY, STAGED, STARTING, UNKNOWN, VERIFIED
from .wire import UNKNOWN as CODE_UNKNOWN

COMPARISON = "comparison"

NOTHING, STOP, RESTORE, REVIVE = "nothing", "stop", "restore", "revive"


@dataclass(frozen=True)
class Facts:
    """What is known of a service that nobody is working on.

    Args:
        cut: kinds of the operations that were cut after they had touched the server, oldest first.
        running: the release whose server lives (and, when nothing was cut, answers).
        current: the release that is meant to run; None when the service is meant to be down.
        good: the known-good release.
    """

    cut: List[str]
    running: Optional[int]
    current: Optional[int]
    good: Optional[int]


def decide(facts: Facts) -> str:
    """What brings the service to where it should be.

    ``nothing``: all is well. ``stop``: finish a `down`, or stop a candidate that nothing can replace. ``restore``: a rollout was cut, the known-good
    release must serve. ``revive``: what is meant to run has died (a crash, a reboot), or hangs.
    """
    if facts.cut:
        if facts.cut[-1] == "down" or facts.good is None:
            return STOP
        return RESTORE
    if facts.current is None or facts.running is not None:
        return NOTHING
    return REVIVE if facts.good is not None else NOTHING


def because(service: Service, cut: List[str]) -> str:
    """Why the known-good release is brought back, in words."""
    if not cut:
        return died(service) or "its server had died, or did not answer"
    return "the controller of a comparison was lost" if cut == [COMPARISON] else "a rollout was cut"


def died(service: Service) -> str:
    """Which ranks its server, the last one, had lost; empty when none."""
    release = releases.load(service, releases.current(service))
    if release is None:
        return ""
    engine = release.document.get("engine") or {}
    return ranks.lost(lost_ranks(service), engine.get("ranks") or {})


def look(service: Service, cut: List[str]) -> Facts:
    """The facts of now."""
    record = server_alive(service)
    return Facts(cut, record.release if record else None, releases.current(service), releases.known_good(service))


def close_cut_operations(service: Service, own: str) -> List[str]:
    """Give every operation that has no outcome, and no runner, one: `cut`. Releases that were on their way become `unknown`.

    Only the holder of the service's lock may call this: then the only other runners are those that come to find it held. What was cut is its debt
    from here on: the note that it has touched the server is written before the outcomes, by which the others cease to be cut.

    Returns:
        the kinds of those that had touched the server, oldest first, after a comparison whose lease has run out.
    """
    cut = sorted(
        folder.name
        for folder in service.operations.iterdir()
        if folder.is_dir() and folder.name != own and _is_cut(service, folder.name)
    )
    # A comparison without its controller is one too: what serves is a launch that nobody has promoted.
    touched = [COMPARISON] if ab_lease.lost(service) is not None else []
    touched += [_work(service, op) for op in cut if was_touched(service, op)]
    if touched:
        touch(service, own, finishes=touched[-1])
    for op in cut:
        journal.write(service, "cut", op=op)
        write_json(outcome_file(service, op), {"outcome": "cut", "code": CODE_UNKNOWN, "op": op, "reason": "its runner died"})
    for number in releases.numbers(service):
        if releases.state(service, number)["state"] not in (STAGED, STARTING, READY, VERIFIED):
            continue
        if number == releases.known_good(service):
            # Cut between the link and the state: the link is the promotion.
            releases.set_state(service, number, GOOD, "", own)
        else:
            releases.set_state(service, number, UNKNOWN, "its rollout was cut", own)
    return touched


def _is_cut(service: Service, op: str) -> bool:
    return outcome(service, op) is None and not operations.running(service, op)


def _work(service: Service, op: str) -> str:
    """The kind of an operation; of a recovery, what it was to finish."""
    kind = str((read_json(service.operation(op) / "order.json") or {}).get("kind", "up"))
    note = read_json(service.operation(op) / "touched.json") or {}
    return str(note.get("finishes") or kind) if kind == "recover" else kind


def touch(service: Service, op: str, finishes: Optional[str] = None) -> None:
    """Note, durably, that an operation is about to touch the server: if it is cut from now on, somebody must finish it.

    Args:
        finishes: the kind of the cut operation that this one finishes, if it does. The first note stays.
    """
    if not was_touched(service, op):
        write_json(service.operation(op) / "touched.json", {"op": op, "finishes": finishes})


def was_touched(service: Service, op: str) -> bool:
    """Whether the operation got as far as the server. An unreadable note counts: it was being written."""
    folder = service.operation(op)
    return (folder / "touched.json").exists() or (folder / "touched.json.unreadable").exists()
