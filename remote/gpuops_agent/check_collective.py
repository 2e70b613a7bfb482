"""Can the ranks of a service talk to each other? Its own Python's PyTorch adds up numbers on its cards, or on CPU where there are none.

On cards it is done by itself where nobody is on them, and otherwise only when somebody asks: a server that serves is not disturbed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence

from . import cards, collective, gpus, locks, releases
from .ask import Silent
from .check import FAIL, OK, UNKNOWN, Finding, Subject, members
from .collective import Ask
from .paths import Service
from .releases import Release

_ASK = "gpuops doctor --collective"


def all_reduce(subject: Subject, service: Service) -> Finding:
    """Two ranks or more give the right sum in time."""
    release = releases.load(service, releases.meant(service))
    if release is None:
        return Finding(OK, "no release, no ranks")
    ranks = int(release.document["engine"]["ranks"].get("schedulers") or 1)
    if ranks < 2 and not subject.collective:
        return Finding(OK, "one rank: nothing to add up")
    known = _known(subject)
    own = cards.of_release(release.document, known)
    if not subject.collective:
        busy = "there are no cards" if not own else _busy(service, known, sorted(own))
        if busy:
            return Finding(OK, f"not made: {busy}", next=_ASK)
    if len(own) == 1:
        return Finding(OK, "one card: nothing to add up")
    ask = _ask_of(release, max(2, ranks), len(own))
    try:
        return _found(ask, collective.judge(ask, collective.run(ask)))
    except OSError as error:
        return Finding(UNKNOWN, "the ranks could not be started", str(error), _ASK)


def _found(ask: Ask, verdict: collective.Verdict) -> Finding:
    if not verdict.name:
        return Finding(OK, verdict.what, verdict.evidence)
    what = f"{verdict.what} ({verdict.name})"
    if verdict.name == collective.SLOW:
        return Finding(UNKNOWN, what, verdict.evidence, verdict.next)
    if verdict.name not in (collective.P2P_HANG, collective.WRONG_SUM) or not ask.cards or ask.env.get(collective.NO_P2P) == "1":
        return Finding(FAIL, what, verdict.evidence, verdict.next)
    other = replace(ask, env={**ask.env, collective.NO_P2P: "1"})
    again = collective.judge(other, collective.run(other))
    told = f"with {collective.NO_P2P}=1: {again.what}"
    return Finding(FAIL, what, f"{verdict.evidence}; {told}", verdict.next if not again.name else again.next)


def _known(subject: Subject) -> List[gpus.Card]:
    try:
        return subject.cards
    except Silent:
        return []


def _busy(service: Service, known: Sequence[gpus.Card], own: Sequence[int]) -> str:
    """Who is on the cards, or is about to be; empty when they are free."""
    holder = locks.owner(service)
    if holder is not None:
        return f"{holder.get('kind')} {holder.get('op')} is running"
    there = [each for each in gpus.ask_processes(list(known)) if each.gpu in own]
    used = [card.index for card in known if card.index in own and (card.used_mib or 0) > cards.IDLE_MIB]
    if there or used or members(service):
        return f"somebody is on {cards.numbered({each.gpu for each in there} | set(used) or own)}"
    return ""


def _ask_of(release: Release, ranks: int, own: int) -> Ask:
    place: Dict[str, Any] = release.document["engine"]["ranks"].get("cards") or {}
    first, step = int(place.get("first") or 0), int(place.get("step") or 1)
    env = {
        name: text
        for name, text in release.document["env"].items()
        # A build in front of the runtime's packages is not what is asked about.
        if "@{secret:" not in text and name != "PYTHONPATH"
    }
    ordinals = tuple(range(first, first + step * min(ranks, own), step))
    return Ask(_python(release), len(ordinals) or ranks, ordinals, env, collective.LIMIT_S)


def _python(release: Release) -> str:
    runtime: Optional[Dict[str, Any]] = release.document.get("runtime")
    return str(runtime["python"]) if runtime else str(release.document["argv"][0])
