"""This machine as a host: the same promises as over ssh, with no network in between."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuops.errors import GpuopsError
from gpuops.transport import trees
from gpuops.transport.base import PushStats
from gpuops.transport.channel import Channel, ChannelTransport, Chunk, outcome_unknown
from gpuops.transport.pipes import PipeProcess
from gpuops.transport.relay import relay

_LOOPBACK = ("127.0.0.1", "localhost")


class LocalTransport(ChannelTransport):
    """Commands run without a shell that reads their words; like a remote one, a command outlives whoever stops listening to it."""

    name = "local"

    def start(self, argv: Sequence[str], stdin: Iterable[bytes]) -> Channel:
        """See :meth:`gpuops.transport.channel.ChannelTransport.start`."""
        # This shell only says, as a login shell does, that a command is not there: its words go past it.
        return _LocalChannel(PipeProcess(["/bin/sh", "-c", 'exec "$@"', "sh", *argv], stdin))

    def push(self, source: Path, destination: str, *, link_dest: str | None = None, timeout: float = 600.0) -> PushStats:
        """See :meth:`gpuops.transport.base.Transport.push`."""
        return trees.push(self, None, source, destination, link_dest=link_dest, timeout=timeout)

    @contextmanager
    def forward(self, port: int, *, host: str = "127.0.0.1") -> Iterator[int]:
        """See :meth:`gpuops.transport.base.Transport.forward`; a port of this machine needs no forwarding."""
        if host in _LOOPBACK:
            yield port
            return
        with relay(lambda: socket.create_connection((host, port), timeout=10)) as near:
            yield near

    def close(self) -> None:
        """Nothing is held."""


class _LocalChannel:
    def __init__(self, pipes: PipeProcess) -> None:
        self._pipes = pipes

    @property
    def fed_at(self) -> float:
        return self._pipes.fed_at

    def read(self, timeout: float) -> Chunk | None:
        return self._pipes.read(timeout)

    def status(self, timeout: float) -> int:
        code = self._pipes.wait(timeout)
        if code < 0:
            raise outcome_unknown("local", f"it was ended by signal {-code}", f"pid {self._pipes.process.pid}")
        return code

    def expired(self, waited: str) -> GpuopsError:
        return outcome_unknown("local", waited, f"pid {self._pipes.process.pid} may still be running")

    def close(self) -> None:
        self._pipes.close_pipes()
        process = self._pipes.process
        if process.poll() is None:
            # It goes on by itself; somebody has to collect it when it ends, or it stays as a zombie for as long as we live.
            threading.Thread(target=process.wait, name=f"gpuops-reap-{process.pid}", daemon=True).start()
