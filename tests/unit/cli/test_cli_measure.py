"""bench and smoke --level: what they ask, print and return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.report import bench as report
from gpuops.report.style import PLAIN

HOST = ("--host", "gpu-box")
PLAYBOOK = """\
service: svc
host: gpu-box
runtime: {path: /opt/venv}
model: {path: /models/m}
engine: {name: sglang, version: 0.5.23}
bench: {cells: [{name: mine, concurrency: 3, input: 10, output: 5}]}
ladder: {soak: {requests: 7}}
"""


def spread(value: float) -> dict[str, float]:
    return {"p50": value, "p95": value * 1.1, "p99": value * 1.2}


def block(name: str = "c8", *, speed: float = 100.0, reference: Any = None, **changes: Any) -> dict[str, Any]:
    figures = {
        "ttft_ms": spread(50.0),
        "itl_ms": spread(9.0),
        "tpot_ms": spread(1000.0 / speed),
        "e2e_ms": spread(1500.0),
        "output_tok_s": 8 * speed,
        "input_tok_s": 3200.0,
        "user_tok_s": speed,
    }
    cell = {"name": name, "concurrency": 8, "input_tokens": 1024, "output_tokens": 256, "requests": 32, "cold": True}
    return {"cell": cell, "valid": True, "faults": [], "figures": figures, "reference": reference, **changes}


def result(*blocks: dict[str, Any], release: int = 4) -> dict[str, Any]:
    valid = all(each["valid"] for each in blocks)
    return {
        "service": "svc",
        "release": release,
        "known_good": 3,
        "client": "sglang.benchmark.rust_client",
        "blocks": list(blocks),
        "valid": valid,
    }


INVALID = block("c64", valid=False, figures=None, faults=["16 of 64 requests completed", "card 0 was throttled: hw_slowdown"])


def test_the_table_has_percentiles_throughput_and_the_definitions() -> None:
    lines = report.lines(result(block()), PLAIN)
    assert lines[0] == "svc, release 4, measured by sglang.benchmark.rust_client"
    assert lines[1].split() == ["cell", "at", "a", "time", "in/out", "tok/s", "per", "user", "in", "tok/s"]
    assert lines[2].split() == ["c8", "8", "1024/256", "800.0", "100.0", "3200"]
    assert lines[3].split() == ["cell", "TTFT", "ITL", "TPOT", "E2E"]
    assert lines[4].split() == ["c8", "50.0/55.0/60.0", "9.00/9.90/10.8", "10.0/11.0/12.0", "1500/1650/1800"]
    assert any("TPOT: (last - first token) / (tokens - 1)" in line for line in lines)


def test_an_open_loop_shows_its_rates_its_goodput_and_a_client_that_fell_behind() -> None:
    note = "requests were sent at 1.7 a second, of 2 asked: the client fell behind"
    users = block("users", client="aiperf", notes=[note])
    users["cell"] = {key: value for key, value in users["cell"].items() if key != "concurrency"} | {"rate": 2.0}
    users["figures"] |= {"rate": {"asked": 2.0, "achieved": 1.7, "at_least": True}, "goodput": {"req_s": 1.5, "share": 0.9}}
    lines = report.lines(result(block(), users), PLAIN)
    assert lines[2].split()[:2] == ["c8", "8"] and lines[3].split()[:2] == ["users", "-"]
    assert lines[7].split() == ["cell", "sent/s", "goodput"]
    assert lines[8].split() == ["users", "≥", "1.7", "of", "2", "1.5/s", "(90%)"], "c8 has neither"
    assert any(line.startswith("goodput: requests a second that met every limit") for line in lines)
    assert lines[-2:] == ["users: measured by aiperf", f"users: {note}"]
    assert "goodput 1.5/s (90%)" in report.block_lines(users, PLAIN)[0]


def test_an_invalid_cell_has_reasons_and_no_figures() -> None:
    lines = report.lines(result(INVALID), PLAIN)
    assert lines[1:] == ["✗ c64 is invalid", "    16 of 64 requests completed", "    card 0 was throttled: hw_slowdown"]


def test_a_comparison_names_what_it_is_held_against_and_claims_no_verdict() -> None:
    lines = report.lines(result(block(speed=110.0, reference=block(speed=100.0))), PLAIN)
    assert lines[-3:-1] == ["against release 3, the known-good one", "(one run each and not alternated: a hint, no verdict)"]
    assert lines[-1].split() == ["c8", "tok/s", "+10.0%", "TPOT", "-9.1%", "TTFT", "+0.0%"]


def test_a_prefill_cell_has_no_time_per_token() -> None:
    prefill = block("prefill")
    prefill["figures"].update(itl_ms=None, tpot_ms=None, user_tok_s=None)
    assert report.block_lines(prefill, PLAIN) == ["✓ prefill: 3200 prompt tok/s, TTFT 50 ms"]
    lines = report.lines(result(prefill), PLAIN)
    assert lines[2].split().count("-") == 1 and lines[4].split().count("-") == 2


def test_tables_and_definitions_fit_into_80_columns() -> None:
    users = block("prefill-32k", speed=12.5, client="aiperf")
    users["figures"] |= {"rate": {"asked": 2.0, "achieved": 1.7, "at_least": True}, "goodput": {"req_s": 1.5, "share": 0.9}}
    assert max(map(len, report.lines(result(block(reference=block()), users), PLAIN))) <= 80


@pytest.mark.parametrize(("blocks", "code"), [([block()], 0), ([block(), INVALID], 1)])
def test_bench_is_0_only_when_every_cell_is_valid(agent: Any, gpuops: Any, blocks: list[Any], code: int) -> None:
    agent(bench=result(*blocks))
    assert gpuops("bench", *HOST).code == code


def test_bench_asks_for_the_named_playbooks_cells(agent: Any, gpuops: Any, folder: Path) -> None:
    (folder / "box.yaml").write_text(PLAYBOOK)
    fake = agent(bench=result(block()))
    gpuops("bench", "-p", "box.yaml", "--cell", "mine", "--json")
    ((verb, args),) = fake.calls
    assert verb == "bench" and args["only"] == ["mine"]
    assert args["cells"] == [{"name": "mine", "concurrency": 3, "input": 10, "output": 5, "cold": True}]


def test_bench_without_a_named_playbook_leaves_the_cells_to_the_release(agent: Any, gpuops: Any) -> None:
    fake = agent(bench=result(block()))
    said = gpuops("bench", *HOST, "--json")
    args = fake.calls[-1][1]
    assert args["cells"] is None and [cell["name"] for cell in args["default_cells"]] == ["c1", "c8", "c16", "c64", "prefill-8k"]
    assert said.objects[-1]["valid"] is True


RUNG = {
    "rung": 3,
    "name": "arithmetic",
    "gate": "required",
    "verdict": "wrong",
    "question": "20 sums, 16 at a time",
    "answer": "3 of 20 right",
    "expectation": "at least 90%",
    "detail": "2 + 2 = 4: '5'",
    "seconds": 1.0,
}


def climbed(*rungs: dict[str, Any], verdict: str) -> Any:
    def answer(args: dict[str, Any], on_event: Any) -> dict[str, Any]:
        for rung in rungs:
            on_event({"event": "rung", "t": 1.0, **rung})
        told = {"verdict": verdict, "rungs": list(rungs), "launches": {"right": 2, "seen": 3}, "release": 4, "results": []}
        return {**told, "check": {"state": "serving", "evidence": ""}, "passed": verdict == "right"}

    return answer


@pytest.mark.parametrize(("verdict", "code"), [("right", 0), ("wrong", 6), ("down", 1)])
def test_smoke_with_a_level_ends_by_its_verdict(agent: Any, gpuops: Any, verdict: str, code: int) -> None:
    agent(smoke=climbed(RUNG, verdict=verdict))
    assert gpuops("smoke", "--level", "3", *HOST).code == code


def test_a_wrong_rung_shows_question_answer_and_expectation(agent: Any, gpuops: Any) -> None:
    agent(smoke=climbed({**RUNG, "verdict": "right", "rung": 1, "name": "identity", "detail": ""}, RUNG, verdict="wrong"))
    lines = gpuops("smoke", "--level", "3", *HOST).out.splitlines()
    assert lines[0] == "✓ 1 identity: 3 of 20 right 1.0 s"
    assert lines[1:6] == [
        "✗ 3 arithmetic: serving but wrong 1.0 s",
        "    asked     '20 sums, 16 at a time'",
        "    answered  '3 of 20 right'",
        "    expected  at least 90%",
        "    because   2 + 2 = 4: '5'",
    ]
    assert lines[-1] == "svc (release 4) is wrong: 1 of 2 rungs right; so in 2 of 3 launches of this release"


def test_smoke_puts_the_named_playbooks_ladder(agent: Any, gpuops: Any, folder: Path) -> None:
    (folder / "box.yaml").write_text(PLAYBOOK)
    fake = agent(smoke=climbed(verdict="right"))
    gpuops("smoke", "-p", "box.yaml", "--level", "8")
    args = fake.calls[-1][1]
    assert args["level"] == 8 and args["ladder"]["soak"] == {
        "gate": "required",
        "requests": 7,
        "concurrency": 8,
        "accept_length_above": 1.0,
    }


def test_a_level_beyond_the_ladder_is_a_usage_error(gpuops: Any) -> None:
    assert gpuops("smoke", "--level", "10", *HOST).code == 2
