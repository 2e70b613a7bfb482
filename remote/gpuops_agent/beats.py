"""Sending beats while something takes long, so that the client can tell a working agent from a lost link."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Callable, Iterator, List, TypeVar

from .wire import BEAT_S, emit

T = TypeVar("T")


def during(call: Callable[[], T]) -> T:
    """Run ``call`` in a thread and emit a ``beat`` every :data:`BEAT_S` until it returns; its exception is raised here."""
    results: List[T] = []
    errors: List[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while True:
        thread.join(BEAT_S)
        if not thread.is_alive():
            break
        emit("beat")
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def alongside() -> Iterator[None]:
    """Emit a ``beat`` every :data:`BEAT_S` while the block runs in this thread, which finds out by its own events that the client has gone."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            try:
                emit("beat")
            except BrokenPipeError:
                return

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
