"""Open loops and goodput: figures and their definitions, our own client at a rate, and cells as a playbook says them."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_server import serving
from gpuops_agent import load_client, open_loop, own_client
from gpuops_agent.load_run import Cell, Request, Run
from measuring import measured, on, target
from pydantic import ValidationError

from gpuops.engines.measuring import load_words
from gpuops.measure.ab import figures_of
from gpuops.measure.compare import changes
from gpuops.playbook import measuring as playbook

# Eight requests in about a fifth of a second.
OPEN = Cell("r40", None, 16, 16, 8, rate=40.0)


def run(*requests: Request, duration_s: float = 10.0, sent: list[float] | None = None) -> Run:
    return Run("client", "native", len(requests), duration_s, list(requests), sent=sent)


def steady(number: int, gap_s: float) -> Run:
    """Requests of one second each, sent in equal gaps."""
    return run(*[Request(2, 0.5, [0.5])] * number, duration_s=number * gap_s + 1, sent=[5.0 + at * gap_s for at in range(number)])


def test_the_achieved_rate_is_that_of_the_times_of_sending() -> None:
    told = open_loop.figures(steady(5, 0.5), replace(OPEN, rate=2.0))["rate"]
    assert told == {"asked": 2.0, "achieved": 2.0, "at_least": False}


def test_without_times_of_sending_the_achieved_rate_is_a_lower_bound() -> None:
    quick, slow = Request(1, 0.5), Request(1, 2.0)
    told = open_loop.figures(run(quick, slow, quick, slow, slow, duration_s=10.0), replace(OPEN, rate=2.0))["rate"]
    # The last of five was sent 8 s after the first, or before.
    assert told == {"asked": 2.0, "achieved": 0.5, "at_least": True}


def test_a_client_that_falls_behind_is_named_and_one_that_does_not_is_not() -> None:
    asked = replace(OPEN, rate=2.0)
    assert open_loop.notes(steady(1000, 0.5), asked) == []
    (note,) = open_loop.notes(steady(1000, 0.6), asked)
    assert note.startswith("requests were sent at 1.67 a second, of 2 asked: the client fell behind")


def test_a_shortfall_that_few_arrivals_explain_is_told_as_chance() -> None:
    (note,) = open_loop.notes(steady(16, 0.6), replace(OPEN, rate=2.0))
    assert "16 arrivals drawn at random may miss their rate by as much" in note


def test_a_closed_loop_has_no_rate_to_miss() -> None:
    cell = replace(OPEN, rate=None, concurrency=4)
    assert open_loop.notes(steady(1000, 9.0), cell) == [] and open_loop.figures(steady(5, 1.0), cell)["rate"] is None


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft_ms": 500.0}, 3),
        ({"ttft_ms": 450.0}, 2),
        ({"itl_ms": 150.0}, 3),
        ({"e2e_ms": 750.0}, 2),
        ({"ttft_ms": 450.0, "itl_ms": 150.0, "e2e_ms": 750.0}, 1),
    ],
)
def test_goodput_counts_requests_that_meet_every_limit(limits: dict[str, float], good: int) -> None:
    requests = [
        Request(3, 0.5, [0.05, 0.15]),
        Request(3, 0.4, [0.3, 0.3]),
        Request(3, 0.6, [0.1, 0.1]),
        Request(3, 0.3, [0.1, 0.1]),
    ]
    told = open_loop.figures(run(*requests, duration_s=2.0), replace(OPEN, goodput=limits))["goodput"]
    assert told == {"req_s": good / 2.0, "share": good / 4}


def test_our_own_client_sends_at_a_rate_whatever_is_under_way(tmp_path: Path) -> None:
    # No answer begins before all requests have come.
    together = threading.Barrier(OPEN.requests, timeout=60)
    with serving() as server:
        begin = server.begin

        def held(prompt: int, stream: bool) -> int:
            number = begin(prompt, stream)
            if stream:
                together.wait()
            return number

        server.begin = held  # type: ignore[method-assign]
        block = measured(target(server, tmp_path), cell=replace(OPEN, goodput={"ttft_ms": 60_000.0}))
    assert block["faults"] == []
    assert block["figures"]["rate"]["asked"] == 40.0 and not block["figures"]["rate"]["at_least"]
    assert block["figures"]["goodput"]["share"] == 1.0


def test_a_fault_in_an_open_loop_is_rejected(tmp_path: Path) -> None:
    with on(tmp_path, "error_midway") as made:
        block = measured(made, cell=OPEN)
    assert block["rejected"] and block["figures"] is None


def test_no_two_prompts_of_a_run_begin_alike() -> None:
    many = replace(OPEN, requests=600, input_tokens=3)
    made = list(own_client.prompts(many, 7, 1000))
    assert len({prompt[0] for prompt in made}) == 600 and all(len(prompt) == 3 for prompt in made)
    assert made != list(own_client.prompts(many, 8, 1000))
    assert len(list(own_client.prompts(many, 7, 100))) == 600


def test_what_whoever_polls_does_in_between_is_no_part_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        at = target(server, tmp_path)
        begun = own_client.Started(at.server, at.words, replace(OPEN, rate=None, concurrency=2), 1, 100)
        for thread in begun._threads:
            thread.join()
        with monkeypatch.context() as later:
            later.setattr(own_client.time, "monotonic", lambda: 1e9)
            run = begun.poll()
    assert run is not None and run.completed == 8 and 0 < run.duration_s < 1e6


def test_arrivals_are_random_and_their_rate_is_the_asked_one() -> None:
    first, second = own_client.arrivals(10_000, 4.0, 1), own_client.arrivals(10_000, 4.0, 2)
    assert first == sorted(first) and first[0] == 0 and first != second
    # The sum of so many gaps has a standard deviation of 1 %.
    assert first[-1] == pytest.approx(2500, rel=0.05)


@pytest.mark.parametrize(
    ("cell", "loop"),
    [
        (OPEN, ["--request-rate", "40.0"]),
        (replace(OPEN, rate=None, concurrency=3), ["--max-concurrency", "3", "--request-rate", "inf"]),
    ],
)
def test_the_engines_client_is_told_which_loop_it_is(cell: Cell, loop: list[str], tmp_path: Path) -> None:
    result = tmp_path / "argv"
    script = f"import sys; open({str(result)!r}, 'w').write('\\n'.join(sys.argv[1:]))"
    with serving() as server:
        made = target(server, tmp_path, load_client.Client("spy", [sys.executable, "-c", script], [], []))
        assert measured(made, cell=cell)["rejected"]
    told = result.read_text().split("\n")
    assert told[-len(loop) :] == loop and "--max-concurrency" not in told[: -len(loop)]


def test_a_cell_counts_a_minute_of_its_rate_and_closed_cells_are_the_same_as_ever() -> None:
    said = {"input": 10, "output": 5, "cold": True}
    assert Cell.from_json({"name": "r", "rate": 4.0, **said}).requests == 240
    assert Cell.from_json({"name": "r", "rate": 0.5, **said}).requests == 64
    assert set(Cell.from_json({"name": "c", "concurrency": 4, **said}).to_json()) == {
        *("name", "concurrency", "input_tokens", "output_tokens", "requests", "cold"),
    }


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({}, "a concurrency .* or a rate"),
        ({"concurrency": 1, "rate": 1}, "a concurrency .* or a rate"),
        ({"concurrency": 16, "requests": 8}, "8 requests never run 16 at a time"),
        ({"rate": 0}, "greater than 0"),
        ({"concurrency": 1, "client": "aiperf"}, "the cell needs a rate"),
        ({"rate": 1, "goodput": {}}, "no limit"),
        ({"rate": 1, "goodput": {"ttft_ms": 0}}, "greater than 0"),
    ],
)
def test_a_cell_that_is_neither_loop_or_limits_nothing_is_refused(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        playbook.Cell(name="x", **said)


def test_open_loops_are_compared_by_times_and_goodput_and_not_by_their_throughput() -> None:
    figures = {"output_tok_s": 9.0, "e2e_ms": {"p50": 2.0}, "goodput": {"req_s": 3.0}, "tpot_ms": None, "ttft_ms": {"p50": 1.0}}
    now = {"cell": OPEN.to_json(), "figures": figures}
    before = {**now, "figures": {**figures, "e2e_ms": {"p50": 1.0}}}
    assert [(change.name, change.ratio, change.better) for change in changes(now, before)] == [
        ("E2E", 2.0, False),
        ("goodput", 1.0, False),
        ("TTFT", 1.0, True),
    ]
    assert figures_of(now)[0][0] == "E2E"


def test_the_engines_words_have_both_loops() -> None:
    words = load_words()
    assert "@{rate}" in words["open"] and "@{concurrency}" in words["closed"]
    assert not {"@{rate}", "@{concurrency}"} & set(words["argv"])


def test_a_client_that_lacks_a_package_names_it_and_where_it_belongs(tmp_path: Path) -> None:
    with serving() as server:
        lacking = load_client.Client("lacking", [sys.executable, "-c", "import no_such_package.within"], [], [])
        told = measured(target(server, tmp_path, lacking))
    assert told["figures"] is None
    assert "needs the Python package no_such_package, which the runtime lacks" in told["faults"][0]
