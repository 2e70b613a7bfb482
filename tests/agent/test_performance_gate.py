"""The performance gate: what it lets pass, what it stops, and what it says when nothing is proved; in whole rollouts, and as a judgement."""

from __future__ import annotations

import json
import math
import os
import signal

import pytest
from gpuops_agent import performance
from gpuops_agent.comparisons import Noise
from measured_rollouts import CELL, bench, calibrate, gate, order
from rollouts import Lab, Played

# So slow that a second which a busy machine takes from a run does not turn one into the other.
FAST, SLOW = ("--gap-ms", "10"), ("--gap-ms", "80")


def known_good(lab: Lab, sd: float | None = 0.05) -> None:
    """A measured known-good release on a host whose noise is known, unless ``sd`` is None."""
    assert lab.play(order(lab, *FAST)).name == "promoted"
    assert bench(lab)["valid"]
    if sd is not None:
        calibrate(lab, sd)


def candidate(lab: Lab, *words: str, **section: object) -> Played:
    return lab.play(order(lab, *words, env={"ANOTHER": "1"}, performance=gate(**section)))  # type: ignore[arg-type]


def stored(lab: Lab, release: int) -> dict:
    return json.loads((lab.service.release(release) / "gates.json").read_text())


def test_a_candidate_that_is_as_fast_is_promoted_with_the_evidence(lab: Lab) -> None:
    known_good(lab)
    played = candidate(lab, *FAST, allowed=0.8)
    assert played.name == "promoted"
    (told,) = played.outcome["performance"]["cells"]
    assert (told["cell"], told["verdict"]) == ("c2", "passed") and "noise SD 5.0% by comparison ab-1" in told["why"]
    assert stored(lab, 2)["performance"]["verdict"] == "passed" and stored(lab, 2)["probes"]
    assert played.names("probe", "performance", "state")[-3:] == ["performance", "state", "state"], (
        "after the probes, before the promotion"
    )


@pytest.mark.failure_mode("slower-candidate")
def test_a_slower_candidate_is_bad_and_the_known_good_release_serves(lab: Lab) -> None:
    known_good(lab)
    played = candidate(lab, *SLOW)
    assert (played.name, played.code, played.outcome["failed"], played.outcome["kind"]) == ("restored", 10, 2, "slower")
    assert "c2: -" in played.outcome["evidence"] and lab.link("good") == 1
    assert lab.state(2)["state"] == "bad" and stored(lab, 2)["performance"]["verdict"] == "slower"


def test_a_slower_candidate_is_only_reported_where_the_gate_is_wanted(lab: Lab) -> None:
    known_good(lab)
    played = candidate(lab, *SLOW, gate="wanted")
    assert (played.name, played.outcome["performance"]["verdict"]) == ("promoted", "slower")


def test_noise_that_is_too_large_proves_nothing_and_that_is_no_pass(lab: Lab) -> None:
    known_good(lab, sd=2.0)
    played = candidate(lab, *FAST)
    assert (played.name, played.outcome["kind"]) == ("restored", "not_proved_fast")
    assert lab.state(2)["state"] == "unknown", "it is not called bad"


def test_without_a_calibration_nothing_is_proved_and_the_command_is_named(lab: Lab) -> None:
    known_good(lab, sd=None)
    played = candidate(lab, *FAST)
    assert played.outcome["kind"] == "not_proved_fast"
    assert "gpuops ab known-good known-good calibrates it" in played.outcome["evidence"]


def test_without_a_calibration_a_wanted_gate_warns_and_lets_pass(lab: Lab) -> None:
    known_good(lab, sd=None)
    played = candidate(lab, *FAST, gate="wanted")
    assert (played.name, played.outcome["performance"]["verdict"]) == ("promoted", "inconclusive")


def test_a_known_good_release_that_was_never_measured_proves_nothing(lab: Lab) -> None:
    lab.play(order(lab, *FAST))
    played = candidate(lab, *FAST)
    assert "never measured at this cell" in played.outcome["evidence"]


def test_a_measurement_that_cannot_be_believed_is_no_pass(lab: Lab) -> None:
    known_good(lab)
    played = candidate(lab, *FAST, "--sick", "error_midway", allowed=0.8)
    assert (played.name, played.outcome["kind"]) == ("restored", "not_proved_fast")
    assert "the measurement is invalid" in played.outcome["evidence"]


def test_a_candidate_that_cannot_be_measured_at_all_is_no_pass_and_no_defect(lab: Lab) -> None:
    known_good(lab)
    wanted = order(lab, *FAST, env={"ANOTHER": "1"}, performance=gate("wanted"))
    (lab.model / "config.json").write_text("{}")
    played = lab.play(wanted)
    (told,) = played.outcome["performance"]["cells"]
    assert (played.name, told["verdict"]) == ("promoted", "inconclusive")
    assert told["why"].startswith("it could not be measured: the model's vocabulary is not known")


def test_the_first_release_has_nothing_to_be_compared_with(lab: Lab) -> None:
    played = candidate(lab, *FAST)
    assert played.name == "promoted" and "performance" not in played.outcome
    assert any("left out" in note["text"] for note in played.all("note"))


def test_a_release_that_has_passed_is_started_again_without_being_measured(lab: Lab) -> None:
    known_good(lab)
    candidate(lab, *FAST, allowed=0.8)
    lab.restore(1)
    played = candidate(lab, *FAST, allowed=0.8)
    assert (played.name, played.outcome["release"], played.all("performance")) == ("promoted", 2, [])


def test_a_release_that_only_a_comparison_has_seen_is_measured_before_it_is_promoted(lab: Lab) -> None:
    known_good(lab)
    wanted = order(lab, *SLOW, env={"ANOTHER": "1"}, performance=gate())
    assert lab.play({**wanted, "trial": True}).name == "launched"
    assert candidate(lab, *SLOW).outcome["kind"] == "slower"


def test_a_candidate_that_dies_while_it_is_measured_is_a_death(lab: Lab) -> None:
    known_good(lab)
    running = lab.begin(order(lab, "--gap-ms", "500", performance=gate()))
    running.until("phase", phase="performance")
    os.kill(lab.status()["server"]["pid"], signal.SIGKILL)
    played = running.end()
    assert (played.name, played.outcome["kind"]) == ("restored", "died")


def test_a_cancel_while_it_is_measured_brings_the_known_good_release_back(lab: Lab) -> None:
    known_good(lab)
    running = lab.begin(order(lab, "--gap-ms", "500", performance=gate()))
    running.until("phase", phase="performance")
    running.cancel()
    assert (running.end().name, lab.link("good")) == ("restored", 1)


def test_measurements_of_the_gate_are_kept_and_serve_the_next_candidate(lab: Lab) -> None:
    known_good(lab)
    candidate(lab, *FAST, allowed=0.8)
    kept = [json.loads(line) for line in (lab.service.release(2) / "measurements.jsonl").read_text().splitlines()]
    assert [(each["cell"]["name"], each["valid"], each["release"]) for each in kept] == [("c2", True, 2)]


@pytest.mark.parametrize(
    ("candidate", "references", "sd", "allowed", "verdict"),
    [
        (100.0, [100.0], 0.005, 0.03, "passed"),
        (90.0, [100.0], 0.005, 0.03, "slower"),
        (97.0, [100.0], 0.02, 0.03, "inconclusive"),
        (100.0, [100.0], 0.05, 0.03, "inconclusive"),
        (130.0, [100.0], 0.05, 0.03, "passed"),
        (99.0, [100.0, 100.0, 100.0, 100.0], 0.012, 0.03, "passed"),
        (99.0, [100.0], 0.012, 0.03, "inconclusive"),
    ],
)
def test_one_launch_is_judged_by_the_noise_of_the_host(
    candidate: float, references: list[float], sd: float, allowed: float, verdict: str
) -> None:
    assert performance.judge(candidate, references, Noise(sd, 10, "ab-1"), allowed).verdict == verdict


def test_the_bounds_are_those_of_students_t() -> None:
    judged = performance.judge(110.0, [100.0], Noise(0.02, 6, "ab-1"), 0.03)
    assert judged.ratio == pytest.approx(1.1)
    # One launch against one: the spread of a pair; t(0.95, 5) = 2.015.
    assert judged.low == pytest.approx(1.1 * math.exp(-2.015 * 0.02), rel=1e-3)
    assert judged.high == pytest.approx(1.1 * math.exp(2.015 * 0.02), rel=1e-3)


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [(("passed", "passed"), "passed"), (("passed", "inconclusive"), "inconclusive"), (("inconclusive", "slower"), "slower")],
)
def test_all_cells_must_pass_and_one_slower_cell_is_slower(verdicts: tuple[str, ...], whole: str) -> None:
    assert performance.overall([performance.Judged("c", each, None, None, None, "") for each in verdicts]) == whole


def test_a_prefill_cell_is_judged_by_its_prompt_tokens() -> None:
    figures = {"output_tok_s": 1.0, "input_tok_s": 500.0}
    assert performance.speed({"cell": {**CELL, "output_tokens": 1}, "figures": figures}) == 500.0
    assert performance.speed({"cell": {**CELL, "output_tokens": 16}, "figures": figures}) == 1.0
