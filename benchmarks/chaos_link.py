"""The network between laptop and host, as something that can be spoiled: a TCP proxy in front of the sandbox's sshd."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Link:
    """Carries connections to ``127.0.0.1:port`` until somebody spoils it.

    :meth:`cut` ends the connections, and new ones work. :meth:`down` ends them, and new ones are refused. :meth:`swallow` leaves them
    open and carries nothing any more, for new ones either: what a dead link looks like to TCP. :meth:`mend` makes it whole again.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._carrying, self._refusing = threading.Event(), threading.Event()
        self._carrying.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def down(self) -> None:
        self._refusing.set()
        self.cut()

    def swallow(self) -> None:
        self._carrying.clear()

    def mend(self) -> None:
        """Connections that were swallowed do not come back to life: their bytes are lost."""
        if not self._carrying.is_set():
            self.cut()
        self._refusing.clear()
        self._carrying.set()

    def close(self) -> None:
        # shutdown wakes the thread in accept; close alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._carrying.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing.is_set():
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        try:
            while True:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    if self._carrying.is_set():
                        other[end].sendall(data)
        except OSError:
            return
        finally:
            with self._lock:
                self._open -= {near, far}
            near.close()
            far.close()
