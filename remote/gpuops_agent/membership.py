"""Which living processes belong to a run, with a supervisor or without.

A process is of the run when one of these holds, each proof against a reused pid:

* it descends from the supervisor that holds the lock, or from another process of the run;
* it is the server, or a process that the supervisor recorded: pid, start time, boot and pid namespace are the same;
* it carries the run's random id in its environment (``GPUOPS_RUN``);
* it is in the server's session or process group *while* a process so verified is in it too: the kernel does not give a number
  away as long as any process has it as its session or group, so the number cannot have come to mean another session.
"""

from __future__ import annotations

import os
from typing import Dict, FrozenSet, List, Set, Tuple

from . import proc
from .paths import Service
from .proc import Identity, Stat
from .records import RUN_TAG, ServerRecord, read_run, read_server, supervisor_identity


class Members:
    """The processes of one service's run; what was found once is remembered, so that an orphan stays known."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: Dict[Identity, str] = {}
        self._not_tagged: Set[Tuple[int, int]] = set()

    @property
    def pids(self) -> FrozenSet[int]:
        """The pids of all that was ever found to belong to the run, dead ones too."""
        return frozenset(identity.pid for identity in self._known)

    def living(self) -> Dict[Identity, str]:
        """The processes of the run that live now, with their titles; never the supervisor, never this process or its parents."""
        stats = {stat.pid: stat for stat in proc.processes()}
        record = read_server(self._service)
        supervisor = supervisor_identity(self._service)
        recorded = dict(read_run(self._service).processes)
        seeds = {identity.pid for identity in [*self._known, *recorded] if proc.alive(identity)}
        if record is not None and record.boot_id == proc.boot_id() and record.pid_ns == proc.pid_namespace():
            if proc.alive(record.identity):
                seeds.add(record.pid)
            seeds |= self._tagged(record, stats)
            seeds |= _fellows(record, stats, seeds)
        if supervisor is not None:
            seeds.add(supervisor.pid)
        never = _line_of(os.getpid(), stats) | ({supervisor.pid} if supervisor is not None else set())
        found = {proc.identity_of(stats[pid]) for pid in _closure(seeds, stats) - never if pid in stats and stats[pid].living}
        for identity in found:
            self._known[identity] = recorded.get(identity) or self._known.get(identity) or stats[identity.pid].comm
        return {identity: self._known[identity] for identity in found}

    def _tagged(self, record: ServerRecord, stats: Dict[int, Stat]) -> Set[int]:
        tag = f"{RUN_TAG}={record.run}".encode()
        found = set()
        for stat in stats.values():
            key = (stat.pid, stat.start)
            if stat.start < record.start or key in self._not_tagged:
                continue
            if tag in _environment(stat.pid):
                found.add(stat.pid)
            else:
                self._not_tagged.add(key)
        return found


def _fellows(record: ServerRecord, stats: Dict[int, Stat], verified: Set[int]) -> Set[int]:
    """The other processes in the server's session and process group, where a verified one vouches for the number."""
    anchors = [stats[pid] for pid in verified if pid in stats]
    session = any(stat.sid == record.sid for stat in anchors)
    group = any(stat.pgid == record.pgid for stat in anchors)
    return {
        stat.pid
        for stat in stats.values()
        if stat.start >= record.start and ((session and stat.sid == record.sid) or (group and stat.pgid == record.pgid))
    }


def _closure(seeds: Set[int], stats: Dict[int, Stat]) -> Set[int]:
    children: Dict[int, List[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    found: Set[int] = set()
    todo = list(seeds)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children.get(pid, []))
    return found


def _line_of(pid: int, stats: Dict[int, Stat]) -> Set[int]:
    line: Set[int] = set()
    while pid in stats and pid not in line:
        line.add(pid)
        pid = stats[pid].ppid
    return line


def _environment(pid: int) -> FrozenSet[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return frozenset(file.read().split(b"\0"))
    except OSError:
        return frozenset()
