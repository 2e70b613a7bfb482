"""The ladder as a gate of a rollout: the candidate's own rungs, before it is promoted."""

from __future__ import annotations

from typing import Any, Dict

from . import asking, ladder
from .attempt import Failure
from .files import read_json, write_json
from .guard import Guard
from .recorder import Recorder
from .releases import Release
from .server import of_release


def gate(guard: Guard, release: Release, section: Dict[str, Any], recorder: Recorder) -> Dict[str, Any]:
    """Put a verified candidate to the rungs, keep the verdict in its ``gates.json``, and return it.

    Args:
        section: ``ladder`` of the order: level, sections (the playbook's ladder), load (the engine's words).
    Raises:
        Failure: a required rung was not right.
        Died, wire.Cancelled
    """
    asked = asking.Asked(
        service=guard.service,
        server=of_release(guard.service, release),
        record=guard.record,
        release=release,
        words=section["load"],
        probes=release.document["probes"],
        timeout=release.document["deadlines"]["probe_s"],
    )
    climbed = ladder.climb(asked, section["sections"], section["level"], recorder, guard.during)
    result = {"level": section["level"], **climbed}
    path = release.path / "gates.json"
    write_json(path, {**(read_json(path) or {}), "ladder": result})
    if climbed["verdict"] != asking.RIGHT:
        raise _failure(climbed)
    return result


def has_passed(release: Release, section: Dict[str, Any]) -> bool:
    """Whether an earlier start of this release has passed these rungs or more."""
    stored = (read_json(release.path / "gates.json") or {}).get("ladder") or {}
    return bool(stored.get("verdict") == asking.RIGHT and stored.get("level", 0) >= section["level"])


def _failure(climbed: Dict[str, Any]) -> Failure:
    wrong = next(each for each in climbed["rungs"] if _counts(each))
    evidence = f"asked {wrong['question']}; {wrong['answer']}; expected: {wrong['expectation']}"
    if wrong["detail"]:
        evidence += f" ({wrong['detail']})"
    kind = "down" if wrong["verdict"] == asking.DOWN else "wrong_answers"
    return Failure(kind, f"rung {wrong['rung']} of the ladder, {wrong['name']}, is {wrong['verdict']}", evidence, "gpuops logs")


def _counts(rung: Dict[str, Any]) -> bool:
    return bool(rung["verdict"] == asking.DOWN or (rung["verdict"] == asking.WRONG and rung["gate"] == ladder.REQUIRED))
