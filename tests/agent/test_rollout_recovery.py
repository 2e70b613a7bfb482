"""After a crash of whoever worked on a service: the next order, or `recover`, brings it to where it should be."""

from __future__ import annotations

import json
import os
import signal

import pytest
from gpuops_agent import records
from process_lab import eventually
from rollouts import Lab, Running

from gpuops.errors import GpuopsError


def recover(lab: Lab) -> "tuple[str, int]":
    played = lab.play(lab.simple("recover"))
    return played.name, played.code


def kill_runner(lab: Lab, running: Running) -> None:
    """With one of the others alive there would be nothing left to recover."""
    lab.kill_all_watchers(running.op)
    with pytest.raises(GpuopsError, match="its runner died"):
        running.end()


@pytest.mark.parametrize(
    ("event", "fields"), [("stopping", {}), ("server", {"release": 2}), ("ready", {"release": 2}), ("awaiting", {"release": 2})]
)
@pytest.mark.failure_mode("runner-killed")
def test_a_rollout_whose_runner_was_killed_is_undone(lab: Lab, event: str, fields: "dict[str, int]") -> None:
    lab.good()
    running = lab.begin({**lab.order(env={"OTHER": "1"}, lease_s=120.0), "on_controller_lost": "restore"})
    running.until(event, **fields)
    kill_runner(lab, running)
    name, code = recover(lab)
    assert code == 0 and name in ("recovered", "nothing_to_recover")
    assert (len(lab.engines()) >= 1 and lab.status()["release"] == 1) or lab.link("good") == 2
    assert lab.status()["state"] == "running"


@pytest.mark.failure_mode("runner-killed")
def test_a_first_rollout_that_was_cut_leaves_nothing_running(lab: Lab) -> None:
    # A lease: it waits for its controller, so the runner is there to be killed.
    running = lab.begin({**lab.order(lease_s=120.0), "on_controller_lost": "restore"})
    running.until("server")
    kill_runner(lab, running)
    assert recover(lab) == ("stopped", 0)
    assert lab.engines() == []
    assert lab.state(1)["state"] == "unknown"


@pytest.mark.failure_mode("runner-killed")
def test_a_down_that_was_cut_is_finished(lab: Lab) -> None:
    lab.good("--stubborn")
    running = lab.begin(lab.simple("down"))
    running.until("stopping")
    kill_runner(lab, running)
    assert recover(lab)[0] == "stopped"
    assert lab.engines() == [] and lab.status()["state"] == "stopped"


@pytest.mark.failure_mode("server-died")
def test_a_server_that_died_is_started_again(lab: Lab) -> None:
    dead = lab.good().outcome["pid"]
    os.kill(dead, signal.SIGKILL)
    eventually(lambda: lab.status()["state"] == "died", "the death is known")
    eventually(lambda: not records.supervisor_alive(lab.service), "the supervisor has swept")
    assert recover(lab) == ("recovered", 0)
    assert lab.status()["state"] == "running" and lab.status()["server"]["pid"] != dead


@pytest.mark.failure_mode("rank-lost")
def test_a_server_that_lives_without_one_of_its_ranks_is_replaced(lab: Lab) -> None:
    served = lab.good("--tp", "2", generate_s=1.0).outcome["pid"]
    os.kill(lab.rank("TP1"), signal.SIGKILL)
    assert recover(lab) == ("recovered", 0)
    assert lab.status()["state"] == "running" and lab.status()["server"]["pid"] != served


@pytest.mark.failure_mode("stale-after-reboot")
def test_after_a_reboot_the_known_good_release_is_started_again(lab: Lab) -> None:
    lab.good()
    lab.down()
    # As a reboot leaves it: the link says that something is meant to run, the PID file is of another boot.
    lab.service.current.symlink_to("releases/1")
    lab.service.server_file.write_text(json.dumps({**_pid_file(lab), "boot_id": "of the boot before"}))
    assert recover(lab) == ("recovered", 0)
    assert lab.status()["release"] == 1 and lab.status()["state"] == "running"


def test_a_service_that_is_well_is_left_alone(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    assert recover(lab) == ("nothing_to_recover", 0)
    assert lab.status()["server"]["pid"] == pid


def test_a_service_that_was_taken_down_stays_down(lab: Lab) -> None:
    lab.good()
    lab.down()
    assert recover(lab) == ("nothing_to_recover", 0)
    assert lab.engines() == []


def _pid_file(lab: Lab) -> "dict[str, object]":
    return {
        "pid": 1,
        "start": 1,
        "pid_ns": "pid:[1]",
        "pgid": 1,
        "sid": 1,
        "executable": "x",
        "argv_sha256": "x",
        "release": 1,
        "port": 1,
        "supervisor": {"pid": 1, "start": 1},
        "run": "x",
        "started_at": 1.0,
        "started_boot": 1.0,
    }
