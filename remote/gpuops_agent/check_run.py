"""Do the files tell the truth about each service, and has anything been left behind by a run that is over?"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Dict, FrozenSet, List, Optional, Set

from . import net, proc, releases, shm
from .check import FAIL, OK, WARN, Finding, Subject, members, services_of
from .paths import Service
from .proc import Stat
from .records import RUN_TAG, read_exit, read_run, read_server, server_alive, supervisor_alive, supervisor_identity
from .shm import Segment

_MODEL_DISK_WARN = 1 << 30
_MANY = 5


def supervisor(subject: Subject, service: Service) -> Finding:
    """A server that runs has a supervisor that watches it, and the lock is held by a process that says who it is."""
    record, identity = server_alive(service), supervisor_identity(service)
    if record is not None and not supervisor_alive(service):
        return Finding(
            FAIL,
            f"the server (pid {record.pid}) runs without a supervisor: nobody will record its end",
            f"{service.supervisor_lock} is free",
            "gpuops restart",
        )
    if identity is None and supervisor_alive(service):
        return Finding(
            WARN, "the supervisor's lock is held by a process that does not say who it is", str(service.supervisor_lock)
        )
    if identity is None:
        return Finding(OK, "no supervisor, and no server to watch")
    return Finding(OK, f"the supervisor lives (pid {identity.pid}) and holds its lock", proc.title(identity.pid))


def identity(subject: Subject, service: Service) -> Finding:
    """The PID file names the process that it means: same pid, start time, boot and pid namespace."""
    record, meant = read_server(service), releases.current(service)
    if record is None:
        if meant is None:
            return Finding(OK, "no server is recorded, and none is meant to run")
        return Finding(
            FAIL, f"release {meant} is meant to run, and no server is recorded", str(service.server_file), "gpuops restore"
        )
    if proc.alive(record.identity):
        return Finding(OK, f"pid {record.pid} is the server of release {record.release}", proc.title(record.pid))
    if record.boot_id != proc.boot_id():
        return Finding(WARN, f"the record of pid {record.pid} is of an earlier boot", str(service.server_file))
    if record.pid_ns != proc.pid_namespace():
        evidence = f"recorded in {record.pid_ns}, we are in {proc.pid_namespace()}"
        return Finding(WARN, "the server was started in another container (pid namespace): its pid means nothing here", evidence)
    now = proc.read_stat(record.pid)
    reused = f"; pid {record.pid} is now {proc.title(record.pid)}, which is not ours" if now is not None and now.living else ""
    if meant is None:
        return Finding(OK, f"the server has ended, and none is meant to run{reused}")
    return Finding(FAIL, f"the server of release {record.release} is dead{reused}", _end(service), "gpuops restore")


def boot(subject: Subject, service: Service) -> Finding:
    """The host has not been rebooted under a server that is meant to run."""
    record, meant = read_server(service), releases.current(service)
    if record is None or record.boot_id == proc.boot_id():
        return Finding(OK, "no reboot since the server was started" if record else "no server is recorded")
    evidence = f"started in boot {record.boot_id}, this is {proc.boot_id()}, up {proc.boottime():.0f} s"
    if meant is None:
        return Finding(OK, "the host was rebooted, and no server is meant to run", evidence)
    return Finding(FAIL, f"the host was rebooted: release {meant} is meant to run and does not", evidence, "gpuops restore")


def port(subject: Subject, service: Service) -> Finding:
    """The service's port is its own server's, or nobody's."""
    record, current = server_alive(service), releases.load(service, releases.current(service))
    number = record.port if record else current.document["port"] if current else None
    if number is None:
        return Finding(OK, "no port is meant to be in use")
    found = _port(subject, number)
    if record is not None and not net.listeners(number, likely=subject.ours):
        return Finding(WARN, f"our server (pid {record.pid}) does not listen on port {number}", next="gpuops status --check")
    return found


def wanted_port(subject: Subject) -> Finding:
    """A port that somebody asks about is nobody's, or ours."""
    assert subject.port is not None
    return _port(subject, subject.port)


def model(subject: Subject, service: Service) -> Finding:
    """The current release's model is there, and its disk has room."""
    current = releases.load(service, releases.current(service) or releases.known_good(service))
    if current is None:
        return Finding(OK, "no release, no model")
    path = Path(current.document["model"]["path"])
    if not path.exists():
        return Finding(
            FAIL, f"the model of release {current.number} is not there", str(path), "mount it, or gpuops up to fetch it"
        )
    free = shutil.disk_usage(path).free
    return Finding(WARN if free < _MODEL_DISK_WARN else OK, f"the model is there; its disk has {free >> 20} MiB free", str(path))


def leftover_processes(subject: Subject) -> Finding:
    """No process of a run lives without a supervisor above it."""
    stats = {stat.pid: stat for stat in proc.processes() if stat.living}
    # A supervisor that has adopted a server is no ancestor of it: its files say what is its own.
    adopted = {pid for service in services_of(subject.root) if supervisor_alive(service) for pid in members(service)}
    left = [stat for stat in stats.values() if stat.pid not in adopted and _tagged(stat.pid) and not _supervised(stat, stats)]
    if not left:
        return Finding(OK, "every process of a run has its supervisor", f"{RUN_TAG} in /proc/*/environ")
    named = [f"pid {stat.pid}: {proc.title(stat.pid)[:100]}" for stat in left]
    return Finding(
        WARN,
        f"{len(left)} processes of a run have no supervisor",
        _some(named),
        "gpuops down ends those of its service; the others: kill " + " ".join(str(stat.pid) for stat in left[:_MANY]),
    )


def leftover_shm(subject: Subject) -> Finding:
    """No segment in /dev/shm outlives its run: enough of them, and the next start fails with a bus error."""
    here = shm.segments()
    dead: Set[Segment] = set()
    for service in subject.services:
        if not supervisor_alive(service):
            dead |= read_run(service).shm & here
    orphans = {each for each in here if (creator := shm.pid_in_name(each)) is not None and not _exists(creator)}
    suspects = dead | orphans
    left = suspects - _held(suspects)
    if not left:
        return Finding(OK, "no shared memory of a dead process", f"{len(here)} segments in {shm.FOLDER}")
    paths = sorted(f"{shm.FOLDER}/{each.name}" for each in left)
    size = sum(_size(path) for path in paths)
    return Finding(
        WARN,
        f"{len(left)} segments ({size >> 20} MiB) of dead processes lie in {shm.FOLDER}",
        _some(paths),
        f"look at them, then: rm {' '.join(paths[:_MANY])}",
    )


def _port(subject: Subject, number: int) -> Finding:
    holders = net.listeners(number, likely=subject.ours)
    foreign = [each for each in holders if each.pid not in subject.ours]
    if foreign:
        what = f"port {number} is taken by a process that is not ours"
        return Finding(FAIL, what, foreign[0].who, "stop that process, or choose another port: --set server.port=NUMBER")
    if holders:
        return Finding(OK, f"port {number} is our server's", holders[0].who)
    return Finding(OK, f"port {number} is free")


def _end(service: Service) -> str:
    ended = read_exit(service)
    if ended is None:
        return f"nobody recorded how; see {service.supervisor_log}"
    how = f"signal {ended.signal}" if ended.signal is not None else f"exit status {ended.code}"
    return f"{how}, {max(0.0, time.time() - ended.at):.0f} s ago"


def _tagged(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(row.startswith(RUN_TAG.encode() + b"=") for row in file.read().split(b"\0"))
    except OSError:
        return False


def _supervised(stat: Stat, stats: Dict[int, Stat]) -> bool:
    """Whether a supervisor is among the ancestors: as a subreaper it stays one of everything that its server starts."""
    seen: Set[int] = set()
    at: Optional[Stat] = stat
    while at is not None and at.pid not in seen:
        if proc.cmdline(at.pid)[-1:] == ["supervise"]:
            return True
        seen.add(at.pid)
        at = stats.get(at.ppid)
    return False


def _exists(pid: int) -> bool:
    stat = proc.read_stat(pid)
    if stat is not None:
        return stat.living
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's, hidden by hidepid
        return True
    return True


def _held(suspects: Set[Segment]) -> FrozenSet[Segment]:
    return shm.held(proc.pids()) if suspects else frozenset()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def _some(texts: List[str]) -> str:
    more = f"; and {len(texts) - _MANY} more" if len(texts) > _MANY else ""
    return "; ".join(texts[:_MANY]) + more
