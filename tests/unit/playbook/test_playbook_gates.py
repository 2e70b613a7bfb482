"""`gates.performance`: what it may say, what becomes of it in an order, and that it is no part of the desired state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import PlaybookError
from gpuops.playbook import load
from gpuops.rollout.desired import order
from gpuops.rollout.plan import plan

PLAYBOOK = """\
service: demo
host: gpu-box
runtime: {path: /opt/venv}
model: {path: /models/m}
engine: {name: sglang, version: 0.5.23}
bench: {cells: [{name: c1, concurrency: 1}, {name: c16, concurrency: 16, output: 512}], deadline_s: 900}
"""


@pytest.fixture
def ordered(tmp_path: Path) -> Any:
    def make(gates: str = "") -> dict[str, Any]:
        path = tmp_path / "demo.yaml"
        path.write_text(f"{PLAYBOOK}gates: {gates}\n" if gates else PLAYBOOK)
        return order(load(path, environ={}))

    return make


def test_without_the_section_nothing_is_measured(ordered: Any) -> None:
    assert ordered()["performance"] is None and ordered("{performance: {gate: 'off'}}")["performance"] is None


def test_the_order_has_the_cells_themselves_and_the_allowed_slowdown_as_a_fraction(ordered: Any) -> None:
    told = ordered("{performance: {gate: required, cells: [c16], not_slower_than: 5%}}")["performance"]
    assert (told["gate"], told["not_slower_than"], told["deadline_s"]) == ("required", 0.05, 900.0)
    assert [(cell["name"], cell["concurrency"], cell["output"]) for cell in told["cells"]] == [("c16", 16, 512)]
    assert told["load"]["metrics"] == "/metrics"


def test_all_cells_and_three_percent_are_the_default(ordered: Any) -> None:
    told = ordered("{performance: {}}")["performance"]
    assert (told["gate"], told["not_slower_than"], [cell["name"] for cell in told["cells"]]) == ("wanted", 0.03, ["c1", "c16"])


def test_a_cell_with_a_rate_is_no_part_of_a_gate_and_cannot_be_named(ordered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PLAYBOOK", PLAYBOOK.replace("cells: [", "cells: [{name: users, rate: 2.5}, "))
    assert [cell["name"] for cell in ordered("{performance: {}}")["performance"]["cells"]] == ["c1", "c16"]
    with pytest.raises(PlaybookError) as caught:
        ordered("{performance: {cells: [users]}}")
    assert "whose rate is given" in caught.value.evidence


def test_a_gate_asks_and_does_not_change_what_runs(ordered: Any) -> None:
    assert ordered("{performance: {gate: required}}")["spec"] == ordered()["spec"]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{cells: [c99]}", "c99"),
        ("{not_slower_than: much}", "not_slower_than"),
        ("{not_slower_than: 300%}", "not_slower_than"),
        ("{not_slower_than: true}", "not_slower_than"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(ordered: Any, section: str, problem: str) -> None:
    with pytest.raises(PlaybookError) as caught:
        ordered(f"{{performance: {section}}}")
    assert problem in caught.value.evidence


def test_a_plan_says_what_would_be_measured(ordered: Any) -> None:
    wanted = ordered("{performance: {gate: required, cells: [c16]}}")
    status = {"release": None, "server": None, "known_good": None, "operation": None, "foreign": None}
    steps = plan(wanted, status, {"releases": [], "operations": []}).steps
    assert "measure c16 against the known-good release (required)" in steps


def test_the_order_has_the_whole_ladder_with_its_level(ordered: Any) -> None:
    told = ordered("{ladder: {level: 7}}")["ladder"]
    assert (told["level"], told["sections"]["logprobs"]["continuations"]["factor"]) == (7, 2.0)
    assert told["load"]["continuation"]["tokens"] == ["meta_info", "output_token_logprobs"]
    assert ordered()["ladder"] is None


def test_the_ladder_asks_and_changes_nothing_that_runs(ordered: Any) -> None:
    assert ordered("{ladder: {level: 7}}")["spec"] == ordered()["spec"]


@pytest.mark.parametrize("level", [0, 9])
def test_a_level_that_the_ladder_does_not_have_is_refused(ordered: Any, level: int) -> None:
    with pytest.raises(PlaybookError, match="level"):
        ordered(f"{{ladder: {{level: {level}}}}}")
