"""A command that is a local process: its three pipes served by one loop, without threads."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Literal

from gpuops.transport.channel import CHUNK, Chunk

_Role = Literal["stdin", "stdout", "stderr"]


class PipeProcess:
    """A subprocess whose input is fed while both outputs are drained.

    Args:
        argv: the program, never through a shell of ours.
        stdin: chunks, pulled as the process takes them; its stdin is closed after the last one.
    """

    def __init__(self, argv: Sequence[str], stdin: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(stdin)
        self._pending = memoryview(next(self._chunks, b""))
        # A session of its own: Ctrl-C in the terminal is for the caller, who decides what becomes of the command.
        self.process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if self._pending else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self.fed_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._reading = 2
        self._register(self.process.stdin, selectors.EVENT_WRITE, "stdin")
        self._register(self.process.stdout, selectors.EVENT_READ, "stdout")
        self._register(self.process.stderr, selectors.EVENT_READ, "stderr")

    def read(self, timeout: float) -> Chunk | None:
        """See :meth:`gpuops.transport.channel.Channel.read`."""
        deadline = time.monotonic() + timeout
        while self._reading:
            events = self._selector.select(max(0.0, deadline - time.monotonic()))
            for key, _ in events:
                if key.data == "stdin":
                    self._feed(key)
                    continue
                data = os.read(key.fd, CHUNK)
                if data:
                    return Chunk(data, key.data == "stderr")
                self._reading -= 1
                self._drop(key)
            if not events and time.monotonic() >= deadline:
                raise TimeoutError
        return None

    def wait(self, timeout: float) -> int:
        """The process's own status, negative for a signal. Raises TimeoutError."""
        try:
            return self.process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def close_pipes(self) -> None:
        """Let go of the pipes; the process may go on. Harmless when done twice."""
        for key in list((self._selector.get_map() or {}).values()):
            self._drop(key)
        self._reading = 0
        self._selector.close()

    def _register(self, stream: IO[bytes] | None, event: int, role: _Role) -> None:
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, event, role)

    def _drop(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        assert not isinstance(key.fileobj, int)
        stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
        stream.close()

    def _feed(self, key: selectors.SelectorKey) -> None:
        try:
            written = os.write(key.fd, self._pending[:CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:
            # The command does not want more input. What it has to say about that comes over its outputs.
            self._drop(key)
            return
        self.fed_at = time.monotonic()
        self._pending = self._pending[written:]
        while not self._pending:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._drop(key)
                return
            self._pending = memoryview(chunk)
