"""The performance gate: is a candidate not slower than the known-good release, as far as this host's noise lets anybody tell?

The candidate is measured once at each of the gate's cells and held against what is stored of the known-good release at the same cell, by the same
client. A launch changes the speed by chance, so two figures alone prove nothing; how much, pairs of equal launches have shown (``gpuops ab A A``).
With ``s`` the standard deviation of a pair's log ratio, one launch has ``s / sqrt(2)``, and the difference between one launch and the mean of ``m``
others ``s * sqrt((1 + 1/m) / 2)``. From that follow one-sided bounds at 95 % (Student's t, with the comparison's degrees of freedom)::

    passed        the lower bound is above the allowed slowdown
    slower        the upper bound is below it
    inconclusive  neither; or nothing to compare with, no calibration, or a block that was invalid

Inconclusive is not a pass: with ``gate: required`` the candidate gives way, and is not called bad.
"""

from __future__ import annotations

import math
import random as numbers
import secrets as random
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Dict, List, Optional, Sequence

from . import bench, block, comparisons, load_client, measurements, releases
from .attempt import Failure
from .comparisons import Noise
from .files import read_json, write_json
from .guard import Guard
from .load_run import Cell
from .recorder import Recorder
from .releases import Release
from .server import of_release
from .student import quantile
from .wire import AgentError, unheard

PASSED, SLOWER, INCONCLUSIVE = "passed", "slower", "inconclusive"
REQUIRED = "required"

LEVEL = 0.95

# Kinds of the failures of this gate.
FAILED, NOT_PROVED = "slower", "not_proved_fast"


@dataclass(frozen=True)
class Judged:
    """The verdict on one cell. ``ratio``: candidate over known-good, with its bounds; None where nothing was compared. ``why`` is one line."""

    cell: str
    verdict: str
    ratio: Optional[float]
    low: Optional[float]
    high: Optional[float]
    why: str

    def to_json(self) -> Dict[str, Any]:
        return dict(vars(self))


def gate(guard: Guard, release: Release, section: Dict[str, Any], recorder: Recorder, by: str) -> Dict[str, Any]:
    """Measure a verified candidate at the gate's cells, keep the verdict in its ``gates.json``, and return it.

    Args:
        section: ``performance`` of the order: gate, cells, not_slower_than (a fraction), deadline_s, load (the engine's words).
    Raises:
        Failure: the gate is required, and not passed.
        Died, wire.Cancelled
    """
    draw = numbers.Random(random.randbits(63))
    judged = []
    for told in section["cells"]:
        cell = Cell.from_json(told)
        recorder("phase", phase="performance", progress=None, detail=cell.name)
        try:
            measured = _measured(guard, release, section, cell, draw, by)
            judged.append(_held(guard, release, measured, float(section["not_slower_than"])))
        except AgentError as error:
            judged.append(_unknown(cell.name, None, f"it could not be measured: {error.what} ({error.evidence})"))
        recorder("performance", gate=section["gate"], **judged[-1].to_json())
    verdict = overall(judged)
    result = {
        "gate": section["gate"],
        "verdict": verdict,
        "not_slower_than": section["not_slower_than"],
        "against": releases.known_good(guard.service),
        "cells": [each.to_json() for each in judged],
    }
    path = release.path / "gates.json"
    write_json(path, {**(read_json(path) or {}), "performance": result})
    if verdict != PASSED and section["gate"] == REQUIRED:
        raise _failure(judged, verdict)
    return result


def has_passed(release: Release, section: Dict[str, Any]) -> bool:
    """Whether an earlier start of this release has passed this gate."""
    stored = (read_json(release.path / "gates.json") or {}).get("performance") or {}
    cells = {each["cell"] for each in stored.get("cells") or ()}
    return (
        stored.get("verdict") == PASSED
        and stored.get("not_slower_than") == section["not_slower_than"]
        and {each["name"] for each in section["cells"]} <= cells
    )


def judge(candidate: float, references: Sequence[float], noise: Noise, allowed: float) -> Judged:
    """Hold one launch's speed against those of the known-good release's launches. ``allowed``: the slowdown that is still well, as a fraction."""
    apart = math.log(candidate) - fmean([math.log(each) for each in references])
    half = quantile(LEVEL, noise.pairs - 1) * noise.sd * math.sqrt((1 + 1 / len(references)) / 2)
    limit = math.log1p(-allowed)
    verdict = PASSED if apart - half >= limit else SLOWER if apart + half < limit else INCONCLUSIVE
    ratio, low, high = (math.exp(each) for each in (apart, apart - half, apart + half))
    why = (
        f"{ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%}) against {_launches(len(references))}; allowed {-allowed:+.1%}; "
        f"noise SD {noise.sd:.1%} by comparison {noise.comparison}"
    )
    return Judged("", verdict, ratio, low, high, why)


def overall(judged: Sequence[Judged]) -> str:
    """Slower when any cell is; passed when all are."""
    verdicts = {each.verdict for each in judged}
    return SLOWER if SLOWER in verdicts else PASSED if verdicts == {PASSED} else INCONCLUSIVE


def speed(measured: Dict[str, Any]) -> float:
    """Generated tokens a second; prompt tokens a second in a cell that only measures the prefill."""
    return float(measured["figures"]["output_tok_s" if measured["cell"]["output_tokens"] > 1 else "input_tok_s"])


def _measured(
    guard: Guard, release: Release, section: Dict[str, Any], cell: Cell, draw: numbers.Random, by: str
) -> Dict[str, Any]:
    """One block of the candidate, kept with it."""
    service, words = guard.service, section["load"]
    client = load_client.find(release, words)
    server = of_release(service, release)
    target = block.Target(server, guard.record, release, service.server_log(release.number), words, client)
    measured = guard.during(partial(bench.measure, target, cell, draw, float(section["deadline_s"]), unheard))
    kept = {**measured, "release": release.number, "launch": bench.launch_of(guard.record), "by": by}
    measurements.append(service, release.number, kept)
    return kept


def _held(guard: Guard, release: Release, measured: Dict[str, Any], allowed: float) -> Judged:
    """A candidate's block against the stored ones."""
    name = measured["cell"]["name"]
    if not measured["valid"]:
        return _unknown(name, None, f"the measurement is invalid: {'; '.join(measured['faults'][:3])}")
    stored = measurements.launches_of_known_good(guard.service, measured)
    if not stored:
        return _unknown(name, None, "the known-good release was never measured at this cell by this client: gpuops bench")
    references = [fmean([speed(each) for each in launch]) for launch in stored]
    ratio = speed(measured) / fmean(references)
    noise = comparisons.noise(guard.service, release, measured)
    if noise is None:
        known = f"{ratio - 1:+.1%} against {_launches(len(references))}"
        return _unknown(
            name, ratio, f"{known}, but the noise of this host is not known: gpuops ab known-good known-good calibrates it"
        )
    judged = judge(speed(measured), references, noise, allowed)
    return Judged(name, judged.verdict, judged.ratio, judged.low, judged.high, judged.why)


def _unknown(cell: str, ratio: Optional[float], why: str) -> Judged:
    return Judged(cell, INCONCLUSIVE, ratio, None, None, why)


def _failure(judged: List[Judged], verdict: str) -> Failure:
    evidence = "; ".join(f"{each.cell}: {each.why}" for each in judged if each.verdict == verdict)
    if verdict == SLOWER:
        return Failure(
            FAILED, "it is slower than the known-good release", evidence, "gpuops ab known-good BUILD measures by how much"
        )
    return Failure(
        NOT_PROVED, "it is not proved that it is as fast as the known-good release", evidence, "gpuops bench, gpuops ab"
    )


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count != 1 else ''} of the known-good release"
