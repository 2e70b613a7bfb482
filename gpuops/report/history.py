"""Releases and operations, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.report.style import Paint, columns
from gpuops.report.words import ago, duration, summary

Told = Mapping[str, Any]


def lines(history: Told, now: float, paint: Paint) -> list[str]:
    """Two tables; ``*`` marks the current release. ``now`` in seconds since the epoch."""
    if not history["releases"] and not history["operations"]:
        return [f"{history['service']} has no history; gpuops up begins one"]
    return [
        paint.bold("releases"),
        *_table([_release(entry, history, now) for entry in history["releases"]]),
        "",
        paint.bold("operations"),
        *_table([_operation(entry, now) for entry in history["operations"]]),
    ]


def releases(history: Told, now: float) -> list[str]:
    """The releases alone, for a message about which there are."""
    return _table([_release(entry, history, now) for entry in history["releases"]])


def _table(rows: list[list[str]]) -> list[str]:
    return [f"  {line}" for line in columns(rows)] or ["  none"]


def _release(entry: Told, history: Told, now: float) -> list[str]:
    mark = "*" if entry["release"] == history["current"] else " "
    marks = {"known-good": entry["release"] == history["known_good"], "pinned": bool(entry.get("pinned"))}
    good = ", ".join(mark for mark, holds in marks.items() if holds)
    reason = f"  ({_one_line(entry['reason'])})" if entry.get("reason") else ""
    return [f"{mark}{entry['release']}", entry["state"], good, ago(entry.get("at"), now), summary(entry["summary"]) + reason]


def _operation(entry: Told, now: float) -> list[str]:
    took = duration(entry["seconds"]) if "seconds" in entry else ""
    release = f"release {entry['release']}" if entry.get("release") is not None else ""
    failed = f"release {entry['failed']} failed: " if entry.get("failed") is not None else ""
    name = f"{entry['class']}: " if entry.get("class") else ""
    reason = f"{failed}{name}{_one_line(entry['reason'])}" if entry.get("reason") else ""
    return [
        entry["op"],
        str(entry["kind"] or "?"),
        entry["outcome"],
        release,
        took,
        ago(entry["at"], now),
        str(entry.get("by") or ""),
        reason,
    ]


def _one_line(text: str) -> str:
    first, *more = text.splitlines()
    return f"{first} ..." if more else first
