"""One running remote command, and the two ways to listen to it: to its end, or line by line.

A transport supplies a :class:`Channel`; deadlines, the collecting of output and the cutting into lines are written here once, so they
cannot differ between transports.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuops.errors import GpuopsError, OutcomeUnknown
from gpuops.transport.base import Completed, PushStats, Transport, plain_command

CHUNK = 65536


@dataclass(frozen=True)
class Chunk:
    """Some bytes of one of the two output streams."""

    data: bytes
    is_error: bool


class Channel(Protocol):
    """A command that was sent. Input is fed while output is read, whatever the size of either."""

    @property
    def fed_at(self) -> float:
        """When the remote side last took some of the input (``time.monotonic``)."""
        ...

    def read(self, timeout: float) -> Chunk | None:
        """The next output of either stream; None when both have ended. Raises TimeoutError after ``timeout`` seconds of silence."""
        ...

    def status(self, timeout: float) -> int:
        """The exit status, once both streams have ended. Raises TimeoutError, TransportError, OutcomeUnknown."""
        ...

    def expired(self, waited: str) -> GpuopsError:
        """The error for a deadline that passed."""
        ...

    def close(self) -> None:
        """Let go of the command without waiting for it."""
        ...


class ChannelTransport(ABC):
    """The parts of a transport that follow from being able to start a command."""

    name: str

    @abstractmethod
    def start(self, argv: Sequence[str], stdin: Iterable[bytes]) -> Channel:
        """Send a command; ``stdin`` is consumed as the remote side takes it."""

    @abstractmethod
    def push(self, source: Path, destination: str, *, link_dest: str | None = None, timeout: float = 600.0) -> PushStats:
        """See :meth:`gpuops.transport.base.Transport.push`."""

    @abstractmethod
    def forward(self, port: int, *, host: str = "127.0.0.1") -> AbstractContextManager[int]:
        """See :meth:`gpuops.transport.base.Transport.forward`."""

    @abstractmethod
    def close(self) -> None:
        """Give up the connection; harmless when done twice."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """See :meth:`gpuops.transport.base.Transport.run`."""
        return self.run_fed(argv, [stdin] if stdin else [], timeout=timeout)

    def run_fed(self, argv: Sequence[str], stdin: Iterable[bytes], *, timeout: float) -> Completed:
        """:meth:`run` with an input too large to hold in memory."""
        return collect(self.start(argv, stdin), timeout)

    @contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", idle_timeout: float = 60.0) -> Iterator[LineStream]:
        """See :meth:`gpuops.transport.base.Transport.stream`."""
        channel = self.start(argv, [stdin] if stdin else [])
        try:
            yield LineStream(channel, idle_timeout)
        finally:
            channel.close()

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def collect(channel: Channel, timeout: float) -> Completed:
    """Read a command to its end, within ``timeout`` seconds altogether."""
    deadline = time.monotonic() + timeout
    stdout, stderr = bytearray(), bytearray()
    try:
        while chunk := channel.read(deadline - time.monotonic()):
            (stderr if chunk.is_error else stdout).extend(chunk.data)
        return Completed(channel.status(deadline - time.monotonic()), bytes(stdout), bytes(stderr))
    except TimeoutError:
        raise channel.expired(f"the command did not end within {timeout:g} s") from None
    finally:
        channel.close()


class LineStream:
    """A :class:`~gpuops.transport.base.RemoteStream`: stdout in lines, as they come."""

    def __init__(self, channel: Channel, idle_timeout: float) -> None:
        self._channel = channel
        self._idle_timeout = idle_timeout
        self._ended = False
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._stderr = bytearray()

    def __iter__(self) -> Iterator[bytes]:
        while self._lines or not self._ended:
            if self._lines:
                yield self._lines.popleft()
            else:
                self._wait_for_stdout()
        if self._rest:
            rest, self._rest = bytes(self._rest), bytearray()
            yield rest

    def finish(self) -> Completed:
        """See :meth:`gpuops.transport.base.RemoteStream.finish`; lines that nobody read are dropped."""
        while not self._ended:
            self._wait_for_stdout()
        try:
            return Completed(self._channel.status(self._idle_timeout), b"", bytes(self._stderr))
        except TimeoutError:
            raise self._channel.expired(f"no exit status came within {self._idle_timeout:g} s of the end of its output") from None

    def _wait_for_stdout(self) -> None:
        """Wait for stdout to say something or to end. Standard error alone does not count as a sign of life; input being taken does."""
        since = time.monotonic()
        while True:
            moved = max(since, self._channel.fed_at)
            try:
                chunk = self._channel.read(moved + self._idle_timeout - time.monotonic())
            except TimeoutError:
                if self._channel.fed_at > moved:
                    continue
                raise self._channel.expired(f"nothing was heard for {self._idle_timeout:g} s") from None
            if chunk is None:
                self._ended = True
                return
            if not chunk.is_error:
                self._split(chunk.data)
                return
            self._stderr.extend(chunk.data)

    def _split(self, data: bytes) -> None:
        first, *others = data.split(b"\n")
        self._rest.extend(first)
        for line in others:
            self._lines.append(bytes(self._rest))
            self._rest = bytearray(line)


def command_of(argv: Sequence[str]) -> str:
    """The command string, refused here, before anything is sent, when a login shell could misread it. Raises GpuopsError."""
    if not argv:
        raise ValueError("an empty command")
    return plain_command(argv)


def outcome_unknown(host: str, why: str, evidence: str = "") -> OutcomeUnknown:
    """The one way to say that a command was sent and nobody knows how it ended."""
    return OutcomeUnknown(
        f"the outcome of a command on {host} is unknown: {why}",
        evidence=evidence or "it may still be running there",
        next=f"gpuops status --host {host}",
    )
