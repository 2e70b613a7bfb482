"""A listening port on loopback whose connections are carried elsewhere, each by two threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from gpuops.transport.channel import CHUNK


class Duplex(Protocol):
    """What a connection leads to: a socket, or a Paramiko channel, which behaves like one."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> Any: ...

    def shutdown(self, how: int, /) -> Any: ...

    def close(self) -> Any: ...


@contextmanager
def relay(dial: Callable[[], Duplex]) -> Iterator[int]:
    """A port on 127.0.0.1, chosen by the system, that leads to what ``dial`` opens, while the block runs.

    A connection whose ``dial`` fails is closed, which the client sees as a reset, just as with ``ssh -L``.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    open_ends: set[Duplex] = set()
    acceptor = threading.Thread(target=_accept, args=(listener, dial, open_ends), name="gpuops-relay", daemon=True)
    acceptor.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        # shutdown, not close, wakes a thread that is blocked in accept().
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for end in list(open_ends):
            _hang_up(end)


def _accept(listener: socket.socket, dial: Callable[[], Duplex], open_ends: set[Duplex]) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(near, dial, open_ends), name="gpuops-relay", daemon=True).start()


def _serve(near: socket.socket, dial: Callable[[], Duplex], open_ends: set[Duplex]) -> None:
    open_ends.add(near)
    far: Duplex | None = None
    # Whatever a link can raise when it is cut (OSError, EOFError, Paramiko's own) means the same here: this connection has ended.
    with suppress(Exception):
        far = dial()
        open_ends.add(far)
        back = threading.Thread(target=_copy, args=(far, near), name="gpuops-relay", daemon=True)
        back.start()
        _copy(near, far)
        back.join()
    for end in (near, far):
        if end is not None:
            _hang_up(end)
            open_ends.discard(end)


def _copy(source: Duplex, target: Duplex) -> None:
    with suppress(Exception):
        while data := source.recv(CHUNK):
            target.sendall(data)
    # Half-closed: the other direction may still have something to say.
    with suppress(Exception):
        target.shutdown(socket.SHUT_WR)


def _hang_up(end: Duplex) -> None:
    with suppress(Exception):
        end.shutdown(socket.SHUT_RDWR)
    with suppress(Exception):
        end.close()
