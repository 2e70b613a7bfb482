"""A plan as text."""

from __future__ import annotations

from gpuops.report.style import Paint, columns
from gpuops.rollout.plan import Plan


def lines(plan: Plan, host: str, paint: Paint) -> list[str]:
    """What would be done, what would change, and what to know before."""
    told = [f"{paint.bold(plan.service)} on {host}: {_headline(plan)}"]
    rows = [[change.key, change.old or "(none)", "->", change.new or "(none)"] for change in plan.changes]
    if rows:
        told += ["", paint.bold("changes"), *(f"  {line}" for line in columns(rows))]
    told += ["", paint.bold("steps"), *(f"  {number}. {step}" for number, step in enumerate(plan.steps, 1))]
    if plan.warnings:
        told += ["", *(f"{paint.yellow('warning:')} {warning}" for warning in plan.warnings)]
    return told


def _headline(plan: Plan) -> str:
    if plan.action == "nothing":
        return f"nothing to do, release {plan.release} is what the playbook wants"
    if plan.action == "start":
        return "nothing runs; a release would be started"
    return f"release {plan.release} would be replaced"
