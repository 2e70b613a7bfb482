"""What of a host's ROOT may go: a pure decision over facts, with the reason for everything that goes and everything that stays.

Releases are judged by their state, what they use by whether a release that can still be started uses it. Whatever is not known stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, FrozenSet, Iterator, List, Optional, Tuple

from .releases import BAD, GOOD

KEEP_RELEASES = 5
"""Good releases of a service that stay, and as many of unknown worth, unless told otherwise."""

KEEP_OPERATIONS = 50
"""Finished operations of a service whose folders stay; the journal keeps a line of every one."""

RELEASE, OPERATION, RUNTIME, BUILD, MODEL, CACHE, AGENT = "release", "operation", "runtime", "build", "model", "cache", "agent"
OVERLAY, BUNDLE = "overlay", "bundle"

Key = Tuple[str, str]
"""(kind, name) of a thing that releases share."""


@dataclass(frozen=True)
class ReleaseFacts:
    """A release of a service. ``uses`` are the shared things that its document names, None when that cannot be read."""

    number: int
    path: Path
    state: str
    pinned: bool
    uses: Optional[FrozenSet[Key]]


@dataclass(frozen=True)
class ServiceFacts:
    """A service: its releases, which of them matter, and its finished operations, newest first.

    Args:
        running: the release whose server lives.
        busy: an operation of it runs.
    """

    name: str
    releases: Tuple[ReleaseFacts, ...] = ()
    current: Optional[int] = None
    good: Optional[int] = None
    running: Optional[int] = None
    busy: bool = False
    finished: Tuple[Path, ...] = ()


@dataclass(frozen=True)
class Thing:
    """Something that releases share. ``paths`` go together; ``needed`` says why it stays whatever the releases use, or is empty."""

    kind: str
    name: str
    paths: Tuple[Path, ...]
    needed: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.name


@dataclass(frozen=True)
class Verdict:
    """Whether one thing goes, and why. ``service`` is None for what services share."""

    kind: str
    service: Optional[str]
    name: str
    paths: Tuple[Path, ...]
    goes: bool
    why: str


def decide(services: Tuple[ServiceFacts, ...], things: Tuple[Thing, ...], keep: int, only: Optional[str] = None) -> List[Verdict]:
    """Judge everything.

    Args:
        keep: how many good releases of a service stay, and how many of unknown worth; at least 1.
        only: the one service whose releases and operations may go; what the others have stays, and what it uses.
    """
    verdicts: List[Verdict] = []
    needs = _Needs()
    for service in services:
        chosen = only in (None, service.name)
        reasons = {release.number: why for release, why in _stay(service, keep if chosen else len(service.releases))}
        needs.add(service, reasons)
        if chosen:
            verdicts += [_release(service, release, reasons.get(release.number), keep) for release in service.releases]
            verdicts += _operations(service)
    return verdicts + [needs.judge(thing) for thing in things]


def _stay(service: ServiceFacts, keep: int) -> Iterator[Tuple[ReleaseFacts, str]]:
    """The releases that stay, each with its reason."""
    newest_first = sorted(service.releases, key=lambda release: release.number, reverse=True)
    good = [release.number for release in newest_first if release.state == GOOD]
    unknown = [release.number for release in newest_first if release.state not in (GOOD, BAD)]
    for release in newest_first:
        why = _reason(service, release, good[:keep], unknown[:keep])
        if why:
            yield release, why


def _reason(service: ServiceFacts, release: ReleaseFacts, good: List[int], unknown: List[int]) -> str:
    number = release.number
    if startable := _startable(service, release, good):
        return startable
    if release.state == BAD:
        return "bad: its evidence stays"
    return f"its worth is unknown, and it is among the newest {len(unknown)} of these" if number in unknown else ""


def _startable(service: ServiceFacts, release: ReleaseFacts, good: List[int]) -> str:
    """Why somebody may want to start this release again; empty when nobody is expected to."""
    number = release.number
    if service.busy:
        return "an operation of the service is running"
    named = {
        "the current release": number == service.current,
        "the known-good release": number == service.good,
        "its server runs": number == service.running,
        "pinned": release.pinned,
        "among the newest good releases": number in good,
    }
    return next((why for why, holds in named.items() if holds), "")


def _release(service: ServiceFacts, release: ReleaseFacts, stays: Optional[str], keep: int) -> Verdict:
    what = "good" if release.state == GOOD else "of unknown worth"
    why = stays or f"{what}, and older than the newest {keep} of these"
    return Verdict(RELEASE, service.name, str(release.number), (release.path,), stays is None, why)


def _operations(service: ServiceFacts) -> List[Verdict]:
    why = f"finished, and older than the newest {KEEP_OPERATIONS}; the journal keeps what it did"
    old = () if service.busy else service.finished[KEEP_OPERATIONS:]
    return [Verdict(OPERATION, service.name, folder.name, (folder,), True, why) for folder in old]


class _Needs:
    """Which shared things are needed, and by whom."""

    def __init__(self) -> None:
        self._users: Dict[Key, str] = {}
        self._unknown = ""

    def add(self, service: ServiceFacts, stay: Dict[int, str]) -> None:
        """Take in what a service's startable releases use; ``stay`` are the reasons of the releases that stay."""
        if service.busy:
            self._unknown = self._unknown or f"an operation of {service.name} is running"
        good = [release.number for release in service.releases if release.state == GOOD and release.number in stay]
        for release in sorted(service.releases, key=lambda each: each.number, reverse=True):
            if not _startable(service, release, good):
                continue
            who = f"release {release.number} of {service.name}"
            if release.uses is None:
                self._unknown = self._unknown or f"{who} is unreadable: what it uses is unknown"
            for key in release.uses or ():
                self._users.setdefault(key, who)

    def judge(self, thing: Thing) -> Verdict:
        user = self._users.get(thing.key)
        stays = thing.needed or (f"{user} uses it" if user else "") or ("" if thing.kind == AGENT else self._unknown)
        return Verdict(thing.kind, None, thing.name, thing.paths, not stays, stays or _UNUSED.get(thing.kind, _NO_USER))


_NO_USER = "no release that can still be started uses it"
_UNUSED = {AGENT: "neither the present agent nor one that runs"}
