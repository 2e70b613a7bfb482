"""Running the tools that prepare things (pip, uv, a converter): output to a log, progress line by line, cancellable, with a deadline."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional

from .proc import boottime, processes
from .wire import HOST_UNFIT, AgentError, Cancelled

# How long a process group may take to end after TERM, and after KILL, in seconds.
GRACE_S = 5.0


def run(
    argv: List[str],
    *,
    what: str,
    log: Path,
    cancelled: Callable[[], bool],
    deadline: float,
    env: Optional[Dict[str, str]] = None,
    on_line: Callable[[str], None] = lambda text: None,
    longer: str = "raise deadlines.prepare_s",
) -> List[str]:
    """Run ``argv`` to its end and return its lines (both streams, in order).

    Args:
        what: the work in words, for errors: ``"installing the runtime"``.
        log: every line is appended here.
        deadline: CLOCK_BOOTTIME in seconds.
        on_line: called with each line as it comes.
        longer: how it gets more time, for the error of one that passed its deadline.
    Raises:
        AgentError: it failed, or passed its deadline; the evidence is its last lines.
        wire.Cancelled: nothing of it runs any more.
    """
    lines: List[str] = []
    with log.open("ab") as output:
        output.write(f"$ {' '.join(argv)}\n".encode())
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )
        except OSError as error:
            raise AgentError(f"{what}: {argv[0]} cannot be run", evidence=str(error), code=HOST_UNFIT, kind="tool") from error
        assert process.stdout is not None
        rest = b""
        try:
            while True:
                if cancelled():
                    raise Cancelled()
                if boottime() > deadline:
                    raise AgentError(f"{what} did not end in time", evidence=_tail(lines), next=longer, kind="deadline")
                if not select.select([process.stdout], [], [], 0.1)[0]:
                    continue
                data = os.read(process.stdout.fileno(), 65536)
                if not data:
                    break
                output.write(data)
                *whole, rest = (rest + data.replace(b"\r", b"\n")).split(b"\n")
                for raw in whole:
                    text = raw.decode("utf-8", "replace").rstrip()
                    if text:
                        lines.append(text)
                        on_line(text)
        except BaseException:
            process.stdout.close()
            end_group(process)
            raise
        process.stdout.close()
        process.wait()
    if process.returncode != 0:
        raise failure(what, argv, process.returncode, lines, log)
    return lines


def failure(what: str, argv: List[str], status: int, lines: List[str], log: Path) -> AgentError:
    """The error of a tool that failed; a full disk gets its own kind."""
    full = next((text for text in lines if "No space left on device" in text), None)
    if full is not None:
        return AgentError(
            f"{what} failed: the host's disk is full",
            evidence=full,
            next="free space on the host, then run again",
            code=HOST_UNFIT,
            kind="disk_full",
        )
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return AgentError(
        f"{what} failed ({Path(argv[0]).name} ended with {how})",
        evidence=_tail(lines),
        next=f"see {log} on the host",
        code=HOST_UNFIT,
        kind="tool",
    )


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Stop a process that leads a session of its own, with its whole process group: TERM, grace, KILL."""
    if process.returncode is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = boottime() + GRACE_S
        # The leader is not reaped before the last of its group has ended, so the number cannot have become another group's.
        os.killpg(process.pid, number)
        while boottime() < deadline:
            if not any(stat.pgid == process.pid and stat.living for stat in processes()):
                process.wait()
                return
            time.sleep(0.05)


def _tail(lines: List[str]) -> str:
    errors = [text for text in lines if text.lower().startswith("error")]
    return " | ".join((errors or lines)[-3:])
