"""Runner and supervisor watch each other, and a server that dies while it serves is started again where its release says so."""

from __future__ import annotations

import json
import os
import signal

from gpuops_agent import records
from gpuops_agent.proc import Identity
from process_lab import eventually
from rollouts import Json, Lab, Running


def waiting(lab: Lab, **kwargs: object) -> Running:
    """A candidate that is verified and waits for a controller: its runner and its supervisor are there to be killed."""
    running = lab.begin({**lab.order(env={"OTHER": "1"}, lease_s=120.0), "on_controller_lost": "restore"})
    running.until("awaiting")
    return running


def restarting(lab: Lab, *faults: str, most: int = 2) -> Json:
    order = lab.order(*faults)
    order["candidate"]["restart"] = {"max": most, "backoff_s": 0.01}
    return order


def outcomes(lab: Lab, kind: str) -> "list[Json]":
    """Outcomes of the operations of a kind, oldest first."""
    ended = [entry for entry in lab.history()["operations"] if entry["kind"] == kind and entry["outcome"] != "running or cut"]
    return ended[::-1]


def test_a_rollout_whose_runner_is_killed_is_undone_by_the_supervisor_alone(lab: Lab) -> None:
    lab.good()
    running = waiting(lab)
    runner = Identity.from_json(json.loads((lab.service.operation(running.op) / "runner.json").read_text()))
    os.kill(runner.pid, signal.SIGKILL)
    eventually(lambda: outcomes(lab, "recover"), "the supervisor has had it undone")
    assert outcomes(lab, "recover")[0]["outcome"] == "recovered"
    status = lab.status()
    assert (status["state"], status["release"], lab.link("good")) == ("running", 1, 1)
    assert status["server"]["supervised"]
    assert lab.state(2)["state"] == "unknown"


def test_a_supervisor_that_is_killed_during_a_rollout_is_replaced_by_the_runner(lab: Lab) -> None:
    running = waiting(lab)
    supervisor = records.supervisor_identity(lab.service)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    running.until("note", text="the supervisor had died; another one watches the server now")
    lab.agent.call("confirm", service="demo", op=running.op)
    assert running.end().name == "promoted"
    assert lab.status()["server"]["supervised"]
    assert lab.down().outcome["proof"]["clean"]


def test_recover_gives_a_serving_server_its_supervisor_back(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    supervisor = records.supervisor_identity(lab.service)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    eventually(lambda: not lab.status()["server"]["supervised"], "the supervisor is gone")
    assert lab.play(lab.simple("recover")).name == "nothing_to_recover"
    status = lab.status()["server"]
    assert (status["pid"], status["supervised"]) == (pid, True)


def test_a_server_that_dies_while_it_serves_is_started_again(lab: Lab) -> None:
    first = lab.play(restarting(lab)).outcome["pid"]
    os.kill(first, signal.SIGKILL)
    eventually(lambda: outcomes(lab, "revive"), "it was started again")
    assert outcomes(lab, "revive")[0]["outcome"] == "recovered"
    status = lab.status()
    assert status["state"] == "running" and status["server"]["pid"] != first


def test_restarts_are_bounded(lab: Lab) -> None:
    lab.play(restarting(lab, most=1))
    for count in (1, 2):
        os.kill(lab.status()["server"]["pid"], signal.SIGKILL)
        eventually(lambda count=count: len(outcomes(lab, "revive")) == count, "the death was judged")
    last = outcomes(lab, "revive")[-1]
    assert last["outcome"] == "not_restarted"
    assert "1 times in a row already" in last["reason"]
    assert lab.status()["state"] == "died"


def test_a_server_that_was_stopped_on_purpose_is_not_started_again(lab: Lab) -> None:
    lab.play(restarting(lab))
    assert lab.down().name == "stopped"
    eventually(lambda: not records.supervisor_alive(lab.service), "the supervisor is done")
    assert outcomes(lab, "revive") == []
    assert lab.engines() == []


def test_without_a_policy_a_dead_server_stays_down(lab: Lab) -> None:
    os.kill(lab.good().outcome["pid"], signal.SIGKILL)
    eventually(lambda: not records.supervisor_alive(lab.service), "the supervisor is done")
    assert outcomes(lab, "revive") == []
    assert lab.status()["state"] == "died"
