"""The agent's `bench`: what it measures, keeps, compares, and refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fault_server import serving
from gpuops_agent import bench, locks, measurements, proc
from gpuops_agent.paths import Root, Service
from gpuops_agent.wire import AgentError
from measuring import run_as_this_process, service

from gpuops.engines.measuring import load_words

CELLS = [{"name": "c2", "concurrency": 2, "input": 8, "output": 8, "requests": 4, "cold": True}]


def measure(made: Service, **more: Any) -> dict[str, Any]:
    args = {"service": "demo", "by": "t@here", "load": load_words(), "cells": CELLS, "default_cells": CELLS, "deadline_s": 60.0}
    return bench.bench(Root(made.root.path), {**args, "seed": 1, **more})


@pytest.fixture
def made(tmp_path: Path) -> Any:
    with serving() as server:
        yield server, service(server.port, tmp_path)


def test_a_valid_block_has_figures_and_is_kept_with_the_release(made: Any, capfdbinary: Any) -> None:
    _, demo = made
    result = measure(demo)
    (block,) = result["blocks"]
    assert result["valid"] and block["figures"]["output_tok_s"] > 0
    assert set(block["figures"]["ttft_ms"]) == {"p50", "p95", "p99"}
    (kept,) = measurements.load(demo, 1)
    assert kept["figures"] == block["figures"] and len(kept["requests"]) == 4 and kept["by"] == "t@here"
    events = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [event["event"] for event in events if event["event"] in ("measuring", "block")] == ["measuring", "block"]


def test_an_invalid_block_has_its_reasons_and_is_kept_too(made: Any) -> None:
    server, demo = made
    server.kind = "error_midway"
    result = measure(demo)
    assert not result["valid"]
    assert result["blocks"][0]["figures"] is None and result["blocks"][0]["faults"]
    assert [each["valid"] for each in measurements.load(demo, 1)] == [False]


def test_a_second_measurement_is_held_against_the_first(made: Any) -> None:
    _, demo = made
    first = measure(demo)["blocks"][0]
    assert first["reference"] is None
    second = measure(demo, seed=2)["blocks"][0]
    assert second["reference"]["figures"] == first["figures"]


def test_a_candidate_is_held_against_the_known_good_release(tmp_path: Path) -> None:
    with serving() as server:
        demo = service(server.port, tmp_path, good=1, release=2)
        run_as_this_process(demo, 1, server.port)
        good = measure(demo)["blocks"][0]
        run_as_this_process(demo, 2, server.port)
        result = measure(demo, seed=2)
    assert (result["release"], result["known_good"]) == (2, 1)
    assert result["blocks"][0]["reference"]["figures"] == good["figures"]


def test_cells_are_the_requests_else_the_releases_else_the_default_ones(tmp_path: Path) -> None:
    own = [{**CELLS[0], "name": "own"}]
    with serving() as server:
        demo = service(server.port, tmp_path, playbook={"bench": {"cells": own}})
        assert measure(demo, cells=None)["blocks"][0]["cell"]["name"] == "own"
        assert measure(demo)["blocks"][0]["cell"]["name"] == "c2"


def test_an_unknown_cell_is_a_usage_error_that_names_the_known_ones(made: Any) -> None:
    with pytest.raises(AgentError) as caught:
        measure(made[1], only=["c99"])
    assert caught.value.code == 2 and "c2" in caught.value.evidence


def test_nothing_is_measured_while_a_rollout_holds_the_lock(made: Any) -> None:
    _, demo = made
    me = proc.identify(os.getpid())
    assert me is not None
    held = locks.acquire(demo, {"op": "up-1", "kind": "up", "by": "ann", "at": 0.0, "runner": me.to_json()})
    try:
        with pytest.raises(AgentError) as caught:
            measure(demo)
    finally:
        os.close(held)
    assert caught.value.code == 13


def test_the_lock_is_free_again_after_a_measurement(made: Any) -> None:
    measure(made[1])
    assert locks.owner(made[1]) is None


def test_without_a_server_there_is_nothing_to_measure(made: Any) -> None:
    made[1].server_file.unlink()
    with pytest.raises(AgentError) as caught:
        measure(made[1])
    assert caught.value.kind == "not_running"


def test_a_server_without_counters_cannot_be_believed(made: Any) -> None:
    server, demo = made
    server.metrics = lambda: ""
    result = measure(demo)
    assert any("publishes no token counters" in fault for fault in result["blocks"][0]["faults"])


def test_requests_of_others_in_the_window_spoil_the_block(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, demo = made
    monkeypatch.setattr("gpuops_agent.telemetry.PERIOD_S", 0.0)
    monkeypatch.setattr("gpuops_agent.block.SETTLE_S", 0.5)
    server.running = 5
    server.gap_s = 0.05
    result = measure(demo)
    assert any(fault.startswith("other requests were served") for fault in result["blocks"][0]["faults"])


def test_a_block_that_is_not_over_in_time_is_ended(made: Any) -> None:
    server, demo = made
    server.gap_s = 1.0
    result = measure(demo, deadline_s=0.5)
    assert any("did not end within 0.5 s" in fault for fault in result["blocks"][0]["faults"])


def test_a_cut_line_in_the_records_is_left_out(made: Any) -> None:
    _, demo = made
    measure(demo)
    with measurements.path(demo, 1).open("a") as file:
        file.write('{"cell": {"na')
    assert len(measurements.load(demo, 1)) == 1
