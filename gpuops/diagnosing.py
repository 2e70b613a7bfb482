"""Diagnosing a log file that lies here: the host's own classifier, with nothing but the log to go by."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

from gpuops.agent import shared
from gpuops.engines import reading
from gpuops.errors import Exit, GpuopsError

_GZIP = b"\x1f\x8b"

# Control characters that neither terminals nor logs know, and what stands for bytes that are no UTF-8. A log in another encoding is ASCII for the
# most part, a binary file is not.
_UNREADABLE = "\ufffd" + "".join(map(chr, set(range(32)) - set(b"\a\b\t\n\v\f\r\x1b")))
_MOST_UNREADABLE = 0.3


def text_of(data: bytes, name: str) -> bytes:
    """The text in a log file, which may be compressed by gzip.

    Raises:
        GpuopsError: there is none: the file is empty, cut, or something else than text.
    """
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, OSError) as error:
            raise _refused(f"{name} is compressed by gzip, and damaged", str(error)) from error
    if not data.strip():
        raise _refused(f"{name} is empty", f"{len(data)} bytes")
    share = _unreadable(data)
    if share > _MOST_UNREADABLE:
        raise _refused(f"{name} is no text", f"{share:.0%} of it are no characters of a log")
    return data


def _unreadable(data: bytes) -> float:
    text = data.decode("utf-8", "replace")
    return sum(map(text.count, _UNREADABLE)) / len(text)


def _refused(what: str, evidence: str) -> GpuopsError:
    return GpuopsError(what, evidence=evidence, next="gpuops diagnose FILE, the server's own log", code=Exit.USAGE, kind="usage")


def of_log(data: bytes) -> dict[str, Any]:
    """What a server's log says of its failure; the keys of ``gpuops_agent.diagnosis.Diagnosis``. Any encoding: what is no UTF-8 is replaced."""
    reader = shared.module("logread").LogReader(reading())
    reader.feed(data.decode("utf-8", "replace"))
    reader.finish()
    told: dict[str, Any] = shared.module("diagnosis").diagnose(reader).to_json()
    return told
