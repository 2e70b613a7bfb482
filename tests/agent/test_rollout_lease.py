"""The confirm lease: a rollout lives as long as its controller, and counts when the controller says so."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from gpuops_agent.proc import boottime
from rollouts import Json, Lab

from gpuops.errors import GpuopsError

# Long enough that no machine is too slow for it; where a test wants it to run out, it says so (`_expire`).
LONG = 120.0


def leased(lab: Lab, *faults: str, lease_s: float = LONG, **kwargs: Any) -> Json:
    return {**lab.order(*faults, lease_s=lease_s, **kwargs), "on_controller_lost": "restore"}


def confirm(lab: Lab, op: str) -> None:
    assert lab.agent.call("confirm", service="demo", op=op) == {"confirmed": True}


def test_a_verified_candidate_waits_for_its_controller_and_is_promoted_by_it(lab: Lab) -> None:
    running = lab.begin(leased(lab))
    running.until("awaiting", release=1)
    assert lab.state(1)["state"] == "verified"
    assert lab.link("good") is None
    confirm(lab, running.op)
    assert running.end().name == "promoted"
    assert lab.link("good") == 1


@pytest.mark.failure_mode("controller-lost")
def test_without_a_sign_of_life_the_known_good_release_comes_back_by_itself(lab: Lab) -> None:
    lab.good()
    running = lab.begin(leased(lab, "--hold", f"weights={lab.folder}/never"))
    running.until("server", release=2)
    _expire(lab, running.op)
    played = running.end()
    assert (played.name, played.code) == ("restored", 10)
    assert played.outcome["kind"] == "controller_lost"
    assert lab.state(2)["state"] == "unknown", "nobody has judged it"
    assert lab.status()["state"] == "running" and lab.link("current") == 1
    assert any(entry.get("kind") == "controller_lost" for entry in lab.journal() if entry["event"] == "outcome")


@pytest.mark.failure_mode("controller-lost")
def test_a_candidate_that_is_verified_but_never_confirmed_is_not_promoted(lab: Lab) -> None:
    lab.good()
    running = lab.begin(leased(lab, env={"OTHER": "1"}))
    running.until("awaiting")
    _expire(lab, running.op)
    played = running.end()
    assert (played.name, played.outcome["kind"]) == ("restored", "controller_lost")
    assert lab.link("good") == 1


def test_renewals_keep_a_rollout_alive(lab: Lab) -> None:
    running = lab.begin(leased(lab))
    running.until("awaiting")
    first = _lease(lab, running.op)["until"]
    assert lab.agent.call("renew", service="demo", op=running.op)["renewed"] is True
    assert _lease(lab, running.op)["until"] > first
    confirm(lab, running.op)
    assert running.end().name == "promoted"


@pytest.mark.failure_mode("controller-lost")
def test_a_controller_that_is_lost_before_anything_was_touched_costs_nothing(lab: Lab) -> None:
    good = lab.good().outcome["pid"]
    played = lab.play(leased(lab, env={"OTHER": "1"}, lease_s=1e-6))
    assert (played.name, played.code, played.outcome["kind"]) == ("cancelled", 10, "controller_lost")
    assert lab.status()["server"]["pid"] == good and lab.link("current") == 1


@pytest.mark.failure_mode("garbled-file")
def test_an_unreadable_lease_is_no_proof_of_a_controller(lab: Lab) -> None:
    lab.good()
    running = lab.begin(leased(lab, env={"OTHER": "1"}))
    running.until("awaiting")
    (lab.service.operation(running.op) / "lease.json").write_text("{")
    assert running.end().outcome["kind"] == "controller_lost"


@pytest.mark.failure_mode("candidate-dies")
def test_a_server_that_dies_while_it_waits_for_the_confirmation_is_not_promoted(lab: Lab) -> None:
    lab.good()
    running = lab.begin(leased(lab, env={"OTHER": "1"}))
    running.until("awaiting")
    os.kill(lab.status()["server"]["pid"], signal.SIGKILL)
    played = running.end()
    assert (played.name, lab.link("good")) == ("restored", 1)
    assert "signal 9" in played.outcome["reason"]


def test_an_order_that_finishes_alone_needs_nobody(lab: Lab) -> None:
    order = {**lab.order(), "on_controller_lost": "finish"}
    played = lab.play(order)
    assert played.name == "promoted" and played.names("awaiting") == []


def test_confirming_what_does_not_run_is_an_error(lab: Lab) -> None:
    lab.good()
    with pytest.raises(GpuopsError, match="does not run"):
        lab.agent.call("confirm", service="demo", op="op-none")
    assert lab.agent.call("renew", service="demo", op="op-none") == {"renewed": False}


def _lease(lab: Lab, op: str) -> Json:
    value: Json = json.loads((lab.service.operation(op) / "lease.json").read_text())
    return value


def _expire(lab: Lab, op: str) -> None:
    """As if the time had passed."""
    path = lab.service.operation(op) / "lease.json"
    path.write_text(json.dumps({**_lease(lab, op), "until": boottime() - 1}))
