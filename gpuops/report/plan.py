"""A plan as text."""

from __future__ import annotations

from gpuops.report.style import Paint, columns
from gpuops.report.words import duration
from gpuops.rollout.outage import Outage
from gpuops.rollout.plan import Plan


def lines(plan: Plan, host: str, paint: Paint) -> list[str]:
    """What would be done, what would change, and what to know before."""
    told = [f"{paint.bold(plan.service)} on {host}: {_headline(plan)}"]
    rows = [[change.key, change.old or "(none)", "->", change.new or "(none)"] for change in plan.changes]
    if rows:
        told += ["", paint.bold("changes"), *(f"  {line}" for line in columns(rows))]
    told += ["", paint.bold("steps"), *(f"  {number}. {step}" for number, step in enumerate(plan.steps, 1))]
    if plan.outage is not None:
        told += ["", f"{paint.bold('expected outage')}  {outage(plan.outage)}"]
    if plan.warnings:
        told += ["", *(f"{paint.yellow('warning:')} {warning}" for warning in plan.warnings)]
    return told


def outage(expected: Outage) -> str:
    """``34 s (stop 4.1 s, start 30 s: medians of its last 3 rollouts)``."""
    if expected.seconds is None or expected.start_s is None:
        return "unknown: this service has no history of a start"
    stop = "of unknown length: none was stopped before" if expected.stop_s is None else duration(expected.stop_s)
    of = f"medians of its last {expected.rollouts} rollouts" if expected.rollouts > 1 else "as in its last rollout"
    return f"{duration(expected.seconds)} (stop {stop}, start {duration(expected.start_s)}: {of})"


def _headline(plan: Plan) -> str:
    if plan.action == "nothing":
        return f"nothing to do, release {plan.release} is what the playbook wants"
    if plan.action == "start":
        return "nothing runs; a release would be started"
    return f"release {plan.release} would be replaced"
