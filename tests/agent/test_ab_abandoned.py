"""A comparison whose controller is killed without a word: the host itself ends it, with the known-good release serving and asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import installed
import pytest
from ab_lab import AbLab
from process_lab import eventually

# Short, since every test waits for its end; not so short that a controller which lives misses it on a loaded machine.
LEASE_S = 8.0


@pytest.fixture
def lab(tmp_path: Path, agent_folder: Path) -> Iterator[AbLab]:
    made = AbLab(tmp_path)
    installed.link(agent_folder, made.root)
    made.up()
    made.playbook["deadlines"]["lease_s"] = LEASE_S
    made.write()
    try:
        yield made
    finally:
        made.clean_up()


def kill(controller: "subprocess.Popen[str]") -> None:
    os.killpg(controller.pid, signal.SIGKILL)
    controller.communicate(timeout=60)


def read(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value


def holder(lab: AbLab) -> dict[str, Any]:
    """Who has the service's lock, or had it last."""
    return read(lab.root / "locks" / "service-demo.json")


def after_launches(lab: AbLab, number: int) -> None:
    eventually(lambda: len(lab.comparison().get("launches", ())) >= number, f"{number} launches", 120)


def until_the_host_has_ended_it(lab: AbLab) -> None:
    eventually(lambda: not (lab.service / "run" / "comparison.json").exists(), "the host ends the comparison", 120)
    record = lab.comparison()
    assert (record["state"], record["reason"]) == ("interrupted", "its controller was lost: no sign of life for 8 s")
    assert (record["back"]["release"], record["back"]["verdict"]) == (1, "right")
    eventually(lambda: lab.status()["state"] == "running", "the recovery has ended")
    entry = lab.status()
    assert (entry["release"], entry["known_good"]) == (1, 1)


def killed_between_launches(lab: AbLab) -> None:
    controller = lab.begin("ab", "known-good", lab.build("slow", 1.5), "--pairs", "2")
    # Two launches are stored: release 2 serves, and is to be launched once more.
    after_launches(lab, 2)
    kill(controller)


@pytest.mark.failure_mode("ab-cut")
def test_a_controller_killed_between_launches_ends_at_home(lab: AbLab) -> None:
    killed_between_launches(lab)
    until_the_host_has_ended_it(lab)


@pytest.mark.slow
@pytest.mark.failure_mode("ab-cut")
def test_a_recovery_that_is_killed_too_is_begun_again_and_the_comparison_goes_on_afterwards(lab: AbLab) -> None:
    killed_between_launches(lab)
    eventually(lambda: holder(lab).get("kind") == "recover", "the host recovers by itself")
    os.kill(holder(lab)["runner"]["pid"], signal.SIGKILL)
    until_the_host_has_ended_it(lab)
    done = lab.comparison()["launches"]
    ran = lab.run("ab", "--resume", "--json")
    assert ran.code == 0, ran
    assert ran.json["launches"][: len(done)] == done and len(ran.json["launches"]) == 4
    assert (ran.json["state"], ran.json["back"]["verdict"]) == ("done", "right")


@pytest.mark.failure_mode("ab-cut")
def test_a_controller_killed_inside_a_launch_ends_at_home(lab: AbLab) -> None:
    lab.playbook["server"]["flags"]["mute"] = True
    lab.write()
    controller = lab.begin("ab", "none", "known-good")
    eventually(lambda: (lab.service / "current").readlink().name == "2", "the candidate is launched", 60)
    kill(controller)
    until_the_host_has_ended_it(lab)


@pytest.mark.failure_mode("ab-cut")
def test_a_launch_that_dies_after_its_controller_was_killed_ends_at_home(lab: AbLab) -> None:
    controller = lab.begin("ab", "known-good", lab.build("slow", 1.5), "--pairs", "1", "--cell", "c2")
    eventually(
        lambda: holder(lab).get("kind") == "bench" and (lab.service / "current").readlink().name == "2", "B is measured", 60
    )
    kill(controller)
    os.kill(read(lab.service / "run" / "server.json")["pid"], signal.SIGKILL)
    until_the_host_has_ended_it(lab)


@pytest.mark.slow
def test_a_launch_that_dies_under_its_controller_is_answered_by_the_known_good_release_once(lab: AbLab) -> None:
    controller = lab.begin("ab", "known-good", lab.build("slow", 1.5), "--pairs", "1")
    eventually(
        lambda: holder(lab).get("kind") == "bench" and (lab.service / "current").readlink().name == "2", "B is measured", 60
    )
    os.kill(read(lab.service / "run" / "server.json")["pid"], signal.SIGKILL)
    _, err = controller.communicate(timeout=120)
    assert controller.returncode == 1 and "release 1 serves, and answers right" in err
    assert (lab.comparison()["state"], lab.comparison()["back"]["verdict"]) == ("failed", "right")
    assert lab.status()["release"] == 1
    # Whoever was quicker, controller or host, started it: the other one found it serving.
    starts = [
        line for line in (lab.service / "journal.jsonl").read_text().splitlines() if json.loads(line)["event"] == "restoring"
    ]
    assert len(starts) == 1


def test_a_person_who_takes_the_service_down_ends_the_comparison_and_it_stays_down(lab: AbLab) -> None:
    controller = lab.begin("ab", "known-good", "known-good", "--pairs", "4")
    after_launches(lab, 1)
    # The lock is free for a moment only, between a launch and its measurement.
    eventually(lambda: lab.run("down", "--lock-wait", "60").code == 0, "down gets the lock", 120)
    _, err = controller.communicate(timeout=120)
    assert "down was ordered by" in lab.comparison()["reason"], err
    assert controller.returncode != 0
    assert lab.status()["state"] == "stopped"
