"""The server process between fork and exec: its own session, clean signals and descriptors, and a gate before it runs.

The gate lets the PID file reach the disk before the server exists as such: the child waits on a pipe, and a supervisor that dies
there closes the pipe, so the child ends without ever running the server. A second pipe, closed by a successful exec, carries the
reason when exec fails.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, NoReturn

from .wire import AgentError

_GO = b"g"


@dataclass(frozen=True)
class Program:
    """What to execute: ``argv`` and ``env`` with their secrets in them, so this is never written anywhere."""

    executable: str
    argv: List[str]
    env: Dict[str, str]
    cwd: Path
    log_fd: int

    def __repr__(self) -> str:
        return f"Program({self.executable!r})"


@dataclass(frozen=True)
class Child:
    """A forked child that waits at the gate."""

    pid: int
    executable: str
    gate: int
    report: int

    def release(self) -> None:
        """Open the gate, and return once the server's program runs.

        Raises:
            AgentError: exec failed, with the errno text. The child has ended then, and waits to be reaped.
        """
        try:
            os.write(self.gate, _GO)
        except BrokenPipeError:  # it failed before it came to the gate: the report says why
            pass
        os.close(self.gate)
        with os.fdopen(self.report, "rb") as report:
            failure = report.read()
        if failure:
            raise _failed(self.executable, json.loads(failure))

    def abandon(self) -> None:
        """Close the gate for good: the child ends without running the server."""
        os.close(self.gate)
        os.close(self.report)


def spawn(program: Program) -> Child:
    """Fork the child and leave it waiting at the gate."""
    gate_read, gate_write = os.pipe()
    report_read, report_write = os.pipe()
    # No signal may meet the child while it still has our handlers.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        _become(program, gate_read, report_write)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(gate_read)
    os.close(report_write)
    return Child(pid, program.executable, gate_write, report_read)


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor that is not in ``kept``."""
    keep = set(kept)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:  # the one that listed the folder
                pass


def _become(program: Program, gate: int, report: int) -> NoReturn:
    step = "setsid"
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            # The C library keeps 32 and 33 for itself and refuses them.
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                pass
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(program.log_fd, 1)
        os.dup2(program.log_fd, 2)
        close_all_but((0, 1, 2, gate, report))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        step = f"chdir {program.cwd}"
        os.chdir(program.cwd)
        if os.read(gate, 1) != _GO:
            os._exit(0)
        step = f"execve {program.executable}"
        os.execve(program.executable, program.argv, program.env)
    except OSError as error:
        _tell(report, step, error.errno or 0, error.strerror or "")
    except BaseException as error:
        # The text of such an error may hold an argument, and so a secret: only its class is told.
        _tell(report, step, 0, type(error).__name__)
    os._exit(127)


def _tell(report: int, step: str, number: int, text: str) -> None:
    os.write(report, json.dumps({"step": step, "errno": number, "text": text}).encode())


def _failed(executable: str, failure: Dict[str, str]) -> AgentError:
    code = int(failure["errno"])
    hint = {
        errno.ENOENT: f"check that {executable} exists on the host, and the interpreter in its first line, and the working folder",
        errno.EACCES: f"check that {executable} may be executed: mode bits, and no noexec mount",
        errno.ENOEXEC: f"{executable} is no program of this machine: it may lack its '#!' line",
        errno.E2BIG: "make the arguments and the environment smaller",
    }.get(code, "")
    return AgentError(
        f"the server could not be started: {failure['text']}",
        evidence=f"{failure['step']}: {failure['text']} ({errno.errorcode.get(code, 'no errno')})",
        next=hint,
        kind="exec_failed",
    )
