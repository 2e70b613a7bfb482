"""`smoke --level`: every rung is passed by a right server, and each kind of wrong one is caught by its rung, with the evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import continuations, ladder, logprobs, releases, smoke
from gpuops_agent.files import write_json
from gpuops_agent.logprobs import Scores
from gpuops_agent.paths import Root, Service
from gpuops_agent.wire import AgentError
from measuring import record, service
from wise_server import WiseServer, wise

from gpuops.engines.measuring import load_words
from gpuops.playbook.measuring import Ladder

PROBE = {
    "name": "capital",
    "ask": "What is the capital of France?",
    "expect": {"contains": "Paris"},
    "max_tokens": 16,
    "gate": "required",
}
LADDER: dict[str, Any] = {
    "needles": {"lengths": [600, 2000]},
    "mixed": {"length": 4000},
    "soak": {"requests": 60},
    "logprobs": {"gate": "required", "continuations": {"prompts": 2}},
}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[WiseServer, Service]]:
    with wise() as server:
        demo = service(server.port, tmp_path, probes=[PROBE])
        server.model = str(tmp_path / "model")
        yield server, demo


def climb(demo: Service, level: int = 8, **sections: Any) -> dict[str, Any]:
    told = Ladder.model_validate({**LADDER, **sections}).model_dump(mode="json", exclude_none=True)
    args = {"service": "demo", "level": level, "load": load_words(), "ladder": None, "default_ladder": told}
    return smoke.smoke(Root(demo.root.path), args)


def start_again(demo: Service, release: int, port: int, launch: int) -> None:
    """Another start of the server, as far as a PID file shows it: the process must be a living one, so only its tag differs."""
    write_json(demo.server_file, {**record(release, port).to_json(), "run": f"run-{launch}"})


def test_a_right_server_passes_every_rung(made: tuple[WiseServer, Service]) -> None:
    result = climb(made[1])
    assert {rung["name"]: rung["verdict"] for rung in result["rungs"]} == dict.fromkeys(
        ("identity", "answers", "arithmetic", "needles", "mixed", "tools", "logprobs", "soak"), "right"
    )
    assert (result["verdict"], result["passed"], result["launches"]) == ("right", True, {"right": 1, "seen": 1})


@pytest.mark.failure_mode("right-until-looked-at")
@pytest.mark.parametrize(
    ("broken", "rung", "answer"),
    [
        ("identity", "identity", "/another/model"),
        ("capital", "answers", "I do not know."),
        ("loop", "answers", "'logupload' is repeated 40 times in a row"),
        ("sums", "arithmetic", "0 of 20 right"),
        ("needles", "needles", "3 of 6 found"),
        ("tools", "tools", "{city: Paris"),
    ],
)
def test_each_kind_of_wrong_is_caught_by_its_rung_with_the_evidence(
    made: tuple[WiseServer, Service], broken: str, rung: str, answer: str
) -> None:
    server, demo = made
    server.broken.add(broken)
    result = climb(demo, tools={"gate": "required"})
    wrong = [each for each in result["rungs"] if each["verdict"] == "wrong"]
    assert rung in [each["name"] for each in wrong] and result["verdict"] == "wrong"
    found = next(each for each in wrong if each["name"] == rung)
    assert answer in found["answer"] and found["question"] and found["expectation"]


def test_an_engine_that_dies_in_the_soak_is_down_and_not_wrong(made: tuple[WiseServer, Service]) -> None:
    server, demo = made
    climb(demo, level=7)
    server.asked = 0
    server.broken.add("dies")
    result = climb(demo, arithmetic={"gate": "off"}, needles={"gate": "off"})
    assert result["verdict"] == "down"
    assert (result["rungs"][-1]["name"], result["rungs"][-1]["verdict"]) == ("soak", "down")
    assert "scheduler is dead" in result["rungs"][-1]["detail"]


def test_the_level_ends_the_ladder_and_a_rung_that_is_off_is_left_out(made: tuple[WiseServer, Service]) -> None:
    result = climb(made[1], level=3, answers={"gate": "off"})
    assert [rung["rung"] for rung in result["rungs"]] == [1, 3]


def test_a_wanted_rung_that_is_wrong_does_not_make_the_server_wrong(made: tuple[WiseServer, Service]) -> None:
    server, demo = made
    server.broken.add("tools")
    result = climb(demo, level=6)
    assert result["rungs"][-1]["verdict"] == "wrong" and result["verdict"] == "right"


def test_lengths_that_the_server_does_not_take_are_left_out_and_named(made: tuple[WiseServer, Service]) -> None:
    result = climb(made[1], level=4, needles={"lengths": [600, 60000]})
    rung = result["rungs"][-1]
    assert rung["verdict"] == "right" and rung["answer"] == "3 of 3 found"
    assert rung["detail"] == "left out, longer than the server takes (5000 tokens): 60000"


def test_the_short_question_is_put_while_the_long_prompt_is_read(made: tuple[WiseServer, Service]) -> None:
    rung = climb(made[1], level=5)["rungs"][-1]
    # The server answers the long prompt only when the short question has come.
    assert rung["verdict"] == "right" and rung["detail"] == ""


def test_verdicts_are_counted_over_the_starts_of_a_release(made: tuple[WiseServer, Service]) -> None:
    demo = made[1]
    climb(demo, level=2)
    path = demo.release(1) / ladder.NAME
    (entry,) = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(json.dumps({**entry, "launch": "1-1", "verdict": "wrong"}) + "\nhalf a li")
    assert climb(demo, level=2)["launches"] == {"right": 1, "seen": 2}


SOAK = {name: {"gate": "off"} for name in ("identity", "answers", "arithmetic", "needles", "mixed", "tools", "logprobs")}


@pytest.mark.parametrize(
    ("length", "verdict", "detail"),
    [
        (2.5, "right", "accept length (EAGLE): 2.50 tokens a step"),
        (1.0, "wrong", "accept length (EAGLE): 1.00 tokens a step"),
        (None, "right", "accept length (EAGLE): not told by the server"),
    ],
)
def test_with_speculation_a_drafter_of_which_nothing_is_accepted_is_wrong(
    made: tuple[WiseServer, Service], length: float | None, verdict: str, detail: str
) -> None:
    server, demo = made
    server.speculates, server.accept_length = True, length
    (rung,) = climb(demo, **SOAK)["rungs"]
    assert (rung["name"], rung["verdict"], rung["detail"]) == ("soak", verdict, detail)


def test_without_speculation_nothing_is_said_of_it(made: tuple[WiseServer, Service]) -> None:
    (rung,) = climb(made[1], **SOAK)["rungs"]
    assert (rung["verdict"], rung["detail"], rung["expectation"]) == ("right", "", "60 answered")


def release_2(demo: Service, port: int) -> None:
    document = json.loads((demo.release(1) / "release.json").read_text())
    demo.release(2).mkdir()
    write_json(demo.release(2) / "release.json", document)
    demo.server_log(2).touch()
    start_again(demo, 2, port, 2)


def logprob_rung(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(rung for rung in result["rungs"] if rung["name"] == "logprobs")
    return found


ONLY = {name: {"gate": "off"} for name in ("identity", "answers", "arithmetic", "needles", "mixed", "tools", "soak")}


def test_a_candidate_without_a_reference_to_compare_with_is_left_out(made: tuple[WiseServer, Service]) -> None:
    server, demo = made
    release_2(demo, server.port)
    assert logprob_rung(climb(demo, **ONLY))["verdict"] == "skipped"


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "right"), (0.01, "right"), (0.2, "wrong")])
def test_a_candidate_is_as_far_from_the_reference_as_its_probabilities(
    made: tuple[WiseServer, Service], shift: float, verdict: str
) -> None:
    server, demo = made
    climb(demo, **ONLY)
    release_2(demo, server.port)
    server.shift = shift
    rung = logprob_rung(climb(demo, **ONLY))
    assert rung["verdict"] == verdict and "k3" in rung["answer"] and "no other start was seen yet" in rung["detail"]


def test_other_likeliest_tokens_at_clear_positions_are_wrong(made: tuple[WiseServer, Service]) -> None:
    server, demo = made
    climb(demo, **ONLY)
    release_2(demo, server.port)
    server.broken.add("logprobs")
    rung = logprob_rung(climb(demo, **ONLY))
    assert rung["verdict"] == "wrong" and "top-1 equal at 0.0%" in rung["answer"]


def test_the_known_good_releases_own_noise_is_what_a_candidate_is_allowed(made: tuple[WiseServer, Service]) -> None:
    server, demo = made
    climb(demo, **ONLY)
    reference = logprobs.load(demo.release(1), logprobs.TEXTS)
    assert reference is not None and (reference.noise, reference.starts) == ({"batch": 0.0}, 0)
    logprobs.store(demo.release(1), replace(reference, launch="1-1"))
    server.shift = 0.2
    assert logprob_rung(climb(demo, **ONLY))["verdict"] == "right", "the known-good release itself, started again"
    release_2(demo, server.port)
    rung = logprob_rung(climb(demo, **ONLY))
    assert rung["verdict"] == "right" and "release 1: a batch, and 1 other starts" in rung["detail"]


@pytest.mark.failure_mode("wrong-decode")
@pytest.mark.parametrize(
    ("noise", "drift", "verdict"), [(0.0, 0.004, "right"), (0.0, 0.02, "wrong"), (0.1, 0.15, "right"), (0.1, 0.3, "wrong")]
)
def test_decode_that_drifts_further_than_a_batch_makes_the_known_good_release_is_wrong(
    made: tuple[WiseServer, Service], noise: float, drift: float, verdict: str
) -> None:
    server, demo = made
    server.batch_noise = noise
    climb(demo, **ONLY)
    release_2(demo, server.port)
    server.drift = drift
    rung = logprob_rung(climb(demo, **ONLY))
    assert rung["verdict"] == verdict and "nats over 44 places" in rung["answer"], rung
    assert "k3 0 over" in rung["answer"], "prefill shows nothing of it"


@pytest.mark.failure_mode("wrong-decode")
@pytest.mark.parametrize(("drift", "verdict", "starts"), [(0.15, "right", 1), (0.3, "wrong", 0)])
def test_a_start_of_the_known_good_release_that_is_corrupted_is_wrong_and_no_noise(
    made: tuple[WiseServer, Service], drift: float, verdict: str, starts: int
) -> None:
    server, demo = made
    server.batch_noise = 0.1
    climb(demo, **ONLY)
    stored = json.loads((demo.release(1) / continuations.NAME).read_text())
    (demo.release(1) / continuations.NAME).write_text(json.dumps({**stored, "launch": "1-1"}))
    server.drift = drift
    assert logprob_rung(climb(demo, **ONLY))["verdict"] == verdict
    noise = json.loads((demo.release(1) / continuations.NAME).read_text())["noise"]
    assert len(noise.keys() - {"batch"}) == starts


def test_other_tokens_from_the_first_decoded_one_on_are_wrong(made: tuple[WiseServer, Service]) -> None:
    server, demo = made
    climb(demo, **ONLY)
    release_2(demo, server.port)
    server.broken.add("decode")
    rung = logprob_rung(climb(demo, **ONLY))
    assert rung["verdict"] == "wrong" and "0 of 4 equal" in rung["answer"], rung


def test_without_texts_to_continue_prefill_alone_is_compared(made: tuple[WiseServer, Service]) -> None:
    server, demo = made
    alone = {**ONLY, "logprobs": {"gate": "required", "continuations": {"prompts": 0}}}
    climb(demo, **alone)
    release_2(demo, server.port)
    server.drift = 5.0
    rung = logprob_rung(climb(demo, **alone))
    assert rung["verdict"] == "right" and "nats over" not in rung["answer"]


def test_what_a_release_was_put_to_before_it_was_good_is_the_reference_afterwards(made: tuple[WiseServer, Service]) -> None:
    server, demo = made
    climb(demo, **ONLY)
    release_2(demo, server.port)
    climb(demo, **ONLY)
    releases.point(demo, demo.good, 2)
    rung = logprob_rung(climb(demo, **ONLY))
    assert (rung["verdict"], rung["detail"]) == ("right", "the known-good release itself")


@pytest.mark.parametrize(("broken", "least"), [(0, 0.0), (1, 0.1), (8, 1.0)])
def test_texts_that_are_answered_differently_from_the_first_token_on_count(broken: int, least: float) -> None:
    right = [continuations.Answer(list(range(12)), [{1: -0.5, 2: -1.5}] * 12) for _ in range(16)]
    wrong = continuations.Answer([50] * 12, [{50: -0.1, 51: -3.0}] * 12)
    found = continuations.distance(right, [wrong] * broken + right[broken:])
    assert found.equal == 16 - broken and least <= found.mean <= 20.0 * max(1, broken)
    assert (found.mean > 0.0) == bool(broken)


def test_a_continuation_that_says_nothing_readable_is_wrong_and_not_left_out() -> None:
    with pytest.raises(AgentError, match="cannot be read"):
        continuations.parse([[-0.1, "five", None]], [[[-0.1, "five", None]]])


def test_the_distance_of_a_text_to_itself_is_nothing() -> None:
    scores = [Scores([1, 2, 3], [-1.0, -2.0], [5, 6], [1.0, 0.1])]
    apart = logprobs.distance(scores, scores)
    assert (apart.k3, apart.agreement, apart.positions, apart.clear) == (0.0, 1.0, 2, 1)


def test_a_probability_that_is_no_number_is_as_far_as_can_be() -> None:
    scores = [Scores([1, 2], [-1.0], [5], [1.0])]
    assert logprobs.distance(scores, [Scores([1, 2], [float("nan")], [5], [1.0])]).k3 > 1e6
