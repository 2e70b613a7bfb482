"""What a check of the doctor found, and what all checks look at."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import List, Optional, Set

from . import gpus, proc, session
from .paths import Root, Service
from .records import ServerRecord, run_processes, server_alive

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "unknown"


@dataclass(frozen=True)
class Finding:
    """``state`` is :data:`OK`, :data:`WARN` (it works, and may not for long), :data:`FAIL` (it does not), or :data:`UNKNOWN`.

    Args:
        what: one sentence.
        evidence: what was seen.
        next: the command to run or the thing to change.
    """

    state: str
    what: str
    evidence: str = ""
    next: str = ""


class Subject:
    """The host and the services that are looked at. What several checks need is asked once; a failure is each asker's own.

    ``collective``: let the ranks add up numbers also where a server runs.
    """

    def __init__(self, root: Root, services: List[Service], port: Optional[int] = None, collective: bool = False) -> None:
        self.root = root
        self.services = services
        self.port = port
        self.collective = collective

    @functools.cached_property
    def facts(self) -> session.Facts:
        return session.facts()

    @functools.cached_property
    def choice(self) -> session.Choice:
        return session.choose(self.facts)

    @functools.cached_property
    def cards(self) -> List[gpus.Card]:
        """Raises ask.Silent."""
        return gpus.ask_cards()

    @functools.cached_property
    def servers(self) -> List[ServerRecord]:
        """The servers that live."""
        return [record for record in map(server_alive, self.services) if record is not None]

    @functools.cached_property
    def ours(self) -> Set[int]:
        """The pids of the runs that live."""
        return {pid for service in self.services for pid in members(service)}


def services_of(root: Root) -> List[Service]:
    """Every service under ROOT, by name."""
    try:
        return [root.service(name) for name in sorted(os.listdir(root.services)) if not name.startswith(".")]
    except OSError:
        return []


def members(service: Service) -> Set[int]:
    """The pids of the service's run: the server, what descends from it, and what the supervisor has recorded."""
    record = server_alive(service)
    pids = {record.pid, *(stat.pid for stat in proc.descendants(record.pid))} if record is not None else set()
    return pids | {identity.pid for identity, _ in run_processes(service) if proc.alive(identity)}
