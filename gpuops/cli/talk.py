"""How every verb speaks: results on stdout, everything else on stderr, colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gpuops.errors import GpuopsError
from gpuops.report import errors
from gpuops.report.style import Paint, wants_colour


class OutputLost(OSError):
    """Standard output, or standard error, cannot be written: a full disk, a reader that has left. What follows on it goes nowhere."""


@dataclass(frozen=True)
class Talk:
    """The output options. Results that cannot be written raise :class:`OutputLost`; the rest is lost without a word.

    Args:
        json: results as JSON, one object a line, and no prose on stdout.
        quiet: results and errors only.
        verbose: also what helps to find out why something does not work.
    """

    json: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def out_paint(self) -> Paint:
        return Paint(wants_colour(sys.stdout))

    @property
    def err_paint(self) -> Paint:
        return Paint(wants_colour(sys.stderr))

    def say(self, lines: Iterable[str]) -> None:
        """Lines of a result."""
        _write(sys.stdout, "".join(f"{line}\n" for line in lines))

    def raw(self, text: str) -> None:
        """Text of a result, as it is."""
        _write(sys.stdout, text)

    def give(self, value: Any) -> None:
        """A result, or an event of a stream, as one JSON line."""
        _write(sys.stdout, json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

    def note(self, text: str) -> None:
        """Something to know beside the result."""
        if not self.quiet:
            with suppress(OutputLost):
                _write(sys.stderr, f"{text}\n")

    def detail(self, text: str) -> None:
        """Something that only -v shows."""
        if self.verbose:
            with suppress(OutputLost):
                _write(sys.stderr, f"{text}\n")

    def fail(self, error: GpuopsError, **more: Any) -> None:
        """An error in its three parts; with --json one object on stdout, beside what else is known (``more``)."""
        with suppress(OutputLost):
            if self.json:
                self.give({**more, "error": error.as_dict()})
                return
            _write(sys.stderr, "".join(f"{line}\n" for line in errors.lines(error, self.err_paint)))


def _write(stream: Any, text: str) -> None:
    # A host may send any bytes and a terminal may know few letters: neither may end a verb.
    encoding = stream.encoding or "utf-8"
    with losing(stream):
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()


@contextmanager
def losing(stream: Any) -> Iterator[None]:
    """Writing to this stream. Raises OutputLost, and then the stream leads to nowhere: the process may go on, and ends without a second error."""
    try:
        yield
    except OSError as error:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        raise OutputLost(error.errno, error.strerror) from error
