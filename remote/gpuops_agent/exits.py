"""How a process ended that is no child of ours: others than its parent may look before the parent has, and on newer kernels after it too."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Optional, Tuple

Ending = Tuple[Optional[int], Optional[int]]
"""How a process ended: (exit code, None), (None, signal), or (None, None) when nobody was told."""

# struct pidfd_info, PIDFD_GET_INFO and PIDFD_INFO_EXIT of include/uapi/linux/pidfd.h: since Linux 6.15, of a process that was waited for.
_INFO_BYTES = 64
_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11
_INFO_EXIT = 1 << 3

# /proc/PID/stat, field 52, counted from the state (field 3).
_EXIT_CODE = 49


def decode(status: int) -> Ending:
    """A wait status as (exit code, None) or (None, signal)."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def of_other(pid: int, pidfd: int) -> Ending:
    """How the process behind the descriptor ended, that has ended. (None, None): its parent was faster, and the kernel is older than 6.15."""
    status = _of_zombie(pid)
    if status is None:
        status = _of_waited_for(pidfd)
    return (None, None) if status is None else decode(status)


def _of_zombie(pid: int) -> Optional[int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[_EXIT_CODE]) if fields[0] == "Z" else None


def _of_waited_for(pidfd: int) -> Optional[int]:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    told, status = struct.unpack_from("=Q", info, 0)[0], struct.unpack_from("=i", info, _INFO_BYTES - 4)[0]
    return int(status) if told & _INFO_EXIT else None
