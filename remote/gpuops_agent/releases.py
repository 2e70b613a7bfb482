"""Releases on disk: numbered, immutable folders with a state beside them, and the links `current` and `good`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import journal
from .files import disk_error, read_json, switch_link, sync_folder, write_json
from .paths import Service

STAGED, STARTING, READY, VERIFIED, GOOD, BAD, UNKNOWN = "staged", "starting", "ready", "verified", "good", "bad", "unknown"


@dataclass(frozen=True)
class Release:
    """A release: its number and its resolved document (``release.json``)."""

    number: int
    path: Path
    document: Dict[str, Any]

    @property
    def spec(self) -> Optional[str]:
        spec = self.document.get("spec")
        return spec if isinstance(spec, str) else None


def numbers(service: Service) -> List[int]:
    """All release numbers, ascending."""
    try:
        names = os.listdir(service.releases)
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def load(service: Service, number: Optional[int]) -> Optional[Release]:
    """The release, or None when there is none of that number or its document is unreadable."""
    if number is None:
        return None
    document = read_json(service.release(number) / "release.json")
    return None if document is None else Release(number, service.release(number), document)


def current(service: Service) -> Optional[int]:
    """The number that the `current` link names."""
    return _linked(service.current)


def known_good(service: Service) -> Optional[int]:
    """The number that the `good` link names."""
    return _linked(service.good)


def meant(service: Service) -> Optional[int]:
    """The number of the release that a verb means when none is named: the current one, else the known-good one."""
    number = current(service)
    return number if number is not None else known_good(service)


def stage(service: Service, document: Dict[str, Any]) -> Release:
    """Write a new release with the next free number; its state is `staged`."""
    service.releases.mkdir(parents=True, exist_ok=True)
    number = (numbers(service) or [0])[-1] + 1
    folder = service.release(number)
    try:
        folder.mkdir()
    except OSError as error:
        raise disk_error(error, folder) from error
    try:
        write_json(folder / "release.json", {"number": number, **document})
        set_state(service, number, STAGED)
    except BaseException:
        # A release without a document is no release: leave no half of one.
        for leftover in folder.iterdir():
            leftover.unlink()
        folder.rmdir()
        raise
    sync_folder(service.releases)
    return Release(number, folder, document)


def state(service: Service, number: int) -> Dict[str, Any]:
    """``{state, reason, at}``; `unknown` when the file is missing or unreadable."""
    value = read_json(service.release(number) / "state.json")
    return (
        value if value is not None and "state" in value else {"state": UNKNOWN, "reason": "state.json is unreadable", "at": None}
    )


def set_state(service: Service, number: int, name: str, reason: str = "", op: str = "") -> None:
    """Journal the new state, then write its view."""
    journal.write(service, "state", release=number, state=name, reason=reason, op=op)
    write_json(service.release(number) / "state.json", {"state": name, "reason": reason, "at": round(time.time(), 3)})


def point(service: Service, link: Path, number: int) -> None:
    """Switch `current` or `good` to a release."""
    journal.write(service, "link", link=link.name, release=number)
    switch_link(link, Path("releases") / str(number))


def unpoint(service: Service, link: Path) -> None:
    """Remove `current`: nothing is meant to run."""
    journal.write(service, "link", link=link.name, release=None)
    link.unlink(missing_ok=True)


def _linked(link: Path) -> Optional[int]:
    try:
        name = Path(os.readlink(link)).name
    except OSError:
        return None
    return int(name) if name.isdigit() else None
