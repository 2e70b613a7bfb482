"""Open loops by AIPerf: what its records say, a runtime that lacks it, and the tool itself against the fault server.

The tool brings 1.2 GB of packages, more than a test run should fetch by itself: its own tests run where it is in ``.sandbox-tests/aiperf-VERSION``.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, serving
from gpuops_agent import aiperf_client, block
from gpuops_agent.load_run import Cell
from measuring import measured, target

VERSION = "0.13.0"
TESTS = Path(__file__).resolve().parents[2]
HOME = TESTS.parent / ".sandbox-tests" / f"aiperf-{VERSION}"

# Written by aiperf 0.13.0 against the fault server: three good answers, a refused request, and a stream that broke.
RECORDS = [json.loads(line) for line in (TESTS / "fixtures" / "aiperf" / "raw_records.jsonl").read_text().splitlines()]

CELL = Cell("r8", None, 16, 16, 8, rate=8.0, goodput={"e2e_ms": 60_000.0}, client="aiperf")

# Loads, and knows one word.
TOKENIZER = {
    "tokenizer.json": '{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, '
    '"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}',
    "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
}


def test_its_records_are_judged_as_streams_of_our_own() -> None:
    run = aiperf_client.parse(reversed(RECORDS), str.upper)
    assert [request.tokens for request in run.requests] == [16, 16, 16, 0, 8]
    assert [request.finish for request in run.requests[:3]] == ["length"] * 3
    assert [len(request.gaps) for request in run.requests[:3]] == [15] * 3
    assert run.requests[3].error == 'HTTP 503: {"ERROR": "OVERLOADED"}'
    assert "illegal memory access" in run.requests[4].error
    assert run.completed == 3 and run.client == "aiperf"


def test_times_are_those_of_sending_and_of_the_streams_events() -> None:
    first = RECORDS[0]
    run = aiperf_client.parse(RECORDS[:3], str)
    assert run.sent == [record["start_perf_ns"] / 1e9 for record in RECORDS[:3]]
    assert run.requests[0].ttft == pytest.approx((first["responses"][0]["perf_ns"] - first["start_perf_ns"]) / 1e9)
    # The last event is the end mark.
    assert run.requests[0].e2e == pytest.approx((first["responses"][-2]["perf_ns"] - first["start_perf_ns"]) / 1e9)


def test_no_records_are_no_run() -> None:
    with pytest.raises(ValueError, match="no records"):
        aiperf_client.parse([], str)


def test_a_runtime_without_it_is_named_with_what_to_install_and_nothing_else_sends(tmp_path: Path) -> None:
    with serving() as server:
        told = measured(target(server, tmp_path), cell=CELL)
        assert server.streams == 0
    assert told["rejected"] and told["client"] == "aiperf" and told["figures"] is None
    assert "pip install aiperf" in told["faults"][0]


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of an environment that has AIPerf."""
    found = HOME / "bin" / "python"
    asked = subprocess.run([found, "-c", "import aiperf"], check=False) if found.exists() else None
    if asked is None or asked.returncode:
        pytest.skip(f"no AIPerf: python -m venv {HOME} && {found} -m pip install aiperf=={VERSION}")
    return str(found)


def by_aiperf(python: str, server: FaultServer, folder: Path) -> dict[str, Any]:
    made = target(server, folder, python=python)
    for name, text in TOKENIZER.items():
        (folder / "model" / name).write_text(text)
    # An engine is often run offline; and its key is nobody's business.
    made.release.document["env"].update({"HF_HUB_OFFLINE": "1"})
    served = replace(made.server, headers={"Authorization": "Bearer sesame"})
    return block.measure(replace(made, server=served), CELL, 1, 300.0, lambda sample: None)


@pytest.mark.slow
def test_the_real_tool_sends_at_a_rate_and_tells_when(python: str, tmp_path: Path) -> None:
    with serving() as server:
        told = by_aiperf(python, server, tmp_path)
        assert server.streams == CELL.requests
    assert told["faults"] == []
    assert told["figures"]["rate"]["achieved"] > 0 and not told["figures"]["rate"]["at_least"]
    assert told["figures"]["goodput"]["share"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["early_end", "cut_midway"])
def test_a_fault_is_rejected_whatever_the_real_tool_makes_of_it(python: str, tmp_path: Path, kind: str) -> None:
    with serving(kind) as server:
        told = by_aiperf(python, server, tmp_path)
    assert told["rejected"] and told["figures"] is None
