"""Secrets on the host: one file each in ROOT/secrets (0600). Releases hold only their names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, Optional

from .files import write_bytes
from .paths import Root
from .wire import HOST_UNFIT, AgentError

PLACEHOLDER = re.compile(r"@\{secret:([A-Za-z_][A-Za-z0-9_]*)\}")

# A shorter value would redact ordinary words out of a log.
SHORTEST_REDACTED = 4


def store(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The `secret` verb: keep the values; the answer names them and never repeats them."""
    values = args["values"]
    root.secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, value in values.items():
        if not PLACEHOLDER.fullmatch("@{secret:" + name + "}"):
            raise AgentError(f"{name!r} is not a name for a secret", code=2, kind="usage")
        path = root.secrets / name
        value = value.rstrip("\n")
        if read(path) != value:
            write_bytes(path, value.encode("utf-8", "surrogateescape"), 0o600)
    return {"stored": sorted(values)}


def resolve(folder: Path, text: str) -> str:
    """``text`` with every ``@{secret:NAME}`` replaced by its value.

    Raises:
        AgentError: the host holds no such secret.
    """

    def value(match: "re.Match[str]") -> str:
        found = read(folder / match.group(1))
        if found is None:
            raise AgentError(
                f"the secret {match.group(1)} is not on the host",
                evidence=f"{folder / match.group(1)} does not exist",
                next=f"export {match.group(1)} and run gpuops up again",
                code=HOST_UNFIT,
                kind="secret_missing",
            )
        return found

    return PLACEHOLDER.sub(value, text)


class Redactor:
    """Replaces every known secret value in text that leaves the host."""

    def __init__(self, root: Root) -> None:
        self._values: Dict[str, str] = {}
        try:
            names = sorted(os.listdir(root.secrets))
        except OSError:
            names = []
        for name in names:
            value = read(root.secrets / name)
            if value and len(value) >= SHORTEST_REDACTED:
                self._values[value] = name

    def whole(self, data: bytes) -> int:
        """How many bytes of ``data``, which goes on, can be sent without cutting a secret in two: all but the beginning of one at the end."""
        values = [value.encode("utf-8", "surrogateescape") for value in self._values]
        cut = len(data)
        for value in values:
            for length in range(min(len(value), len(data) + 1) - 1, 0, -1):
                if data.endswith(value[:length]):
                    cut = min(cut, len(data) - length)
                    break
        return cut

    def __call__(self, text: str) -> str:
        # The longest first: one secret may be a part of another.
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, f"<secret {self._values[value]}>")
        return text


def read(path: Path) -> Optional[str]:
    """A secret's value; None when there is none."""
    try:
        # Without the newline that an editor leaves: it is no part of the value, and breaks an HTTP header.
        return path.read_bytes().decode("utf-8", "surrogateescape").rstrip("\n")
    except OSError:
        return None
