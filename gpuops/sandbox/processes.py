"""Telling our own sshd from everything else that may have its process id."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for another: its id, and when it started (``/proc/PID/stat`` field 22, in clock ticks)."""

    pid: int
    started: int


def identify(pid: int, config: Path) -> Identity | None:
    """The sshd that runs as ``pid`` with this configuration file; None when it is gone, or when that process is something else."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    state, started = fields[0], int(fields[19])
    # A listening sshd retitles itself "sshd: /usr/sbin/sshd -f CONFIG -E LOG [listener] ..."; its sessions have other titles.
    ours = b"sshd" in title and f" -f {config} ".encode() in title
    if state in "ZX" or not ours:
        return None
    return Identity(pid, started)


def terminate(identity: Identity, config: Path, *, timeout: float = 10.0) -> bool:
    """Send TERM to exactly this process, and wait until it has gone.

    Returns:
        False when it was not there any more, so nobody was signalled.

    Raises:
        TimeoutError: it is still there.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        # Checked after the handle was opened: from here on the handle means this process, whatever becomes of its id.
        if identify(identity.pid, config) != identity:
            return False
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(timeout * 1000):
            raise TimeoutError(f"sshd (pid {identity.pid}) did not end within {timeout:g} s")
        return True
    finally:
        os.close(handle)
