"""The server's parent, for as long as the server lives; or its guardian, when somebody else is the parent.

``launch`` starts the hidden verb ``supervise`` detached from everything of the caller, and waits for its word. The supervisor is a
session leader and a subreaper, so no process of the run gets away from it; it holds ``supervisor.lock`` for life, so that "lock
held" means "supervisor alive" whatever pid it had. It writes the PID file before the server runs, watches the tree (``watch.py``),
and when the server ends it writes ``exit.json``, ends what the server left behind, and goes.

``adopt`` does the same for a server that runs already: one that was started by hand, or whose supervisor died.

Signals: TERM is passed on to the server, and the supervisor carries on until it ends. USR1 announces a stop: ranks that end from
then on are not lost ones. HUP, INT and QUIT are ignored.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import re
import secrets as random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, NoReturn, Tuple

from . import child, claims, files, inheritance, lifeguard, proc, releases, session, subreaper
from .child import Program
from .kin import Adopted, Children
from .paths import Root, Service
from .records import (
    RUN_TAG,
    ExitRecord,
    LaunchSpec,
    LostRank,
    ServerRecord,
    lost_ranks,
    read_exit,
    read_run,
    read_server,
    run_processes,
    server_alive,
    supervisor_alive,
    supervisor_identity,
)
from .vault import Redactor
from .watch import Subject, Watch
from .wire import REFUSED, UNKNOWN, AgentError

__all__ = [
    "ExitRecord",
    "LaunchSpec",
    "LostRank",
    "ServerRecord",
    "adopt",
    "launch",
    "lost_ranks",
    "main",
    "read_exit",
    "read_server",
    "run_processes",
    "server_alive",
    "supervisor_alive",
]

_SECRET = re.compile(r"@\{secret:([^}]+)\}")
_LOCK_PATIENCE_S = 2.0
_OOM_SCORE_ADJ = "-500"


def launch(spec: LaunchSpec, zipapp: Path, ack_timeout: float = 30.0) -> ServerRecord:
    """Start a server under a supervisor of its own; return when the server's program runs (not when it serves).

    The supervisor outlives the caller and holds none of its descriptors.

    Raises:
        AgentError: another supervisor is at work (code 13); the program cannot be executed (kind ``exec_failed``); a secret is
            missing; or no word came within ``ack_timeout`` seconds (code 12: stop the service to be sure that nothing runs).
    """
    return _supervised(spec.service, spec.to_json(), zipapp, ack_timeout)


def adopt(service: Service, record: ServerRecord, zipapp: Path, ack_timeout: float = 30.0) -> ServerRecord:
    """Put a living server under a supervisor that is not its parent; return the record with that supervisor in it.

    The release that the record names must be staged: its document tells the ranks and the GPUs. The server is not touched.

    Raises:
        AgentError: a supervisor is at work already (code 13, kind ``supervised``), another service holds the port or a GPU
            (code 13), or the server has ended (kind ``server_gone``).
    """
    request = {"adopt": record.to_json(), "root": str(service.root.path), "service": service.name}
    return _supervised(service, request, zipapp, ack_timeout)


def _supervised(service: Service, request: Dict[str, Any], zipapp: Path, ack_timeout: float) -> ServerRecord:
    service.run.mkdir(parents=True, exist_ok=True)
    with service.supervisor_log.open("ab") as log:
        process = subprocess.Popen(
            [*session.prefix(service), sys.executable, "-IS", str(zipapp), "supervise"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    with process:
        try:
            answer, _ = process.communicate(json.dumps(request).encode("utf-8", "surrogateescape"), timeout=ack_timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise _no_word(service, f"no word within {ack_timeout:g} s", UNKNOWN) from error
    if not answer:
        raise _no_word(service, f"it ended with status {process.returncode} before its first word", 1)
    word = json.loads(answer)
    if "error" in word:
        raise AgentError(**word["error"])
    return ServerRecord.from_json(word["server"])


def main(stdin: BinaryIO) -> int:
    """The verb ``supervise``: a launch spec, or ``{adopt: server record, root, service}``, as JSON on stdin; one JSON line on
    stdout, ``{"server"}`` or ``{"error"}``."""
    request = json.loads(stdin.read())
    service = Root(Path(request["root"])).service(request["service"])
    if os.fork():
        # The launcher reaps this process at once, and init will reap the supervisor.
        os._exit(0)
    _supervise(request, service, _detach(service))


def _supervise(request: Dict[str, Any], service: Service, ack: int) -> NoReturn:
    try:
        if "adopt" in request:
            watch, record = _take_over(service, ServerRecord.from_json(request["adopt"]))
        else:
            watch, record = _start(LaunchSpec.from_json(request))
    except AgentError as error:
        _say(ack, {"error": error.as_dict()})
        os._exit(error.code)
    except BaseException as error:
        traceback.print_exc()
        _say(ack, {"error": AgentError(f"the supervisor failed: {type(error).__name__}", evidence=str(error)).as_dict()})
        os._exit(1)
    _say(ack, {"server": record.to_json()})
    try:
        watch.until_exit()
        watch.sweep()
        if not lifeguard.undo_cut(service) and not watch.asked_to_stop:
            # The last thing that this process does: the runner that comes needs our locks.
            lifeguard.server_ended(service, record.release)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _start(spec: LaunchSpec) -> Tuple[Watch, ServerRecord]:
    """Everything from the lock to the running server."""
    service = spec.service
    _take_lock(service)
    subreaper.become()
    old = server_alive(service)
    if old is not None:
        raise _still_runs(service, old)
    # Before the fork, and closed by exec: the server must not keep them.
    claims.take(service, spec.release, spec.port, spec.gpus)
    program, redact = _resolve(spec, run=random.token_hex(8))
    left_over = inheritance.for_new_server(read_run(service))
    for file in (service.exit_file, service.server_file):
        file.unlink(missing_ok=True)
    files.write_json(service.processes_file, left_over.to_json())
    waiting = child.spawn(program)
    os.close(program.log_fd)
    record = _record(spec, program, waiting.pid)
    subject = Subject(service, spec.release, spec.rank_patterns, redact)
    watch = Watch(subject, Children(record.identity), left_over, lambda: lifeguard.look_after_rollout(service))
    try:
        files.write_json(service.server_file, record.to_json())
    except BaseException:
        waiting.abandon()
        raise
    try:
        waiting.release()
    except AgentError:
        service.server_file.unlink(missing_ok=True)
        raise
    # Only now, so that the server did not inherit it.
    _protect_from_oom()
    return watch, record


def _take_over(service: Service, found: ServerRecord) -> Tuple[Watch, ServerRecord]:
    """Everything from the lock to the watch over a server that runs already."""
    _take_lock(service)
    old = server_alive(service)
    if old is not None and old.identity != found.identity:
        raise _still_runs(service, old)
    if not proc.alive(found.identity):
        raise AgentError(f"the server (pid {found.pid}) has ended", next="gpuops status", kind="server_gone")
    release = releases.load(service, found.release)
    document = release.document if release is not None else {}
    claims.take(service, found.release, found.port, claims.gpus_of(document))
    me = proc.identify(os.getpid())
    assert me is not None, "this process has no /proc entry"
    record = dataclasses.replace(found, supervisor=me)
    run = read_run(service)
    left_over = inheritance.of_same_server(run) if old is not None else inheritance.of_foreign_server(run, found.pid)
    service.exit_file.unlink(missing_ok=True)
    files.write_json(service.processes_file, left_over.to_json())
    files.write_json(service.server_file, record.to_json())
    patterns = document.get("engine", {}).get("ranks", {}).get("patterns", [])
    subject = Subject(service, record.release, patterns, Redactor(service.root))
    watch = Watch(subject, Adopted(service, record.identity), left_over, lambda: lifeguard.look_after_rollout(service))
    _protect_from_oom()
    return watch, record


def _detach(service: Service) -> int:
    """Leave the launcher: own session, no descriptor of its, nothing of the terminal. Returns the ack descriptor."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    ack = os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(service.supervisor_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    child.close_all_but((0, 1, 2, ack))
    return ack


def _take_lock(service: Service) -> None:
    """Hold ``supervisor.lock`` until this process ends: the descriptor is left open on purpose, and exec closes it in the server."""
    fd = os.open(service.supervisor_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Whoever asks "is a supervisor alive?" holds the lock for an instant.
            if time.monotonic() > deadline:
                raise _locked(service) from None
            time.sleep(0.02)
    me = proc.identify(os.getpid())
    assert me is not None
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(me.to_json()).encode(), 0)


def _locked(service: Service) -> AgentError:
    holder = supervisor_identity(service)
    server = read_server(service)
    runs = f"it runs release {server.release}, pid {server.pid}" if server else "it has no server yet"
    return AgentError(
        f"a supervisor of service {service.name} is at work (pid {holder.pid if holder else 'unknown'})",
        evidence=f"{service.supervisor_lock} is held; {runs}",
        next="stop it first: gpuops down",
        code=REFUSED,
        kind="supervised",
    )


def _still_runs(service: Service, old: ServerRecord) -> AgentError:
    return AgentError(
        f"the server of release {old.release} still runs (pid {old.pid}), without a supervisor",
        evidence=f"{service.server_file}: {proc.title(old.pid)}",
        next="stop it first: gpuops down",
        code=REFUSED,
        kind="server_alive",
    )


def _resolve(spec: LaunchSpec, run: str) -> Tuple[Program, Callable[[str], str]]:
    """The program with its secrets, and a function that takes the secrets out of a text again."""
    values: Dict[str, str] = {}
    for text in [*spec.argv, *spec.env.values()]:
        for name in _SECRET.findall(text):
            values[name] = _secret(spec.secrets_dir, name)
    argv = [_SECRET.sub(lambda match: values[match.group(1)], word) for word in spec.argv]
    env = {name: _SECRET.sub(lambda match: values[match.group(1)], text) for name, text in spec.env.items()}
    env[RUN_TAG] = run
    executable = argv[0]
    if "/" not in executable:
        executable = shutil.which(executable, path=env.get("PATH", os.defpath)) or executable
    try:
        log = os.open(spec.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise files.disk_error(error, spec.log_file) from error
    longest_first = sorted(values.items(), key=lambda item: -len(item[1]))

    def redact(text: str) -> str:
        for name, value in longest_first:
            text = text.replace(value, f"@{{secret:{name}}}")
        return text

    return Program(executable, argv, env, spec.cwd, log), redact


def _secret(folder: Path, name: str) -> str:
    try:
        value = (folder / Path(name).name).read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n")
    except OSError as error:
        value, why = "", str(error.strerror)
    else:
        why = "the file is empty"
    if value:
        return value
    raise AgentError(
        f"the secret {name} is not on the host",
        evidence=f"{folder / Path(name).name}: {why}",
        next=f"store it: gpuops secret {name}",
        kind="secret_missing",
    )


def _record(spec: LaunchSpec, program: Program, pid: int) -> ServerRecord:
    server, me = proc.identify(pid), proc.identify(os.getpid())
    assert server is not None and me is not None, "an unreaped child and this process exist"
    return ServerRecord(
        **server.to_json(),
        # The child is made the leader of both before its gate opens.
        pgid=pid,
        sid=pid,
        executable=program.executable,
        argv_sha256=hashlib.sha256("\0".join(spec.argv).encode("utf-8", "surrogateescape")).hexdigest(),
        release=spec.release,
        port=spec.port,
        supervisor=me,
        run=program.env[RUN_TAG],
        started_at=round(time.time(), 3),
        started_boot=round(proc.boottime(), 3),
    )


def _protect_from_oom() -> None:
    """Let the kernel's OOM killer take the server first. Needs CAP_SYS_RESOURCE; without it nothing changes."""
    try:
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJ, encoding="ascii")
    except OSError:
        pass


def _say(ack: int, word: Dict[str, Any]) -> None:
    """The one word to the launcher. One that has gone does not matter: the files say the same."""
    try:
        os.write(ack, json.dumps(word).encode())
        os.close(ack)
    except OSError:
        pass


def _no_word(service: Service, evidence: str, code: int) -> AgentError:
    try:
        tail: List[str] = service.supervisor_log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
    except OSError:
        tail = []
    return AgentError(
        "the supervisor did not start the server",
        evidence="; ".join([evidence, *tail]),
        next="stop the service, to be sure that nothing runs: gpuops down",
        code=code,
        kind="no_supervisor",
    )
