"""Being the subreaper of one's descendants, and starting something that is none of them.

Source: prctl(2), PR_SET_CHILD_SUBREAPER: an orphan goes to its nearest living ancestor that has this attribute, else to init.
"""

from __future__ import annotations

import ctypes
import os
import traceback
from typing import Callable

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
_PR_GET_CHILD_SUBREAPER = 37


def become(on: bool = True) -> None:
    """Take the attribute, or give it up. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1 if on else 0))


def is_one() -> bool:
    """Whether this process is a subreaper."""
    value = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value))
    return value.value == 1


def outside(work: Callable[[], None]) -> None:
    """Do ``work`` in a process in between, whose children do not become ours when it ends.

    For the instant of its end this process is no subreaper, so that what it started goes to init; what our own descendants orphan in that instant
    would too, and is still known by the records of the run. Returns when ``work`` is done; what fails in it is printed.
    """
    done, tell_done = os.pipe()
    leave, tell_leave = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell_leave)
        try:
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os.write(tell_done, b".")
            os.read(leave, 1)
            os._exit(0)
    os.close(tell_done)
    os.close(leave)
    os.read(done, 1)
    os.close(done)
    was = is_one()
    become(False)
    try:
        os.close(tell_leave)
        os.waitpid(pid, 0)
    finally:
        become(was)


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(option, argument, zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
