"""What a trial's results mean for the one who asked. Pure.

One launch of each step is a screen: what a start changes by chance is not known from it. So a verdict rests on the margin that the file has declared
before, and what is closer stays inconclusive; ``gpuops ab`` decides it with pairs of launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuops.trials.schema import Judged

Word = Literal["adopt", "reject", "inconclusive"]

_TO = {"passes": "pass", "fails": "fail"}

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """``adopt``, ``reject`` or ``inconclusive``, and why, a line each."""

    word: Word
    why: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.word, "why": list(self.why)}


def judge(results: Sequence[Json], judged: Judged | None, finding: str | None = None) -> Verdict:
    """The verdict on a complete trial.

    Args:
        judged: what the file wants to be judged; without it there is no verdict beyond the steps' own.
        finding: what a bisect has found.
    """
    if judged is None:
        return Verdict("inconclusive", (finding or "the trial names no step that would be adopted (verdict:)",))
    named = {result["step"]: result for result in results}
    step, against = named.get(judged.step), named.get(judged.against)
    if step is None:
        return Verdict("inconclusive", (f"{judged.step} was not played",))
    if step["verdict"] != "passed":
        said = f"{step.get('class') or step.get('kind')}: {step.get('reason')}"
        return Verdict("reject", (f"{judged.step} has {step['verdict']}: {said}",))
    if against is None or against["verdict"] != "passed":
        return Verdict(
            "inconclusive", (f"{judged.step} serves right; {judged.against} did not, so there is nothing to compare it with",)
        )
    changes = compared(step, against)
    if not changes:
        return Verdict("inconclusive", (f"{judged.step} serves right; nothing valid was measured of both",))
    lines = tuple(f"{cell}: {change:+.1%} throughput against {judged.against}" for cell, change in changes.items())
    bounds = f"one launch each; the margin is {judged.margin:.0%}"
    if min(changes.values()) <= -judged.margin:
        return Verdict("reject", (*lines, f"it is slower; {bounds}"))
    if max(changes.values()) >= judged.margin:
        return Verdict("adopt", (*lines, f"it is faster and nowhere slower; {bounds}: gpuops ab confirms it"))
    return Verdict("inconclusive", (*lines, f"closer than a screen can tell; {bounds}: gpuops ab decides it"))


def compared(step: Json, against: Json) -> dict[str, float]:
    """The change of throughput by cell, as a fraction, where both have valid figures of one client."""
    theirs = {block["cell"]["name"]: block for block in against.get("blocks") or () if block["valid"]}
    changes = {}
    for block in step.get("blocks") or ():
        other = theirs.get(block["cell"]["name"])
        if block["valid"] and other is not None and (other["cell"], other["client"]) == (block["cell"], block["client"]):
            changes[block["cell"]["name"]] = speed(block) / speed(other) - 1
    return changes


def speed(block: Json) -> float:
    """Generated tokens a second; of a cell that measures only the prefill, prompt tokens a second."""
    return float(block["figures"]["output_tok_s" if block["cell"]["output_tokens"] > 1 else "input_tok_s"])


def unexpected(results: Sequence[Json], expected: Mapping[str, str | None]) -> list[str]:
    """The steps that came out otherwise than the file expected (``passes``, ``fails``)."""
    found = []
    for result in results:
        wanted = expected.get(result["step"])
        if wanted is not None and (wanted == "passes") != (result["verdict"] == "passed"):
            found.append(f"{result['step']} was expected to {_TO[wanted]}, and has {result['verdict']}")
    return found
