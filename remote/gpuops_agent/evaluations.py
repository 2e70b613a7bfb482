"""Rung 9 of the ladder: evaluations by tools that exist, run in the server's own runtime against the server, over loopback."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from . import load_client, tool
from .asking import RIGHT, SKIPPED, WRONG, Asked, Finding, skipped
from .evaluators import KEY_VARIABLE, TOOLS, Score, Wanted
from .files import disk_error
from .proc import boottime
from .wire import BEAT_S, AgentError, Emit

# Lines of a tool's output that are told on, one in so many seconds.
TOLD_S = 1.0


def evaluate(asked: Asked, section: Dict[str, Any], emit: Emit) -> Finding:
    """Every evaluation in turn. One whose tool the runtime has not is left out by name, unless it must be there.

    An empty answer is no wrong answer: one is enough to fail the evaluation, whatever its score.
    """
    if not section["run"]:
        return skipped("the playbook names no evaluation (ladder.evaluations)")
    packages = load_client.packages(asked.release)
    found = [(wanted, _put(asked, wanted, packages, emit)) for wanted in section["run"]]
    wrong = [finding for _, finding in found if finding.verdict == WRONG]
    put = [finding for _, finding in found if finding.verdict != SKIPPED]
    left_out = "; ".join(finding.detail for _, finding in found if finding.verdict == SKIPPED)
    if not put:
        return skipped(left_out)
    first = (wrong or put)[0]
    return Finding(
        WRONG if wrong else RIGHT,
        "; ".join(finding.question for finding in put),
        "; ".join(finding.answer for finding in put),
        first.expectation if wrong else "; ".join(finding.expectation for finding in put),
        "; ".join(filter(None, (first.detail if wrong else "", f"left out: {left_out}" if left_out else ""))),
    )


def judge(wanted: Wanted, score: Score) -> Tuple[str, str, str]:
    """Verdict, answer and detail of an evaluation that was put. Pure."""
    said = f"{wanted['name']}: {score.metric} {score.value:.4g} over {score.answers} answers"
    if not score.answers:
        return WRONG, f"{said}, which is none", "the tool has recorded no answer"
    if score.empty:
        failed = f", {score.failed} of them because the request failed" if score.failed else ""
        return WRONG, f"{said}, of which {score.empty} are empty{failed}", score.example
    return (RIGHT if score.value >= wanted["least"] else WRONG), f"{said}, none empty", ""


def _put(asked: Asked, wanted: Wanted, packages: List[Path], emit: Emit) -> Finding:
    evaluator = TOOLS[wanted["tool"]]
    question = f"{wanted['task']} by {wanted['tool']}"
    expectation = f"at least {wanted['least']:.4g}, and no empty answer"
    if not any((folder / evaluator.package).is_dir() for folder in packages):
        missing = f"{wanted['name']}: {wanted['tool']} is not installed in the server's runtime"
        return skipped(missing) if wanted["when_missing"] == "skip" else Finding(WRONG, question, missing, expectation)
    emit("phase", phase="evaluations", progress=None, detail=question)
    folder = asked.release.path / "evaluations" / wanted["name"]
    try:
        _fresh(folder)
        _run([asked.release.document["argv"][0], *evaluator.argv(wanted, asked.server, folder)], asked, wanted, folder, emit)
        verdict, answer, detail = judge(wanted, evaluator.read(wanted, folder))
    except AgentError as error:
        evidence = asked.server.redact(f"{error.evidence} ({folder.parent / (wanted['name'] + '.log')})")
        return Finding(WRONG, question, f"{wanted['name']}: {error.what}", expectation, evidence)
    return Finding(verdict, question, answer, expectation, asked.server.redact(detail))


def _run(argv: List[str], asked: Asked, wanted: Wanted, folder: Path, emit: Emit) -> None:
    env = load_client.environment(asked.release)
    # The tool's own work needs no card, and takes no memory from the server's. What lies in the folder that we run in is nobody's package.
    env.update(CUDA_VISIBLE_DEVICES="", PYTHONSAFEPATH="1")
    key = asked.server.headers.get("Authorization", "")
    if key:
        env[KEY_VARIABLE] = key.partition(" ")[2]
    tool.run(
        argv,
        what=f"the evaluation {wanted['name']}",
        log=folder.parent / f"{wanted['name']}.log",
        cancelled=_beats(emit),
        deadline=boottime() + wanted["deadline_s"],
        env=env,
        on_line=_told(wanted["name"], emit),
        longer="raise the evaluation's deadline_s",
    )


def _fresh(folder: Path) -> None:
    """An empty folder for the tool's records, and an empty log beside it: what a former run has left would be read as this one's."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        folder.with_name(folder.name + ".log").unlink(missing_ok=True)
    except OSError as error:
        raise disk_error(error, folder) from error


def _beats(emit: Emit) -> Callable[[], bool]:
    """Never cancelled by a word; but a client that has gone is found out by writing to it, and that ends the tool."""
    spoke = [time.monotonic()]

    def look() -> bool:
        if time.monotonic() - spoke[0] >= BEAT_S:
            spoke[0] = time.monotonic()
            emit("beat")
        return False

    return look


def _told(name: str, emit: Emit) -> Callable[[str], None]:
    spoke = [0.0]

    def tell(text: str) -> None:
        if time.monotonic() - spoke[0] >= TOLD_S:
            spoke[0] = time.monotonic()
            emit("phase", phase="evaluations", progress=None, detail=f"{name}: {text[-100:]}")

    return tell
