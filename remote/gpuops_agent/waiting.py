"""The verb `wait`: until the service is ready, until its rollout is promoted, or until its server is dead.

It looks at what is on disk and at the process itself, and changes nothing. A death is heard of at once, by the process' descriptor.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from . import liveness, locks, ranks, releases
from .beats import during
from .files import read_json
from .logread import LogReader
from .net import listeners
from .paths import Root, Service
from .proc import Identity, alive, open_pidfd, wait_exit
from .recorder import outcome
from .records import ExitRecord, ServerRecord, lost_ranks, read_exit, read_server, run_processes, server_alive
from .server import of_release
from .status import CHECK_S
from .vault import Redactor
from .wire import BEAT_S, UNKNOWN, AgentError, emit

LOOK_S = 0.1
"""How often the files are looked at, in seconds."""

# The supervisor writes down how its server ended as soon as it has reaped it; longer than this is not waited for it.
EXIT_RECORD_S = 1.0

# A server that answers, but does not generate yet, is asked again after this time: each question costs it a little.
ASK_AGAIN_S = 0.5

# A runner that has not written who it is after this long never will (as in operations.py).
RUNNER_STARTS_S = 30.0

# The end of a log that is read for its last words.
TAIL_BYTES = 256 << 10


def wait(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Args: ``service``, ``for`` (ready, promoted or dead), ``timeout_s?``, and for promoted ``op?`` and ``since?``.

    The first event is ``waiting {for, since}``, and ``waiting {for, op}`` follows when the operation is known; whoever lost the link asks again with
    ``op`` or ``since``, and misses nothing.

    Returns:
        ready: ``{for, release, pid, port, evidence}``; promoted: the operation's outcome; dead: ``{for, release, pid, code, signal, line, at}``.
    Raises:
        AgentError: the time is over (code 1, kind ``timeout``); the runner of the operation died (12); there is nothing that could die.
    """
    service = root.service(args["service"])
    what = args["for"]
    ways: Dict[str, Callable[[Service, Dict[str, Any], _Clock], Dict[str, Any]]] = {
        "ready": _ready,
        "promoted": _promoted,
        "dead": _dead,
    }
    if what not in ways:
        raise AgentError(f"cannot wait for {what!r}", evidence=f"known: {', '.join(ways)}", code=2, kind="usage")
    since = float(args.get("since") or time.time())
    emit("waiting", **{"for": what, "since": round(since, 3)})
    return ways[what](service, {**args, "since": since}, _Clock(args.get("timeout_s")))


class _Clock:
    """The deadline of a wait, and its beats."""

    def __init__(self, timeout_s: Optional[float]) -> None:
        self._timeout_s = timeout_s
        self._began = self._spoke = time.monotonic()

    @property
    def left_s(self) -> float:
        return float("inf") if self._timeout_s is None else self._timeout_s - (time.monotonic() - self._began)

    def check(self, waited_for: str, evidence: str) -> None:
        """Beat when it is time. Raises AgentError when the time is over."""
        if self.left_s <= 0:
            raise AgentError(
                f"after {self._timeout_s:g} s still waiting for {waited_for}",
                evidence=evidence,
                next="gpuops status",
                kind="timeout",
            )
        now = time.monotonic()
        if now - self._spoke >= BEAT_S:
            # Also how the loss of the client is noticed: the write fails.
            emit("beat")
            self._spoke = now

    def pause(self, waited_for: str, evidence: str, seconds: float = LOOK_S) -> None:
        """Sleep a little. Raises AgentError when the time is over."""
        self.check(waited_for, evidence)
        time.sleep(max(0.0, min(seconds, self.left_s)))


def _ready(service: Service, args: Dict[str, Any], clock: _Clock) -> Dict[str, Any]:
    while True:
        record, number = server_alive(service), releases.current(service)
        waited_for = (
            f"release {number} of {service.name} to generate" if number else f"{service.name} to have a release that runs"
        )
        if record is None or record.release != number:
            clock.pause(waited_for, "its server does not run")
            continue
        if not _listens(service, record):
            clock.pause(waited_for, f"its server (pid {record.pid}) does not listen on port {record.port} yet")
            continue
        clock.check(waited_for, f"its server (pid {record.pid}) listens")
        release = releases.load(service, number)
        if release is None:
            raise AgentError(f"release {number} of {service.name} cannot be read", next="gpuops history", kind="no_release")
        server, log, limit = of_release(service, release), service.server_log(release.number), min(CHECK_S, clock.left_s)
        verdict = during(lambda: liveness.check(server, record, log, limit))  # noqa: B023 - it is called here
        still = server_alive(service)
        if verdict.state == liveness.SERVING and still == record and releases.current(service) == number:
            told = {"release": number, "pid": record.pid, "port": record.port, "evidence": verdict.evidence}
            return {"for": "ready", "service": service.name, **told}
        clock.pause(waited_for, f"{verdict.state}: {verdict.evidence}", ASK_AGAIN_S)


def _listens(service: Service, record: ServerRecord) -> bool:
    ours = {record.pid, *(identity.pid for identity, _ in run_processes(service))}
    return any(listener.pid in ours for listener in listeners(record.port, likely=ours))


def _promoted(service: Service, args: Dict[str, Any], clock: _Clock) -> Dict[str, Any]:
    op = args.get("op")
    if op is not None and not service.operation(op).is_dir():
        raise AgentError(f"service {service.name} has no operation {op}", next="gpuops history", kind="no_operation")
    while op is None:
        op = _running(service) or _began_since(service, args["since"])
        if op is None:
            clock.pause(f"an operation of {service.name} to begin", "none runs")
    emit("waiting", **{"for": "promoted", "op": op})
    while True:
        # In this order: a runner writes its outcome before it ends.
        lives = _lives(service, op)
        ended = outcome(service, op)
        if ended is not None:
            return ended
        if not lives:
            raise AgentError(
                f"operation {op} ended without an outcome: its runner died",
                evidence=f"no live runner, and no {op}/outcome.json",
                next="gpuops recover, or gpuops status",
                code=UNKNOWN,
                kind="runner_died",
            )
        clock.pause(f"operation {op} of {service.name} to end", "its runner lives")


def _running(service: Service) -> Optional[str]:
    """The operation that runs, or that is just about to: its runner has not taken the lock yet."""
    holder = locks.owner(service)
    if holder is not None and holder.get("op"):
        return str(holder["op"])
    open_ops = (folder.name for folder in _operations(service) if outcome(service, folder.name) is None)
    return next((op for op in open_ops if _lives(service, op)), None)


def _began_since(service: Service, since: float) -> Optional[str]:
    """The first operation that began since then: it may have ended between two looks."""
    began = [(_began(folder), folder.name) for folder in _operations(service)]
    return min((each for each in began if each[0] >= since), default=(0.0, None))[1]


def _operations(service: Service) -> List[Path]:
    try:
        return [folder for folder in service.operations.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    except OSError:
        return []


def _began(folder: Path) -> float:
    try:
        return (folder / "order.json").stat().st_mtime
    except OSError:
        return 0.0


def _lives(service: Service, op: str) -> bool:
    runner = read_json(service.operation(op) / "runner.json")
    try:
        if runner is not None:
            return alive(Identity.from_json(runner))
        return time.time() - service.operation(op).stat().st_ctime < RUNNER_STARTS_S
    except (OSError, ValueError):
        return False


def _dead(service: Service, args: Dict[str, Any], clock: _Clock) -> Dict[str, Any]:
    record = server_alive(service)
    if record is None:
        last = read_server(service)
        # It may have died this moment, and its supervisor not have written it down yet.
        ended = read_exit(service) or (_exit_of(service, last) if last is not None else None)
        if ended is None:
            raise AgentError(
                f"service {service.name} runs no server that could die",
                evidence="no live process is recorded, and none has ended",
                next="gpuops status",
                kind="not_running",
            )
        return _death(service, ended.release, ended.pid, ended)
    pidfd = open_pidfd(record.identity)
    if pidfd is not None:
        try:
            while not wait_exit(pidfd, min(BEAT_S, max(0.0, clock.left_s))):
                clock.check(f"the server of {service.name} (pid {record.pid}) to die", f"release {record.release} lives")
        finally:
            os.close(pidfd)
    return _death(service, record.release, record.pid, _exit_of(service, record))


def _exit_of(service: Service, record: ServerRecord) -> Optional[ExitRecord]:
    """How this server ended, as its supervisor writes it down; None when that does not come."""
    deadline = time.monotonic() + EXIT_RECORD_S
    while True:
        ended = read_exit(service)
        if ended is not None and (ended.pid, ended.release) == (record.pid, record.release):
            return ended
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.02)


def _death(service: Service, number: int, pid: int, ended: Optional[ExitRecord]) -> Dict[str, Any]:
    lost = ended.last_lost_rank if ended else None
    holder = locks.owner(service)
    return {
        "for": "dead",
        "service": service.name,
        "release": number,
        "pid": pid,
        "code": ended.code if ended else None,
        "signal": ended.signal if ended else None,
        "at": ended.at if ended else round(time.time(), 3),
        "last_lost_rank": lost.to_json() if lost else None,
        "ranks_lost": _ranks_lost(service, number) if lost else None,
        "operation": {key: holder.get(key) for key in ("op", "kind", "by")} if holder else None,
        "line": _last_words(service, number),
    }


def _ranks_lost(service: Service, number: int) -> Optional[str]:
    release = releases.load(service, number)
    return None if release is None else ranks.lost(lost_ranks(service), release.document["engine"]["ranks"])


def _last_words(service: Service, number: int) -> str:
    """The line that names the cause of a death, else the last one that says something."""
    release = releases.load(service, number)
    try:
        with service.server_log(number).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    if release is None:
        return ""
    reader = LogReader(release.document["engine"])
    reader.feed(Redactor(service.root)(text))
    reader.finish()
    return reader.fatal or reader.last_meaningful
