"""The doctor's findings, grouped, with a mark each: ✓ well, ! works but may not for long, ✗ does not work, ? nobody could tell."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from gpuops.report.style import Paint

Told = Mapping[str, Any]

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "unknown": ("?", "dim")}
_COUNTED = (("fail", "failed"), ("warn", "to watch"), ("unknown", "unknown"), ("ok", "well"))


def lines(told: Told, host: str, paint: Paint, *, quiet: bool = False) -> list[str]:
    """A block a group; a check that is not well also shows its evidence and what to do. ``quiet`` leaves out what is well."""
    checks = [check for check in told["checks"] if not (quiet and check["state"] == "ok")]
    shown: list[str] = []
    for group, members in groupby(checks, key=lambda check: str(check["group"])):
        shown.append(paint.bold(group))
        for check in members:
            shown += _check(check, paint)
    return [*shown, f"{host}: {_count(told['checks'])}"]


def _check(check: Told, paint: Paint) -> list[str]:
    mark, style = _MARKS[check["state"]]
    shown = [f"  {paint.styled(style, mark)} {check['name']}: {check['what']}"]
    if check["state"] != "ok":
        shown += [f"      {text}" for text in check["evidence"].splitlines()]
        shown += [f"      next: {check['next']}"] if check["next"] else []
    return shown


def _count(checks: list[Told]) -> str:
    states = [check["state"] for check in checks]
    return ", ".join(f"{states.count(state)} {word}" for state, word in _COUNTED if state in states)
