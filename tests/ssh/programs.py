"""Small programs for the remote side, as files: a command string may hold no quotes."""

from __future__ import annotations

import sys
from pathlib import Path

PYTHON = sys.executable


class Programs:
    """Writes a script and gives the argv that runs it (the sandbox sees this machine's files)."""

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
