"""Numbers as people say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 5 s``, ``2 h 3 min``, ``4 d 1 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for unit, size, lower, lower_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // lower_size
            return f"{whole // size} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"


def ago(at: float | None, now: float) -> str:
    """How long ago a wall-clock time was; clocks of two machines may differ, so never less than nothing."""
    return "at an unknown time" if at is None else f"{duration(max(0.0, now - at))} ago"


def size(count: float) -> str:
    """``12 B``, ``3.4 MB``: powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def summary(told: Mapping[str, Any] | None) -> str:
    """A release's summary on one line: engine, model, build."""
    if not told:
        return "unknown content"
    parts = [str(told["engine"]), str(told["model"])]
    if told.get("build"):
        parts.append(f"build {told['build']}")
    return ", ".join(parts)


def how_it_ended(ended: Mapping[str, Any]) -> str:
    """How a process ended, from its ``code`` and ``signal``."""
    if ended.get("signal"):
        return f"was killed by signal {ended['signal']}"
    return f"exited with status {ended['code']}" if ended.get("code") is not None else "is gone"


def plural(count: int, word: str, many: str = "") -> str:
    """``1 probe``, ``2 probes``; ``many`` where an s does not do."""
    return f"{count} {word}" if count == 1 else f"{count} {many or f'{word}s'}"
