"""A record as a page for people."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.report.words import duration

Json = Mapping[str, Any]


def page(record: Json) -> str:
    """The record in Markdown."""
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record["began"]))
    head = [
        f"# {record['name']}",
        "",
        f"**Question.** {record['question'].strip()}",
        "",
        f"**Hypothesis.** {record['hypothesis'].strip()}",
        "",
        f"**Verdict: {record['verdict']['verdict']}.** {'; '.join(record['verdict']['why'])}",
        "",
        *([f"**Found.** {record['finding']['text']}", ""] if record.get("finding") else []),
        *([f"**Otherwise than expected.** {'; '.join(record['unexpected'])}", ""] if record["unexpected"] else []),
        f"A {record['mode']} on {record['base']['playbook']} (service {record['base']['service']}), {', '.join(record['hosts'])}, "
        f"{began}, {duration(record['ended'] - record['began'])}, by {record['by']}.",
        "",
    ]
    return "\n".join([*head, *_steps(record), *_details(record), *_ground(record), *_again(record)]) + "\n"


def _steps(record: Json) -> list[str]:
    cells = list(dict.fromkeys(figure["cell"]["name"] for step in record["steps"] for figure in step["figures"]))
    rows = [
        [
            step["name"],
            "<br>".join(f"`{change}`" for change in step["changes"]) or "the base",
            step["verdict"],
            step["class"] or (step["kind"] if step["verdict"] != "passed" else None) or "",
            "" if step["ready_s"] is None else f"{step['ready_s']:.0f} s",
            *(_speed(step, cell) for cell in cells),
        ]
        for step in record["steps"]
    ]
    rows += [[name, "", "not played", "", "", *("" for _ in cells)] for name in record["not_played"]]
    return [
        "## Steps",
        "",
        *_table(["step", "changes", "verdict", "class", "ready after", *(f"{cell}, tok/s" for cell in cells)], rows),
        "",
    ]


def _speed(step: Json, cell: str) -> str:
    figure = next((figure for figure in step["figures"] if figure["cell"]["name"] == cell), None)
    if figure is None:
        return ""
    return f"{figure['tok_s']:.1f}" if figure["valid"] else "invalid"


def _details(record: Json) -> list[str]:
    told = []
    for step in record["steps"]:
        lines = [
            *([f"- what for: {step['why']}"] if step["why"] else []),
            *([f"- source: {step['source']}"] if step["source"] else []),
            *([f"- reason: {step['reason']}"] if step["reason"] else []),
            *([f"- evidence: `{_line(step['evidence'])}`"] if step["evidence"] else []),
            *(
                [f"- probes: {step['probes']['asked']} asked, wrong: {', '.join(step['probes']['wrong']) or 'none'}"]
                if step["probes"]["asked"]
                else []
            ),
            *(
                f"- rung {rung['rung']} of the ladder, {rung['name']}: {rung['verdict']}; {rung['answer']}; expected: {rung['expectation']}"
                for rung in step.get("ladder") or ()
                if rung["verdict"] != "skipped"
            ),
            *(
                f"- {figure['cell']['name']} is invalid: {'; '.join(figure['faults'])}"
                for figure in step["figures"]
                if not figure["valid"]
            ),
            *([f"- release {step['release']}, {duration(step['seconds'])} in all"] if step["release"] is not None else []),
        ]
        told += [f"### {step['name']}", "", *lines, ""] if lines else []
    return told


def _ground(record: Json) -> list[str]:
    told = ["## What it ran on", ""]
    for number, each in enumerate(record["fingerprints"]):
        packages = ", ".join(f"{name} {version}" for name, version in each["packages"].items())
        steps = ", ".join(step["name"] for step in record["steps"] if step["fingerprint"] == number)
        where = f"{each['card']}, {each['driver'] or 'no driver'}, kernel {each['kernel']}, Python {each['python']}"
        model = json.dumps(each["model"], sort_keys=True)
        told.append(f"- {steps}: {where}; {packages or 'packages unknown'}; build {each['build'] or 'none'}; model `{model}`")
    return [*told, f"- playbook sha256 {record['base']['sha256']}; gpuops {record['gpuops']}", ""]


def _again(record: Json) -> list[str]:
    steps = [f"{command}    # {name}" for name, command in record["commands"]["steps"].items()]
    return ["## Again", "", "In this folder:", "", "```", record["commands"]["trial"], "", *steps, "```"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]


def _line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())
