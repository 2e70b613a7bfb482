"""Why a launch failed, as a person reads it: the class, the line that shows it, what helps, and what only followed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.report.style import Paint, fields

Told = Mapping[str, Any]


def lines(told: Told, of: str, paint: Paint) -> list[str]:
    """A headline and its fields. ``of`` names what was diagnosed."""
    if not told["class"]:
        pairs = [
            ("shows", _listed(told["hints"])),
            ("facts", "\n".join(told["facts"])),
            ("lines", "\n".join(told.get("lines", ()))),
        ]
        return [f"{of}: {told['what']}", *_fields(pairs)]
    headline = f"{of}: {paint.red(told['class'])}, {told['what']} ({told['confidence']} confidence)"
    pairs = [
        ("phase", str(told["phase"] or "before the first")),
        ("evidence", _evidence(told)),
        ("raised", told["where"]),
        ("cure", told["cure"]),
        ("restart", {True: "may cure it", False: "does not cure it"}.get(told["restart_cures"], "")),
        ("followed by", _listed(told["consequences"])),
        ("also shows", _listed(told["hints"])),
        ("facts", "\n".join(told["facts"])),
        ("lines", "\n".join(told["lines"])),
    ]
    return [headline, *_fields(pairs)]


def _fields(pairs: list[tuple[str, str]]) -> list[str]:
    return fields([(name, text) for name, text in pairs if text])


def _evidence(told: Told) -> str:
    where = ", ".join(filter(None, [f"line {told['number']}" if told["number"] else "", told["rank"]]))
    return f"{told['evidence']}" + (f"  ({where})" if where else "")


def _listed(symptoms: list[Told]) -> str:
    return "\n".join(f"{each['class']} (line {each['line']}): {each['text'][:160]}" for each in symptoms)
