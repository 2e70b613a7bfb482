"""Trials for people: the steps as they would be played, as they are played, and as they were."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.report.style import Paint, columns
from gpuops.report.words import ago, duration

Json = Mapping[str, Any]
Event = Mapping[str, Any]

_MARKS = {"passed": "green", "failed": "red", "unfit": "yellow", "timeout": "yellow"}


def dry(name: str, question: str, steps: Sequence[tuple[str, Sequence[str], str]], rules: str, paint: Paint) -> list[str]:
    """What a trial would do. ``steps``: name, changes, and what the file says of it."""
    told = [paint.bold(f"trial {name}: {question.strip()}"), rules]
    for step, changes, why in steps:
        told.append(f"  {paint.bold(step)}: {'; '.join(changes) or 'the base as it is'}")
        told += [paint.dim(f"      {line}") for line in why.splitlines() if line]
    return [*told, "then, and whatever happens: the known-good release serves, and has been probed"]


def table(names: Sequence[str], results: Sequence[Json], now: str | None, elapsed: float, paint: Paint) -> list[str]:
    """The steps: those with a verdict, the one that runs (``now``, for ``elapsed`` seconds), and those to come."""
    told = {result["step"]: result for result in results}
    cells = list(dict.fromkeys(block["cell"]["name"] for result in results for block in result.get("blocks") or ()))
    head = ["step", "verdict", "ready", "time", *(f"{cell} tok/s" for cell in cells), ""]
    rows = []
    for name in names:
        result = told.get(name)
        if result is not None:
            ready = "" if result.get("ready_s") is None else duration(result["ready_s"])
            why = "" if result["verdict"] == "passed" else f"{result.get('class') or result.get('kind')}: {result.get('reason')}"
            rows.append(
                [name, result["verdict"], ready, duration(result["seconds"]), *(_speed(result, cell) for cell in cells), why]
            )
        elif name == now:
            rows.append([name, "runs", "", duration(elapsed), *("" for _ in cells), ""])
        else:
            rows.append([name, "-", "", "", *("" for _ in cells), ""])
    lines = columns([head, *rows])
    return [paint.dim(lines[0]), *(_painted(line, row[1], paint) for line, row in zip(lines[1:], rows, strict=True))]


def step_lines(event: Event, paint: Paint) -> list[str]:
    """The `step` event: one begins."""
    return [paint.bold(f"step {event['number']}: {event['step']}")]


def tried_lines(event: Event, paint: Paint) -> list[str]:
    """The `tried` event: one has its verdict."""
    verdict = paint.styled(_MARKS[event["verdict"]], event["verdict"])
    why = "" if event["verdict"] == "passed" else f": {event.get('class') or event.get('kind')}: {event.get('reason')}"
    shown = [f"    {event['evidence']}"] if event["verdict"] != "passed" and event.get("evidence") else []
    return [f"step {event['step']} has {verdict} after {duration(event['seconds'])}{why}", *shown]


def ended(record: Json, path: str, paint: Paint) -> list[str]:
    """The end of a trial that is complete."""
    told = [paint.bold(f"{record['verdict']['verdict']}: {'; '.join(record['verdict']['why'])}")]
    if record["finding"]:
        told.append(f"found: {record['finding']['text']}")
    told += [paint.yellow(f"otherwise than expected: {line}") for line in record["unexpected"]]
    return [*told, f"record: {path}"]


def records(stored: Sequence[Any], now: float | None = None) -> list[str]:
    """Records, the newest first."""
    rows = [
        (
            each.id,
            each.record["verdict"]["verdict"],
            f"{len(each.record['steps'])} steps",
            ago(each.record["ended"], now or time.time()),
            each.record["question"].strip().splitlines()[0][:80],
        )
        for each in stored
    ]
    return columns(rows) or ["no records"]


def _speed(result: Json, cell: str) -> str:
    block = next((block for block in result.get("blocks") or () if block["cell"]["name"] == cell), None)
    if block is None:
        return ""
    if not block["valid"]:
        return "invalid"
    figure = "output_tok_s" if block["cell"]["output_tokens"] > 1 else "input_tok_s"
    return f"{block['figures'][figure]:.1f}"


def _painted(line: str, verdict: str, paint: Paint) -> str:
    if verdict in _MARKS:
        return line.replace(f" {verdict} ", f" {paint.styled(_MARKS[verdict], verdict)} ", 1)
    return paint.bold(line) if verdict == "runs" else paint.dim(line)
