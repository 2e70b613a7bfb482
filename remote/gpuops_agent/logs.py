"""The `logs` verb: a release's server log by byte offset, with every known secret redacted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, Optional

from . import releases
from .paths import Root, Service
from .records import server_alive
from .vault import Redactor
from .wire import BEAT_S, AgentError, emit

FOLLOW_S = 0.1
CHUNK_BYTES = 256 << 10


def logs(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Send the log from ``offset`` (bytes), or its last ``lines``; with ``follow`` go on until the server has ended and all is sent."""
    service = root.service(args["service"])
    named = (args.get("release"), releases.current(service), _newest(service))
    number = next((each for each in named if each is not None), None)
    if number is None:
        raise AgentError(f"service {service.name} has no release, so no log", next="gpuops up", kind="no_release")
    path = service.server_log(int(number))
    if not path.exists():
        raise AgentError(
            f"release {number} has no server log", evidence=f"{path} does not exist", next="gpuops history", kind="no_log"
        )
    offset = int(args["offset"]) if args.get("offset") is not None else _start_of_last(path, args.get("lines"))
    redact = Redactor(root)
    spoke = time.monotonic()
    while True:
        growing = _writes(service, int(number))
        sent = _send(path, offset, redact, whole_lines=growing)
        offset += sent
        if sent:
            spoke = time.monotonic()
            continue
        if not (growing and args.get("follow")):
            return {"release": int(number), "offset": offset}
        if time.monotonic() - spoke > BEAT_S:
            emit("beat")
            spoke = time.monotonic()
        time.sleep(FOLLOW_S)


def tail(path: Path, most: int) -> str:
    """The last ``most`` bytes of a log, or all of it; OSError when it cannot be read. What kills a server stands at the end of a log of days."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read().decode("utf-8", "replace")


def _send(path: Path, offset: int, redact: Redactor, *, whole_lines: bool) -> int:
    """Send what follows ``offset``; returns the bytes consumed.

    Chunks end at a line's end (or at a progress bar's carriage return), so that no secret is cut in two and missed. A finished log's last, cut line
    is sent as it is; a line longer than a chunk is cut where no secret is.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(CHUNK_BYTES)
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if end == 0 and (whole_lines or not data) and len(data) < CHUNK_BYTES:
        return 0
    data = data[: end or (redact.whole(data) if len(data) == CHUNK_BYTES else 0) or len(data)]
    emit("log", text=redact(data.decode("utf-8", "replace")), offset=offset + len(data))
    return len(data)


def _start_of_last(path: Path, lines: Optional[int]) -> int:
    """The offset of the last ``lines`` lines; 0 (everything) when not asked for."""
    if lines is None:
        return 0
    data = path.read_bytes()
    position = len(data) - (1 if data.endswith(b"\n") else 0)
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _writes(service: Service, number: int) -> bool:
    record = server_alive(service)
    return record is not None and record.release == number


def _newest(service: Service) -> Optional[int]:
    known = releases.numbers(service)
    return known[-1] if known else None
