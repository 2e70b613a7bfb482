"""Trials on the host: steps that are not promoted, and the known-good release at the end, whatever happens."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from process_lab import eventually
from rollouts import DEADLINES, Json, Lab, make_model, operation
from swapping import COMPILER, FAILING, build, order

from gpuops.errors import GpuopsError

GOOD, GARBAGE, CRASH = ("--flavour", "b"), ("--flavour", "c", "--garbage"), ("--flavour", "d", "--die", "weights=3")


def step(lab: Lab, name: str, *faults: str, deadline_s: float = 60.0, **kwargs: Any) -> Json:
    made = lab.order(*faults, **kwargs)
    keep = ("spec", "prepare", "candidate", "engine", "probes", "deadlines")
    return {"name": name, "deadline_s": deadline_s, "bench": None, "order": {key: made[key] for key in keep}}


def trial(lab: Lab, *steps: Json, **said: Any) -> Json:
    lease = said.pop("lease_s", None)
    about = {"name": "t", "mode": "sequence", "stop": "never", "find": "breaks", "done": {}, "budget_s": None, **said}
    return {
        "version": 1,
        "kind": "experiment",
        "service": "demo",
        "op": operation(),
        "by": "test@here",
        "reason": None,
        "spec": "trial",
        "on_controller_lost": "finish" if lease is None else "restore",
        "deadlines": {**DEADLINES, **({} if lease is None else {"lease_s": lease})},
        "experiment": about,
        "steps": list(steps),
    }


def verdicts(outcome: Json) -> list[tuple[str, str]]:
    return [(result["step"], result["verdict"]) for result in outcome["steps"]]


def serves(lab: Lab, release: int) -> bool:
    entry = lab.status(check=True)
    return (entry["release"], entry["known_good"], entry.get("check", {}).get("state")) == (release, release, "serving") and len(
        lab.engines()
    ) == 1


@pytest.mark.failure_mode("trial-steps")
def test_a_good_a_garbage_and_a_crashing_step_are_told_apart_and_the_known_good_release_serves(lab: Lab) -> None:
    lab.good()
    played = lab.play(trial(lab, step(lab, "good", *GOOD), step(lab, "garbage", *GARBAGE), step(lab, "crash", *CRASH)))
    assert (played.name, played.code, played.outcome["release"], played.outcome["complete"]) == ("tried", 0, 1, True)
    assert verdicts(played.outcome) == [("good", "passed"), ("garbage", "failed"), ("crash", "failed")]
    good, garbage, crash = played.outcome["steps"]
    assert good["probes"] and good["ready_s"] > 0 and good["fingerprint"]["card"]
    assert (garbage["kind"], crash["kind"]) == ("wrong_answers", "died")
    assert "!!!!!!!!" in garbage["evidence"] and "broken in weights" in crash["evidence"]
    assert serves(lab, 1)


def test_a_step_that_passes_is_not_promoted(lab: Lab) -> None:
    lab.good()
    running = lab.begin(
        trial(lab, step(lab, "good", *GOOD), step(lab, "held", "--flavour", "e", "--hold", f"weights={lab.folder}/go"))
    )
    running.until("tried", step="good")
    running.until("phase", phase="weights")
    (lab.folder / "go").touch()
    assert verdicts(running.end().outcome) == [("good", "passed"), ("held", "passed")]
    assert {entry["release"] for entry in lab.journal() if entry.get("link") == "good"} == {1}
    assert len([event for event in running.events if event["event"] == "restoring"]) == 1, "once, at the end"
    assert serves(lab, 1)


def test_a_trial_without_a_known_good_release_is_refused_before_anything_is_started(lab: Lab) -> None:
    played = lab.play(trial(lab, step(lab, "good", *GOOD)))
    assert (played.name, played.outcome["kind"]) == ("failed", "no_release")
    assert not lab.engines()


@pytest.mark.failure_mode("trial-cut")
def test_a_cancelled_trial_ends_with_the_known_good_release(lab: Lab) -> None:
    lab.good()
    order = trial(lab, step(lab, "good", *GOOD), step(lab, "held", "--flavour", "e", "--hold", "weights=/no/such/file"))
    running = lab.begin(order)
    running.until("step", step="held")
    eventually(lambda: lab.link("current") == 3, "the second step runs")
    running.cancel()
    played = running.end()
    assert (played.name, played.code, played.outcome["kind"]) == ("trial_cut", 10, "cancelled")
    assert verdicts(played.outcome) == [("good", "passed")]
    assert lab.state(3)["state"] == "unknown"
    assert serves(lab, 1)


def test_a_step_of_a_leased_trial_waits_for_no_confirmation(lab: Lab) -> None:
    lab.good()
    played = lab.play(trial(lab, step(lab, "good", *GOOD), lease_s=60.0))
    assert verdicts(played.outcome) == [("good", "passed")]
    assert not played.names("awaiting")


@pytest.mark.failure_mode("trial-cut")
def test_a_trial_whose_controller_is_lost_ends_with_the_known_good_release(lab: Lab) -> None:
    lab.good()
    played = lab.play(trial(lab, step(lab, "held", *GOOD, "--hold", "weights=/no/such/file"), lease_s=1.0))
    assert (played.name, played.code, played.outcome["kind"]) == ("trial_cut", 10, "controller_lost")
    assert serves(lab, 1)


@pytest.mark.failure_mode("trial-cut")
def test_a_runner_that_dies_with_a_candidate_of_a_trial_serving_is_followed_by_the_known_good_release(lab: Lab) -> None:
    lab.good()
    order = trial(lab, step(lab, "good", *GOOD), step(lab, "held", "--flavour", "e", "--hold", "probes=/no/such/file"))
    running = lab.begin(order)
    running.until("ready", release=3)
    os.kill(json.loads((lab.service.operation(order["op"]) / "runner.json").read_text())["pid"], signal.SIGKILL)
    with pytest.raises(GpuopsError):
        running.end()
    eventually(lambda: lab.status()["operation"] is None and serves(lab, 1), "the known-good release serves")


@pytest.mark.failure_mode("trial-steps")
def test_a_step_that_takes_longer_than_its_own_time_is_a_verdict_and_the_next_one_is_played(lab: Lab) -> None:
    lab.good()
    slow = step(lab, "slow", "--flavour", "e", "--hold", "weights=/no/such/file", deadline_s=2.0)
    played = lab.play(trial(lab, slow, step(lab, "good", *GOOD)))
    assert verdicts(played.outcome) == [("slow", "timeout"), ("good", "passed")]
    assert serves(lab, 1)


def test_a_trial_whose_own_time_is_over_says_what_is_left_and_goes_on_where_it_stopped(lab: Lab) -> None:
    lab.good()
    steps = [step(lab, "good", *GOOD), step(lab, "held", "--flavour", "e", "--hold", f"weights={lab.folder}/go")]
    played = lab.play(trial(lab, *steps, budget_s=4.0))
    assert (played.name, played.code, played.outcome["kind"]) == ("trial_cut", 10, "out_of_time")
    assert played.outcome["reason"].endswith("left: held")
    assert serves(lab, 1)
    (lab.folder / "go").touch()
    rest = lab.play(trial(lab, *steps, done={"good": "passed"}))
    assert (rest.name, verdicts(rest.outcome)) == ("tried", [("held", "passed")])
    assert serves(lab, 1)


def test_what_is_made_ready_before_the_first_step_takes_no_longer_than_the_trial_may(lab: Lab) -> None:
    lab.good()
    made = order(lab, build(lab, "endless", compiler="import signal\nsignal.pause()\n"), *GOOD)
    keep = ("spec", "prepare", "candidate", "engine", "probes", "deadlines")
    endless = {"name": "endless", "deadline_s": 60.0, "bench": None, "order": {key: made[key] for key in keep}}
    played = lab.play(trial(lab, endless, budget_s=2.0))
    assert (played.name, played.code, played.outcome["kind"]) == ("trial_cut", 10, "out_of_time")
    assert played.outcome["reason"].endswith("left: endless") and not played.names("stopping")
    assert serves(lab, 1)


@pytest.mark.failure_mode("trial-steps")
def test_a_step_that_the_host_cannot_prepare_is_a_verdict_and_costs_nothing(lab: Lab) -> None:
    lab.good()
    unfit = step(lab, "unfit", *GOOD, model={"kind": "path", "path": "/no/such/model"})
    played = lab.play(trial(lab, unfit))
    assert verdicts(played.outcome) == [("unfit", "unfit")]
    assert not played.names("stopping")
    assert serves(lab, 1)


def test_what_later_steps_need_is_made_ready_before_the_first_server_is_stopped(lab: Lab, tmp_path: Path) -> None:
    lab.good()
    # A model whose configuration is a pipe that nobody writes to takes as long as a download that is slow.
    slow = make_model(tmp_path / "slow")
    (slow / "config.json").unlink()
    os.mkfifo(slow / "config.json")
    later = step(lab, "later", "--flavour", "e", model={"kind": "path", "path": str(slow)})
    running = lab.begin(trial(lab, step(lab, "good", *GOOD), later))
    pipe = eventually(lambda: _opened(slow / "config.json"), "the host reads the second step's model")
    assert not [event for event in running.events if event["event"] in ("step", "stopping")]
    (slow / "config.json").unlink()
    (slow / "config.json").write_text("{}")
    with os.fdopen(pipe, "w") as file:
        file.write("{}")
    assert verdicts(running.end().outcome) == [("good", "passed"), ("later", "passed")]


def test_the_caches_of_all_steps_are_copied_before_the_first_server_is_stopped(lab: Lab) -> None:
    lab.good()
    (cache,) = lab.root.caches.iterdir()
    (cache / "triton").mkdir(exist_ok=True)
    (cache / "triton" / "kernel").write_text("compiled")
    steps = [step(lab, name, *faults) for name, faults in (("crash", CRASH), ("good", GOOD))]
    for each in steps:
        each["order"]["cache_apart"] = each["name"]
    played = lab.play(trial(lab, *steps))
    assert verdicts(played.outcome) == [("crash", "failed"), ("good", "passed")]
    assert played.names("seeded", "stopping")[:3] == ["seeded", "seeded", "stopping"]


def test_the_builds_of_all_steps_are_tried_before_the_first_server_is_stopped_and_not_once_more(lab: Lab) -> None:
    lab.good()
    kernels, broken = build(lab, "kernels", compiler=COMPILER), build(lab, "broken", compiler=FAILING)
    keep = ("spec", "prepare", "candidate", "engine", "probes", "deadlines")
    orders = {
        "crash": order(lab, kernels, *CRASH),
        "good": {**order(lab, kernels, *GOOD), "cache_apart": "good"},
        "broken": order(lab, broken, *GOOD),
    }
    steps = [
        {
            "name": name,
            "deadline_s": 60.0,
            "bench": None,
            "order": {key: made[key] for key in (*keep, "cache_apart") if key in made},
        }
        for name, made in orders.items()
    ]
    played = lab.play(trial(lab, *steps))
    assert verdicts(played.outcome) == [("crash", "failed"), ("good", "passed"), ("broken", "unfit")]
    assert played.names("compiled", "stopping")[:3] == ["compiled", "compiled", "stopping"]
    assert len(played.all("compiled")) == 2


def test_a_build_is_compiled_once_for_all_steps_that_keep_their_caches_apart(lab: Lab) -> None:
    lab.good()
    kernels = build(lab, "kernels", compiler=COMPILER)
    steps = [step(lab, name, *GOOD) for name in ("one", "two")]
    for each in steps:
        made = order(lab, kernels, *GOOD)
        each["order"] = {**{key: made[key] for key in each["order"] if key in made}, "cache_apart": each["name"]}
    played = lab.play(trial(lab, *steps))
    assert verdicts(played.outcome) == [("one", "passed"), ("two", "passed")]
    compiled = [(each["compiled"], each["cached"]) for each in played.all("compiled")]
    assert compiled == [(3, 0), (0, 3), (0, 3)] and played.names("compiled", "stopping")[3] == "stopping"


def _opened(pipe: Path) -> int | None:
    """A pipe opened for writing; None while nobody reads it."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_a_bisect_finds_the_change_that_breaks_it(lab: Lab) -> None:
    lab.good()
    sets = {
        "base": ["--flavour", "b0"],
        "one": ["--flavour", "b1"],
        "two": ["--flavour", "b2", "--garbage"],
        "three": ["--flavour", "b3", "--garbage"],
    }
    played = lab.play(trial(lab, *(step(lab, name, *faults) for name, faults in sets.items()), mode="bisect"))
    assert verdicts(played.outcome) == [("three", "failed"), ("base", "passed"), ("one", "passed"), ("two", "failed")]
    assert serves(lab, 1)


def test_a_sequence_stops_at_its_first_failure_where_it_is_told_to(lab: Lab) -> None:
    lab.good()
    played = lab.play(trial(lab, step(lab, "crash", *CRASH), step(lab, "good", *GOOD), stop="first-failure"))
    assert (played.name, verdicts(played.outcome)) == ("tried", [("crash", "failed")])


def test_the_known_good_release_as_a_step_is_started_afresh_and_not_once_more_at_the_end(lab: Lab) -> None:
    before = lab.good().outcome["pid"]
    played = lab.play(trial(lab, step(lab, "good", *GOOD), step(lab, "base")))
    assert verdicts(played.outcome) == [("good", "passed"), ("base", "passed")]
    assert played.outcome["steps"][1]["release"] == 1
    assert not played.names("restoring") and lab.engines() != [before]
    assert serves(lab, 1)
