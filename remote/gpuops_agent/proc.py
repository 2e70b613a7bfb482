"""Processes by identity: found in ``/proc``, held by pidfd, signalled only when pid, start time, boot and pid namespace all match.

A pid alone names nothing: it is reused. Everything here that waits or signals opens a pidfd first and checks the identity *after*
opening, so that the process cannot be swapped in between. A zombie is dead: it holds no memory, no port and no device.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import math
import os
import re
import select
import signal
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional

from .wire import HOST_UNFIT, AgentError

DEAD_STATES = frozenset("ZXx")
"""``/proc/PID/stat`` states of a process that has ended (proc(5)): zombie, dead."""

_PF_EXITING = 0x4
"""The kernel's flag of a thread that has begun to end (include/linux/sched.h)."""

# The numbers are the same on every architecture since Linux 5.1 made new ones common (include/uapi/asm-generic/unistd.h).
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434

_KEY_OPTION = re.compile(r"(--?[\w-]*(?:api[-_]?key|password|passwd|secret|(?:auth|access|hf)[-_]?token)[= ])\S+", re.IGNORECASE)


@dataclass(frozen=True)
class Stat:
    """What ``/proc/PID/stat`` says; times in clock ticks, ``start`` counted from boot; state and ``flags`` are the main thread's."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgid: int
    sid: int
    utime: int
    stime: int
    start: int
    flags: int = 0

    @property
    def living(self) -> bool:
        return self.state not in DEAD_STATES

    @property
    def ending(self) -> bool:
        """Whether its main thread has ended or is about to, so that nothing can keep the process any more."""
        return not self.living or bool(self.flags & _PF_EXITING)


@dataclass(frozen=True)
class Identity:
    """One process, for ever: no other process has had, or will have, the same four values."""

    pid: int
    start: int
    boot_id: str
    pid_ns: str

    def to_json(self) -> Dict[str, Any]:
        return {"pid": self.pid, "start": self.start, "boot_id": self.boot_id, "pid_ns": self.pid_ns}

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "Identity":
        """Raises ValueError for anything that is no identity (a file that was cut or edited)."""
        try:
            identity = cls(int(value["pid"]), int(value["start"]), str(value["boot_id"]), str(value["pid_ns"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an identity: {value!r}") from error
        # 0 and negative pids mean groups to kill(2), and 1 is init: none of them is ever ours.
        if identity.pid <= 1 or identity.start < 0:
            raise ValueError(f"not an identity of ours: {value!r}")
        return identity


def read_stat(pid: int) -> Optional[Stat]:
    """The process now, a zombie included; None when there is none (or ``/proc`` hides it)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_stat(file.read())
    except (OSError, ValueError):
        return None


def parse_stat(raw: bytes) -> Stat:
    """One line of ``/proc/PID/stat``. The name in parentheses may hold spaces and parentheses itself, so the last one closes it.

    Raises:
        ValueError: the line is cut.
    """
    head, _, tail = raw.rpartition(b")")
    pid, _, comm = head.partition(b" (")
    fields = tail.split()
    if len(fields) < 20:
        raise ValueError("a cut stat line")
    return Stat(
        pid=int(pid),
        comm=os.fsdecode(comm),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        utime=int(fields[11]),
        stime=int(fields[12]),
        start=int(fields[19]),
        flags=int(fields[6]),
    )


@functools.lru_cache(maxsize=None)
def boot_id() -> str:
    """The kernel's random name for this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


@functools.lru_cache(maxsize=None)
def pid_namespace() -> str:
    """The pid namespace whose numbers we see: in another container the same number is another process."""
    return os.readlink("/proc/self/ns/pid")


def boottime() -> float:
    """Seconds since boot, sleep included: unlike the wall clock, nobody sets it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def identity_of(stat: Stat) -> Identity:
    return Identity(stat.pid, stat.start, boot_id(), pid_namespace())


def identify(pid: int) -> Optional[Identity]:
    """The identity of the process that has this number now; None when there is none. Zombies have one too."""
    stat = read_stat(pid)
    return identity_of(stat) if stat else None


def alive(identity: Identity) -> bool:
    """Whether this very process still runs.

    A process that we may not look at (``hidepid``) but that the kernel says exists counts as alive: it is for a person to judge.
    """
    if identity.boot_id != boot_id() or identity.pid_ns != pid_namespace():
        return False
    stat = read_stat(identity.pid)
    if stat is not None:
        return stat.start == identity.start and stat.living
    try:
        os.kill(identity.pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def ending(identity: Identity) -> bool:
    """Whether this very process has ended, is ending, or has a KILL before it.

    The kernel kills the children that asked for it (PR_SET_PDEATHSIG) when the thread that made them ends. Their end can be seen before the
    parent's: a process has ended only when its last thread has given its memory back.
    """
    stat = read_stat(identity.pid)
    if stat is None or stat.start != identity.start:
        return not alive(identity)
    return stat.ending or _kill_pending(identity.pid)


def open_pidfd(identity: Identity) -> Optional[int]:
    """A descriptor that holds this process, to be closed by the caller; None when it has gone.

    Raises:
        AgentError: the kernel has no pidfds (Linux < 5.3), or a container's filter forbids them.
    """
    try:
        pidfd = _pidfd_open(identity.pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            raise AgentError(
                "this host cannot hold processes by descriptor (pidfd_open)",
                evidence=f"{error}; kernel {os.uname().release}",
                next="use Linux 5.3 or newer, and a container runtime whose seccomp filter allows pidfd_open",
                code=HOST_UNFIT,
                kind="no_pidfd",
            ) from error
        if error.errno in (errno.ESRCH, errno.EINVAL):
            return None
        raise
    if alive(identity):
        return pidfd
    os.close(pidfd)
    return None


def send(identity: Identity, sig: int) -> bool:
    """Send a signal to this very process; False when it has gone.

    Raises:
        AgentError: it belongs to another user.
    """
    pidfd = open_pidfd(identity)
    if pidfd is None:
        return False
    try:
        _pidfd_send_signal(pidfd, sig)
        return True
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise AgentError(
            f"not allowed to signal process {identity.pid} ({title(identity.pid)})",
            evidence=f"{signal.Signals(sig).name}: {error.strerror}; it runs as uid {_uid(identity.pid)}, we are uid {os.getuid()}",
            next=f"end it as its own user: kill {identity.pid}",
            kind="not_permitted",
        ) from error
    finally:
        os.close(pidfd)


def wait_exit(pidfd: int, timeout: float) -> bool:
    """Wait until the process behind the descriptor has ended, ``timeout`` seconds at most; whether it has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0, math.ceil(timeout * 1000))))


def wait_gone(identity: Identity, timeout: float) -> bool:
    """Wait until this very process has ended, ``timeout`` seconds at most; whether it has."""
    pidfd = open_pidfd(identity)
    if pidfd is None:
        return True
    try:
        return wait_exit(pidfd, timeout)
    finally:
        os.close(pidfd)


def pids() -> Iterator[int]:
    """The numbers of all processes that we can see."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def processes() -> List[Stat]:
    """All processes that we can see, zombies included."""
    return [stat for stat in map(read_stat, pids()) if stat is not None]


def descendants(pid: int) -> List[Stat]:
    """Children, grandchildren and so on, parents before children; what was reparented away is not among them."""
    children: Dict[int, List[Stat]] = {}
    for stat in processes():
        children.setdefault(stat.ppid, []).append(stat)
    found: List[Stat] = []
    todo = [pid]
    while todo:
        below = children.pop(todo.pop(), [])
        found.extend(below)
        todo.extend(stat.pid for stat in below)
    return found


def cmdline(pid: int) -> List[str]:
    """The arguments as the process shows them; empty for kernel threads, zombies and what we cannot see."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read()
    except OSError:
        return []
    # A program that sets its title leaves the rest of the area as zero bytes.
    return [os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0")] if raw.strip(b"\0") else []


def title(pid: int) -> str:
    """What ``ps`` shows: the command line, else the short name. Values of key-like options are blanked."""
    words = " ".join(cmdline(pid)).strip()
    if words:
        return _KEY_OPTION.sub(r"\1***", words)
    stat = read_stat(pid)
    return stat.comm if stat else "?"


def _kill_pending(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            masks = [line.split()[1] for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except OSError:
        return False
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in masks)


def _pidfd_open(pid: int) -> int:
    # Pythons built against old kernel headers (conda's, for one) lack the function although the kernel has the call.
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    pidfd = _syscall(_SYS_PIDFD_OPEN, pid, 0)
    os.set_inheritable(pidfd, False)
    return pidfd


def _pidfd_send_signal(pidfd: int, sig: int) -> None:
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, sig)
    else:
        _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, sig, None, 0)


def _syscall(number: int, *args: Optional[int]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(
        libc.syscall(ctypes.c_long(number), *(ctypes.c_void_p(None) if arg is None else ctypes.c_long(arg) for arg in args))
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _uid(pid: int) -> str:
    try:
        return str(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "?"
