"""Which step of a trial comes next, and what its steps have shown. Pure; the controller uses it too, to say what a trial would do.

``steps`` are the names in their order. In a bisect they are growing sets of changes: the first is the base alone, each further one adds the next
change; what is looked for is the first at which the outcome flips.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

PASSED, FAILED, UNFIT, TIMEOUT = "passed", "failed", "unfit", "timeout"
"""Verdicts on a step: its gates passed; they did not (or it died); the host could not prepare it; it took longer than its own deadline."""

SEQUENCE, MATRIX, BISECT = "sequence", "matrix", "bisect"
NEVER, FIRST_FAILURE, FIRST_PASS = "never", "first-failure", "first-pass"
BREAKS, FIXES = "breaks", "fixes"


class Plan(NamedTuple):
    """``stop``: after which verdict no further step is wanted (not for a bisect). ``find``: what a bisect looks for."""

    mode: str
    steps: Tuple[str, ...]
    stop: str = NEVER
    find: str = BREAKS


class Found(NamedTuple):
    """The end of a bisect: the step at which the outcome flips (None: it does not), and one sentence."""

    step: Optional[str]
    text: str


def next_step(plan: Plan, verdicts: Mapping[str, str]) -> Optional[str]:
    """The step to play next, given the verdicts on those that were played; None when the trial is complete."""
    if plan.mode == BISECT:
        return _next_of_bisect(plan, verdicts)
    for name in plan.steps:
        verdict = verdicts.get(name)
        if verdict is None:
            return name
        if plan.stop == (FIRST_PASS if verdict == PASSED else FIRST_FAILURE):
            return None
    return None


def found(plan: Plan, verdicts: Mapping[str, str]) -> Optional[Found]:
    """What a complete bisect has found; None while it is not complete, or is none."""
    if plan.mode != BISECT or next_step(plan, verdicts) is not None:
        return None
    first, last = plan.steps[0], plan.steps[-1]
    odd = next((name for name in plan.steps if verdicts.get(name) in (UNFIT, TIMEOUT)), None)
    if odd is not None:
        return Found(None, f"{odd} could not be judged ({verdicts[odd]}): the bisect ends there")
    before, after = _wanted(plan)
    if verdicts[last] != after:
        return Found(None, f"all changes together have {verdicts[last]}: none of them {plan.find} it")
    if verdicts[first] != before:
        return Found(None, f"the base alone has {verdicts[first]} already: no change {plan.find} it")
    at = _flip(plan, verdicts)[1]
    return Found(plan.steps[at], f"{plan.steps[at]} is the first to have {after}; {plan.steps[at - 1]} has {before}")


def longest(plan: Plan) -> int:
    """How many steps are played at most."""
    if plan.mode != BISECT:
        return len(plan.steps)
    between = len(plan.steps) - 2
    return 2 + max(0, between).bit_length()


def _next_of_bisect(plan: Plan, verdicts: Mapping[str, str]) -> Optional[str]:
    if any(verdict in (UNFIT, TIMEOUT) for verdict in verdicts.values()):
        return None
    before, after = _wanted(plan)
    # The ends first: where the outcome is the same at both there is nothing to find.
    for name, wanted in ((plan.steps[-1], after), (plan.steps[0], before)):
        verdict = verdicts.get(name)
        if verdict is None:
            return name
        if verdict != wanted:
            return None
    low, high = _flip(plan, verdicts)
    return plan.steps[(low + high) // 2] if high - low > 1 else None


def _flip(plan: Plan, verdicts: Mapping[str, str]) -> Tuple[int, int]:
    """The last step that is as the base, and the first that is as all changes together."""
    _, after = _wanted(plan)
    known: Dict[int, str] = {at: verdicts[name] for at, name in enumerate(plan.steps) if name in verdicts}
    high = min((at for at, verdict in known.items() if verdict == after), default=len(plan.steps) - 1)
    low = max((at for at, verdict in known.items() if verdict != after and at < high), default=0)
    return low, high


def _wanted(plan: Plan) -> Tuple[str, str]:
    """The verdicts on the base and on all changes together for which there is something to find."""
    return (PASSED, FAILED) if plan.find == BREAKS else (FAILED, PASSED)


def left(plan: Plan, verdicts: Mapping[str, str]) -> List[str]:
    """The steps of a sequence or a matrix that were not played; of a bisect only the next one is known."""
    if plan.mode == BISECT:
        following = next_step(plan, verdicts)
        return [following] if following is not None else []
    return _names(plan.steps, verdicts) if next_step(plan, verdicts) is not None else []


def _names(steps: Sequence[str], verdicts: Mapping[str, str]) -> List[str]:
    return [name for name in steps if name not in verdicts]
