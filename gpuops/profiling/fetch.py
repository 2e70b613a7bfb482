"""Traces from the host to a folder here: by offset, so that a lost link costs nothing that has arrived; checked by sha256."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuops.errors import GpuopsError, OutcomeUnknown, TransportError
from gpuops.rollout.session import Session

# A link that is lost so often is left alone.
ATTEMPTS = 4

Progress = Callable[[int, int], None]
"""Hears the bytes that have arrived, and those of all traces."""


def fetch(
    connect: Callable[[], Session],
    profile: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    folder: Path,
    heard: Progress,
) -> list[Path]:
    """Bring ``files`` of a profile, as the agent's verb `profile` has answered it, into ``folder``.

    Args:
        connect: opens a session to the host; another one when the link is lost.
    Raises:
        GpuopsError: one has not arrived as it was sent. TransportError, OutcomeUnknown: the link is lost and did not come back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / str(file["name"]) for file in files]
    for path in paths:
        path.write_bytes(b"")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with connect() as session:
                _get_all(session, profile, files, paths, heard)
            break
        except (OutcomeUnknown, TransportError):
            if attempt == ATTEMPTS:
                raise
    for path, file in zip(paths, files, strict=True):
        if hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]:
            raise GpuopsError(
                f"{path.name} did not arrive as it was sent", evidence=str(path), next="gpuops profile again", kind="checksum"
            )
    return paths


def _get_all(
    session: Session,
    profile: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    paths: Sequence[Path],
    heard: Progress,
) -> None:
    total = sum(file["bytes"] for file in files)
    done = 0
    for path, told in zip(paths, files, strict=True):
        with path.open("ab") as file:

            def hear(event: Mapping[str, Any], file: Any = file, before: int = done) -> None:
                if event["event"] == "chunk":
                    file.write(base64.b64decode(event["data"]))
                    heard(before + file.tell(), total)

            if file.tell() < told["bytes"]:
                place = {key: profile[key] for key in ("service", "release", "profile")}
                session.agent.call("profile.get", on_event=hear, **place, name=path.name, offset=file.tell())
        done += int(told["bytes"])
