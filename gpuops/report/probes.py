"""Probes as lines: what was asked, what came back, what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.report.style import Paint

# An answer can be a page; a line of a terminal cannot.
LONGEST_ANSWER = 300

Probe = Mapping[str, Any]


def lines(probe: Probe, paint: Paint) -> list[str]:
    """One line for a probe that passed; question, answer and expectation for one that did not."""
    seconds = f"{probe['seconds']:.1f} s"
    if probe["passed"]:
        return [f"{paint.green('✓')} {probe['name']}: {short(probe['answer'])} {paint.dim(seconds)}"]
    mark = paint.red("✗") if probe["gate"] == "required" else paint.yellow("✗")
    gate = "" if probe["gate"] == "required" else f" ({probe['gate']})"
    return [f"{mark} {probe['name']}{gate} {paint.dim(seconds)}", *(f"    {line}" for line in details(probe))]


def details(probe: Probe) -> list[str]:
    """Question, answer (or the error) and expectation of one probe."""
    came = f"failed    {probe['error']}" if probe.get("error") else f"answered  {short(probe['answer'])}"
    return [f"asked     {short(probe['question'])}", came, f"expected  {probe['expectation']}"]


def short(text: str | None) -> str:
    """Quoted, on one line, and cut when it is long."""
    text = (text or "").strip()
    return repr(text if len(text) <= LONGEST_ANSWER else f"{text[:LONGEST_ANSWER]}...")


class FailedProbes:
    """Listens to an operation and keeps the required probes that its candidate failed.

    What the running release answered before it was replaced, and what the restored one answers afterwards, is not the candidate's.
    """

    def __init__(self) -> None:
        self.failed: list[Probe] = []
        self._over = False

    def hear(self, event: Mapping[str, Any]) -> None:
        name = event["event"]
        if name == "restoring":
            self._over = True
        elif name == "server" and not self._over:
            self.failed = []
        elif name == "probe" and not self._over and not event["passed"] and event["gate"] == "required":
            self.failed.append(event)

    def evidence(self) -> str:
        """Every failed probe with its details; empty when none failed."""
        return "\n".join(line for probe in self.failed for line in [f"{probe['name']}:", *(f"  {d}" for d in details(probe))])
