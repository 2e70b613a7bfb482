"""What supervision writes down, and how to read it back: launch specs, the PID file, exits, and the processes of a run.

Readers never fail on garbage: a file that is cut, empty or edited means "unknown" and reads as None.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from . import files, proc
from .paths import Root, Service
from .proc import Identity
from .shm import Segment

RUN_TAG = "GPUOPS_RUN"
"""Environment variable that every process of a run inherits; its value is the run's random id."""


@dataclass(frozen=True)
class LaunchSpec:
    """A server to start. ``argv`` and ``env`` are final but for ``@{secret:NAME}``, which the supervisor alone resolves.

    ``gpus`` are the ids of the GPUs that the server claims for itself (``claims.py``).
    """

    service: Service
    release: int
    argv: List[str]
    env: Dict[str, str]
    secrets_dir: Path
    port: int
    rank_patterns: List[str]
    log_file: Path
    cwd: Path
    gpus: List[str] = field(default_factory=list)

    def to_json(self) -> Dict[str, Any]:
        return {
            "root": str(self.service.root.path),
            "service": self.service.name,
            "release": self.release,
            "argv": self.argv,
            "env": self.env,
            "secrets_dir": str(self.secrets_dir),
            "port": self.port,
            "rank_patterns": self.rank_patterns,
            "log_file": str(self.log_file),
            "cwd": str(self.cwd),
            "gpus": self.gpus,
        }

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "LaunchSpec":
        return cls(
            service=Root(Path(value["root"])).service(value["service"]),
            release=value["release"],
            argv=value["argv"],
            env=value["env"],
            secrets_dir=Path(value["secrets_dir"]),
            port=value["port"],
            rank_patterns=value["rank_patterns"],
            log_file=Path(value["log_file"]),
            cwd=Path(value["cwd"]),
            gpus=value.get("gpus", []),
        )


@dataclass(frozen=True)
class ServerRecord:
    """The PID file. ``argv_sha256`` is over the NUL-joined argv with its secrets unresolved; ``started_at`` is the wall clock,
    ``started_boot`` seconds since boot; ``run`` is the value of :data:`RUN_TAG` in the environment of every process of the run."""

    pid: int
    start: int
    boot_id: str
    pid_ns: str
    pgid: int
    sid: int
    executable: str
    argv_sha256: str
    release: int
    port: int
    supervisor: Identity
    run: str
    started_at: float
    started_boot: float

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start, self.boot_id, self.pid_ns)

    def to_json(self) -> Dict[str, Any]:
        return {**vars(self), "supervisor": {"pid": self.supervisor.pid, "start": self.supervisor.start}}

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "ServerRecord":
        """Raises ValueError for anything that is no whole PID file."""
        try:
            server = Identity.from_json(value)
            supervisor = Identity.from_json({**server.to_json(), **value["supervisor"]})
            return cls(
                pid=server.pid,
                start=server.start,
                boot_id=server.boot_id,
                pid_ns=server.pid_ns,
                pgid=int(value["pgid"]),
                sid=int(value["sid"]),
                executable=str(value["executable"]),
                argv_sha256=str(value["argv_sha256"]),
                release=int(value["release"]),
                port=int(value["port"]),
                supervisor=supervisor,
                run=str(value["run"]),
                started_at=float(value["started_at"]),
                started_boot=float(value["started_boot"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a PID file: {error!r}") from error


@dataclass(frozen=True)
class LostRank:
    """A rank that ended while its server lived; ``at`` is the wall clock. ``code`` and ``signal`` are None when nobody could see them."""

    pid: int
    title: str
    at: float
    code: Optional[int] = None
    signal: Optional[int] = None

    def to_json(self) -> Dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "LostRank":
        return cls(int(value["pid"]), str(value["title"]), float(value["at"]), value.get("code"), value.get("signal"))


@dataclass(frozen=True)
class ExitRecord:
    """How the server ended: ``code`` or ``signal``, the wall clock, the boot id, and the rank that was lost last before it.

    Of an ``adopted`` server only its end is known: it was no child of its supervisor, and the kernel tells the status to the parent alone.
    """

    pid: int
    release: int
    code: Optional[int]
    signal: Optional[int]
    at: float
    boot: str
    last_lost_rank: Optional[LostRank]
    adopted: bool = False

    def to_json(self) -> Dict[str, Any]:
        return {**vars(self), "last_lost_rank": self.last_lost_rank.to_json() if self.last_lost_rank else None}

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "ExitRecord":
        lost = value.get("last_lost_rank")
        return cls(
            pid=int(value["pid"]),
            release=int(value["release"]),
            code=value["code"],
            signal=value["signal"],
            at=float(value["at"]),
            boot=str(value["boot"]),
            last_lost_rank=LostRank.from_json(lost) if lost else None,
            adopted=bool(value.get("adopted", False)),
        )


@dataclass(frozen=True)
class RunProcesses:
    """``processes.json``: the living processes of the run with their titles, the ranks lost, and the run's shared memory.

    ``shm_before`` lay in ``/dev/shm`` before the run began: never ours, whoever maps it. None when that is unknown.
    """

    processes: Tuple[Tuple[Identity, str], ...] = ()
    lost: Tuple[LostRank, ...] = ()
    shm: FrozenSet[Segment] = frozenset()
    shm_before: Optional[FrozenSet[Segment]] = None

    def to_json(self) -> Dict[str, Any]:
        before = sorted(self.shm_before or (), key=lambda each: each.name)
        return {
            "boot_id": proc.boot_id(),
            "processes": [{**identity.to_json(), "title": title} for identity, title in self.processes],
            "lost": [rank.to_json() for rank in self.lost],
            "shm": [segment.to_json() for segment in sorted(self.shm, key=lambda each: each.name)],
            "shm_before": [segment.to_json() for segment in before],
        }

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "RunProcesses":
        return cls(
            processes=tuple((Identity.from_json(each), str(each["title"])) for each in value["processes"]),
            lost=tuple(LostRank.from_json(each) for each in value["lost"]),
            shm=frozenset(Segment.from_json(each) for each in value["shm"]),
            shm_before=frozenset(Segment.from_json(each) for each in value["shm_before"]),
        )


def read_server(service: Service) -> Optional[ServerRecord]:
    """The PID file, whether or not its process lives; None when there is none that can be read."""
    value = files.read_json(service.server_file)
    try:
        return ServerRecord.from_json(value) if value is not None else None
    except ValueError:
        return None


def server_alive(service: Service) -> Optional[ServerRecord]:
    """The PID file of a server that lives: same pid, start time, boot and pid namespace, and no zombie. None otherwise."""
    record = read_server(service)
    return record if record is not None and proc.alive(record.identity) else None


def read_exit(service: Service) -> Optional[ExitRecord]:
    """How the last server ended; None while it runs, and when its supervisor could not write it (it died first)."""
    value = files.read_json(service.exit_file)
    try:
        return ExitRecord.from_json(value) if value is not None else None
    except (KeyError, TypeError, ValueError):
        return None


def read_run(service: Service) -> RunProcesses:
    """``processes.json``; empty when there is none that can be read. Of an earlier boot only the lost ranks still mean something."""
    value = files.read_json(service.processes_file)
    if value is None:
        return RunProcesses()
    try:
        run = RunProcesses.from_json(value)
        return run if value["boot_id"] == proc.boot_id() else RunProcesses(lost=run.lost)
    except (KeyError, TypeError, ValueError, AttributeError):
        return RunProcesses()


def run_processes(service: Service) -> List[Tuple[Identity, str]]:
    """The processes of the run with their titles, as the supervisor last wrote them; they may have ended since."""
    return list(read_run(service).processes)


def lost_ranks(service: Service) -> List[LostRank]:
    """The ranks that ended while the server lived, oldest first."""
    return list(read_run(service).lost)


def supervisor_alive(service: Service) -> bool:
    """Whether a supervisor holds its lock.

    Looking takes the lock for an instant, shared; a supervisor that starts meanwhile tries again (``supervisor.py``).
    """
    try:
        fd = os.open(service.supervisor_lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def supervisor_identity(service: Service) -> Optional[Identity]:
    """The supervisor that holds the lock: it writes its identity into the file. None when the lock is free, or just being taken."""
    if not supervisor_alive(service):
        return None
    with contextlib.suppress(OSError, ValueError):
        identity = Identity.from_json(json.loads(service.supervisor_lock.read_bytes()))
        return identity if proc.alive(identity) else None
    return None
