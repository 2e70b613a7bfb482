"""What the tests of the transports share: the kinds, programs for the remote side, and waiting for events."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpuops.transport import Kind

PYTHON = sys.executable
SSH_KINDS: tuple[Kind, ...] = ("fabric", "openssh")
KINDS: tuple[Kind, ...] = ("local", *SSH_KINDS)


class Programs:
    """Writes a script and gives the argv that runs it: a command string may hold no quotes, and the sandbox sees this machine's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def python(self, name: str, source: str, *args: str) -> list[str]:
        path = self._folder / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        return [PYTHON, "-IS", str(path), *args]

    def shell(self, name: str, source: str, *args: str) -> list[str]:
        path = self._folder / f"{name}.sh"
        path.write_text(source, encoding="utf-8")
        return ["sh", str(path), *args]


def until(condition: Callable[[], bool], what: str, deadline: float = 20.0) -> None:
    """Wait for something to become true; the deadline is only there so that a failing test ends."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.01)
