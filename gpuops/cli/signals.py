"""SIGTERM and SIGHUP (a polite kill, a closed terminal). What was ignored when gpuops began stays so: ``nohup gpuops ab``."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, NoReturn

_ASKED = (signal.SIGTERM, signal.SIGHUP)


def unwind() -> None:
    """Let them end the process like an exception does, with code 128 + their number; the second one ends it at once.

    What a verb has begun here (scratch folders, an ssh master) is put away so.
    """
    _take(_leave)


def as_ctrl_c() -> None:
    """Let them do what Ctrl-C does, for verbs in which that puts the host back."""
    _take(signal.default_int_handler)


def _take(handler: Callable[[int, Any], Any]) -> None:
    for number in _ASKED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _leave(number: int, frame: Any) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)
