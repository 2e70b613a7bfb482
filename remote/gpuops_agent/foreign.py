"""A server that somebody started by hand: which process it is, and everything that is needed to start it again. It is only looked at."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Container, Dict, List, Optional

from . import proc
from .net import Listener, holds, listeners, listeners_of
from .proc import Identity
from .wire import REFUSED, AgentError

_CHOOSE = "name it: gpuops adopt --pid N, or --port N"


@dataclass(frozen=True)
class Foreign:
    """A process as ``/proc`` shows it.

    Args:
        dropped: names of environment variables that are no UTF-8 text, and are left out.
        log: the file that its standard output goes to; None for a terminal, a pipe, or nothing.
    """

    identity: Identity
    parent: int
    argv: List[str]
    env: Dict[str, str]
    dropped: List[str]
    cwd: Path
    executable: Path
    log: Optional[Path]


def find(pid: Optional[int], port: Optional[int], word: str, known: Container[int] = ()) -> int:
    """The pid of the server that is meant: as named, or who listens on the port, or the only listening process with ``word`` in its
    arguments that is not among the ``known``.

    Raises:
        AgentError: there is none, or more than one (code 13).
    """
    if pid is not None:
        return pid
    if port is not None:
        return _by_port(port)
    named = [stat.pid for stat in proc.processes() if _is_mine(stat.pid) and any(word in each for each in proc.cmdline(stat.pid))]
    found = [each for each in named if each not in known and listeners_of(each)]
    if len(found) != 1:
        raise _unclear(f"processes that listen and have {word!r} in their arguments", found)
    return found[0]


def read(pid: int) -> Foreign:
    """Look at the process.

    Raises:
        AgentError: it is gone, another user's, in a container of its own, or what it shows does not suffice to start it again (code 13).
    """
    stat = proc.read_stat(pid)
    if stat is None or not stat.living:
        raise refused(f"there is no process {pid}", "it has ended", _CHOOSE)
    if not _is_mine(pid):
        who = f"it runs as uid {os.stat(f'/proc/{pid}').st_uid}, we are uid {os.getuid()}"
        raise refused(f"process {pid} belongs to another user", who, "adopt it as its own user")
    for space in ("mnt", "pid"):
        if _link(pid, f"ns/{space}") != _link(os.getpid(), f"ns/{space}"):
            evidence = f"its {space} namespace is {_link(pid, f'ns/{space}')}"
            raise refused(f"process {pid} runs in a container", evidence, "run gpuops inside that container")
    argv = _argv(pid)
    env, dropped = _environment(pid)
    cwd = Path(_link(pid, "cwd"))
    if not cwd.is_dir():
        raise refused(
            f"process {pid} cannot be started again", f"its working folder is gone: {cwd}", "start it from a folder that stays"
        )
    _startable(pid, argv, env, cwd)
    log = Path(_link(pid, "fd/1"))
    return Foreign(
        identity=proc.identity_of(stat),
        parent=stat.ppid,
        argv=argv,
        env=env,
        dropped=dropped,
        cwd=cwd,
        executable=Path(_link(pid, "exe")),
        log=log if log.is_file() and log.stat().st_size > 0 else None,
    )


def ports(pid: int, wanted: Optional[int]) -> List[Listener]:
    """Where the process listens, one entry a port; only the wanted port when one is named.

    Raises:
        AgentError: it does not listen there (code 13).
    """
    found = {each.port: each for each in reversed(listeners_of(pid)) if wanted in (None, each.port)}
    if not found:
        where = "any port" if wanted is None else f"port {wanted}"
        raise refused(f"process {pid} does not listen on {where}", proc.title(pid), _CHOOSE)
    return [found[each] for each in sorted(found)]


def restarter(found: Foreign) -> Optional[str]:
    """Who may start the server again once it is stopped, in words; None when nobody is known to."""
    unit = _unit(found.identity.pid)
    if unit:
        return f"the systemd unit {unit} runs it, and may start it again when it is stopped: disable that"
    if found.parent > 1:
        return f"its parent (pid {found.parent}: {proc.title(found.parent)}) may start it again when it is stopped"
    return None


def refused(what: str, evidence: str, next: str, kind: str = "not_adoptable") -> AgentError:
    """An adoption that is refused; nothing was changed."""
    return AgentError(what, evidence=evidence, next=next, code=REFUSED, kind=kind)


def _by_port(port: int) -> int:
    found = listeners(port)
    if not found:
        raise refused(f"nothing listens on port {port}", "/proc/net/tcp and tcp6 list no such socket", _CHOOSE)
    strange = [each for each in found if each.pid is None]
    if strange:
        raise refused(f"port {port} belongs to another user", strange[0].who, "adopt it as its own user")
    tops = sorted({_top(each) for each in found})
    if len(tops) > 1:
        raise _unclear(f"processes that listen on port {port}", tops)
    return tops[0]


def _top(listener: Listener) -> int:
    """The process that opened the socket: the uppermost that has it."""
    assert listener.pid is not None
    pid = listener.pid
    while True:
        stat = proc.read_stat(pid)
        if stat is None or stat.ppid <= 1 or not holds(stat.ppid, listener):
            return pid
        pid = stat.ppid


def _unclear(what: str, found: List[int]) -> AgentError:
    listed = "; ".join(f"pid {pid}: {proc.title(pid)[:120]}" for pid in found)
    return refused(f"{len(found)} {what}" if found else f"no {what}", listed, _CHOOSE)


def _is_mine(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def _argv(pid: int) -> List[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        words = raw.decode("utf-8").split("\0") if raw.strip(b"\0") else []
    except (OSError, ValueError) as error:
        raise refused(f"the arguments of process {pid} cannot be read", str(error), "start the server by gpuops up") from error
    if not words:
        raise refused(f"process {pid} shows no arguments", proc.title(pid), "start the server by gpuops up")
    return words[:-1] if words[-1] == "" else words


def _environment(pid: int) -> "tuple[Dict[str, str], List[str]]":
    env: Dict[str, str] = {}
    dropped = []
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        raise refused(f"the environment of process {pid} cannot be read", str(error), "start the server by gpuops up") from error
    for entry in raw.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if not (name and equals):
            continue
        try:
            env.setdefault(name.decode(), value.decode())
        except UnicodeDecodeError:
            dropped.append(name.decode("utf-8", "replace"))
    return env, dropped


def _startable(pid: int, argv: List[str], env: Dict[str, str], cwd: Path) -> None:
    """A program may overwrite its arguments by a title; then they start nothing."""
    program = argv[0]
    found: Any = os.access(cwd / program, os.X_OK) if "/" in program else shutil.which(program, path=env.get("PATH", os.defpath))
    if not found:
        evidence = f"{program!r} is no program: its arguments are not those that it was started with"
        raise refused(f"process {pid} cannot be started again", evidence, "start the server by gpuops up")


def _unit(pid: int) -> str:
    """The system service whose control group holds the process; empty for a login session or no group."""
    try:
        rows = Path(f"/proc/{pid}/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    names = [row.rpartition("/")[2] for row in rows]
    return next((name for name in names if name.endswith(".service") and not name.startswith("user@")), "")


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""
