"""The ladder: rungs 1 to N put to the running server, each with its evidence and its own verdict."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

from . import files, liveness
from .asking import DOWN, RIGHT, SKIPPED, WRONG, Asked, Finding
from .releases import Release
from .rungs import RUNGS
from .wire import AgentError, Emit, emit, unheard

NAME = "ladder.jsonl"

REQUIRED, OFF = "required", "off"


Put = Callable[[Callable[[], Finding]], Finding]


def climb(
    asked: Asked, ladder: Mapping[str, Dict[str, Any]], level: int, tell: Emit = emit, put: Put = lambda question: question()
) -> Dict[str, Any]:
    """Put the rungs up to ``level``, until the server is down. ``ladder`` holds every rung's section of the playbook.

    Args:
        tell: hears of every rung, in the caller's thread; by default also of the probes within one.
        put: puts a rung's question, for a caller who watches the server meanwhile.
    Returns:
        ``{verdict, rungs: [...], launches: {right, seen}}``: right, wrong (a required rung) or down; over how many starts of this release the
        same level was right: corruption can stick to a start.
    """
    results: List[Dict[str, Any]] = []
    within = tell if tell is emit else unheard
    for number, (name, rung) in enumerate(RUNGS[:level], 1):
        section = ladder[name]
        if section["gate"] == OFF:
            continue
        tell("phase", phase=name, progress=None, detail=f"rung {number} of {level}")
        began = time.monotonic()
        found = put(partial(_judged, asked, rung, section, within))
        result = {
            "rung": number,
            "name": name,
            "gate": section["gate"],
            **vars(found),
            "seconds": round(time.monotonic() - began, 3),
        }
        results.append(result)
        tell("rung", **result)
        if found.verdict == DOWN:
            break
    verdict = verdict_of(results)
    return {"verdict": verdict, "rungs": results, "launches": _launches(asked, level, verdict, results, tell)}


def entries(release: Release) -> List[Dict[str, Any]]:
    """What was noted of a release's starts, the oldest first."""
    return _read(release.path / NAME)


def verdict_of(results: List[Dict[str, Any]]) -> str:
    """``down`` when any rung found the server down; ``wrong`` when a required one was not right; else ``right``."""
    if any(result["verdict"] == DOWN for result in results):
        return DOWN
    wrong = any(result["verdict"] == WRONG and result["gate"] == REQUIRED for result in results)
    return WRONG if wrong else RIGHT


def _judged(asked: Asked, rung: Callable[..., Finding], section: Dict[str, Any], tell: Emit) -> Finding:
    """A rung that is not right by a server that no longer generates means that it is down, and not that it is wrong."""
    found = rung(asked, section, tell)
    if found.verdict in (RIGHT, SKIPPED):
        return found
    check = liveness.check(asked.server, asked.record, asked.service.server_log(asked.release.number), asked.timeout)
    if check.state == liveness.SERVING:
        return found
    return Finding(DOWN, found.question, found.answer, found.expectation, f"{check.state}: {check.evidence}")


def _launches(asked: Asked, level: int, verdict: str, results: List[Dict[str, Any]], tell: Emit) -> Dict[str, int]:
    """Note this start's verdict and rungs, and count: the latest of every start of the release at this level."""
    path = asked.release.path / NAME
    entry = {
        "launch": f"{asked.record.pid}-{asked.record.start}",
        "level": level,
        "verdict": verdict,
        "at": round(time.time(), 3),
        "rungs": [{key: each[key] for key in ("rung", "name", "gate", "verdict", "answer", "expectation")} for each in results],
    }
    try:
        files.append_line(path, json.dumps(entry).encode() + b"\n")
    except AgentError as error:
        tell("note", text=f"the ladder's verdict could not be kept: {error.evidence}")
    latest = {each["launch"]: each["verdict"] for each in [*_read(path), entry] if each["level"] == level}
    return {"right": sum(each == RIGHT for each in latest.values()), "seen": len(latest)}


def _read(path: Path) -> List[Dict[str, Any]]:
    found = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and {"launch", "level", "verdict"} <= value.keys():
            found.append(value)
    return found
