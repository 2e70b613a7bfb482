"""The agent's side of the wire: errors with three parts, and JSON lines on stdout."""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict

Emit = Callable[..., None]
"""``emit("phase", phase="weights", progress=0.5)``: one event to whoever follows."""

BEAT_S = 5.0
"""The longest silence of a streaming verb, in seconds; then it sends a ``beat``. The client gives up after six (``gpuops/agent/client.py``)."""

CHUNK_BYTES = 512 << 10
"""Of a file that is sent in pieces."""

FAILURE = 1
HOST_UNFIT = 5
WRONG_ANSWERS = 6
RESTORED = 10
RESTORE_FAILED = 11
UNKNOWN = 12
REFUSED = 13
NOTHING_TO_RESTORE = 14


def unheard(name: str, /, **fields: Any) -> None:
    """An Emit that nobody listens to: phases that are no news, and what a thread tells beside the one that writes an operation's events."""


class AgentError(Exception):
    """A failure that the user shall read: what happened, the evidence, the next command, and the exit code."""

    def __init__(self, what: str, *, evidence: str = "", next: str = "", code: int = FAILURE, kind: str = "failure") -> None:
        super().__init__(what)
        self.what = what
        self.evidence = evidence
        self.next = next
        self.code = code
        self.kind = kind

    def as_dict(self) -> Dict[str, Any]:
        return {"code": self.code, "kind": self.kind, "what": self.what, "evidence": self.evidence, "next": self.next}


class Cancelled(Exception):
    """Somebody asked the operation to undo itself."""


def line(obj: Dict[str, Any]) -> bytes:
    """One compact JSON line."""
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def event(name: str, /, **fields: Any) -> Dict[str, Any]:
    """An event as it travels and as it is stored: its name, the wall clock, its fields."""
    return {"event": name, "t": round(time.time(), 3), **fields}


def write(obj: Dict[str, Any]) -> None:
    """One line to the client. Raises BrokenPipeError when it has gone."""
    sys.stdout.buffer.write(line(obj))
    sys.stdout.buffer.flush()


def emit(name: str, /, **fields: Any) -> None:
    """An :data:`Emit` that writes straight to the client."""
    write(event(name, **fields))


def send_file(path: Path, offset: int) -> int:
    """Send a file from ``offset`` on, as ``chunk`` events of base64; returns where it ends, in bytes. Raises OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        for data in iter(lambda: file.read(CHUNK_BYTES), b""):
            emit("chunk", data=base64.b64encode(data).decode("ascii"))
        return file.tell()
