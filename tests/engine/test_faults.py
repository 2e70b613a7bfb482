"""Faults of the real engine while a rollout is under way. Each costs two launches: the candidate, and the known-good server coming back."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from lab import Lab, Ran, process_titled

pytestmark = pytest.mark.slow

CHANGE = ("--set", "server.flags.max-running-requests=5")


@pytest.mark.parametrize("phase", ["weights", "probes"])
@pytest.mark.failure_mode("candidate-dies")
def test_a_server_killed_while_it_starts_or_is_asked_is_named_with_its_signal_and_restored(serving: Lab, phase: str) -> None:
    good = serving.status()["release"]
    server: list[int] = []

    def kill_in_phase(event: dict[str, Any], client: subprocess.Popen[str]) -> None:
        if event["event"] == "server" and not server:
            server.append(event["pid"])
            if phase == "launch":
                os.kill(event["pid"], signal.SIGKILL)
        # The port may be seen before the log's word for the warm-up is read.
        entered = event.get("phase") == phase or (phase == "warm-up" and event.get("phase") == "listening")
        if entered and len(server) == 1 and phase != "launch":
            os.kill(server[0], signal.SIGKILL)
            server.append(0)

    ran = serving.up_watched(kill_in_phase, *CHANGE)
    _restored(serving, ran, good)
    died = next(event for event in ran.events if event["event"] == "died")
    assert died["signal"] == 9
    # The furthest phase that was entered before the end was seen.
    assert died["phase"] in ({"warm-up", "listening", "generating"} if phase == "warm-up" else {phase})
    if phase != "launch":
        assert died["line"], "the last meaningful line of the log"
    assert f"signal {signal.SIGKILL.value}" in ran.json["error"]["what"]


@pytest.mark.failure_mode("rank-lost")
def test_a_killed_scheduler_is_noticed_while_its_parent_still_lives(serving: Lab) -> None:
    good = serving.status()["release"]
    killed: list[int] = []

    def kill_the_scheduler(event: dict[str, Any], client: subprocess.Popen[str]) -> None:
        if event.get("phase") == "probes" and not killed:
            killed.append(process_titled(serving.status(), "sglang::scheduler"))
            os.kill(killed[0], signal.SIGKILL)

    ran = serving.up_watched(kill_the_scheduler, *CHANGE)
    _restored(serving, ran, good)
    assert f"sglang::scheduler (pid {killed[0]})" in ran.json["error"]["what"]


@pytest.mark.parametrize("phase", ["listening", "probes"])
@pytest.mark.failure_mode("hang")
def test_a_scheduler_that_is_stopped_during_the_start_is_called_hung_and_restored(serving: Lab, phase: str) -> None:
    good = serving.status()["release"]
    scheduler: list[int] = []
    stopped: list[int] = []

    def stop_the_scheduler(event: dict[str, Any], client: subprocess.Popen[str]) -> None:
        if event.get("phase") == "weights" and event.get("progress") == 1.0 and not scheduler:
            scheduler.append(process_titled(serving.status(), "sglang::scheduler"))
        if event.get("phase") == phase and not stopped:
            os.kill(scheduler[0], signal.SIGSTOP)
            stopped.append(scheduler[0])

    deadlines = ("--set", "deadlines.generate_s=10", "--set", "deadlines.probe_s=10", "--set", "deadlines.stop_s=5")
    ran = serving.up_watched(stop_the_scheduler, *CHANGE, *deadlines)
    _restored(serving, ran, good)
    error = ran.json["error"]
    # The event takes a moment to get here, so the question without an answer may be the next one.
    assert "does not say what it serves" in error["what"] or "does not generate" in error["what"]
    assert f"sglang::scheduler (pid {stopped[0]}) is stopped" in error["evidence"]


@pytest.mark.failure_mode("ctrl-c")
def test_ctrl_c_asks_the_host_to_undo_and_follows_it(serving: Lab) -> None:
    good = serving.status()["release"]
    asked: list[bool] = []

    def press_ctrl_c(event: dict[str, Any], client: subprocess.Popen[str]) -> None:
        if event.get("phase") == "weights" and not asked:
            asked.append(True)
            client.send_signal(signal.SIGINT)

    ran = serving.up_watched(press_ctrl_c, *CHANGE)
    _restored(serving, ran, good)
    assert "cancelled" in ran.json["error"]["what"]
    state = next(entry for entry in serving.run("history", "--json").json["releases"] if entry["release"] == ran.json["failed"])
    assert state["state"] == "unknown", "nobody has judged it"


@pytest.mark.failure_mode("candidate-dies")
def test_a_flag_that_the_engine_refuses_fails_with_its_own_words(serving: Lab) -> None:
    good = serving.status()["release"]
    ran = serving.up("--set", "server.flags.no-such-flag=1")
    _restored(serving, ran, good)
    assert "unrecognized arguments: --no-such-flag" in ran.json["error"]["evidence"]


def test_content_equal_to_a_bad_release_is_a_new_attempt_with_a_new_number(serving: Lab) -> None:
    # It dies while it reads its arguments: the cheapest bad release.
    first, second = (serving.up("--set", "server.flags.no-such-flag=1") for _ in range(2))
    assert (first.code, second.code) == (10, 10)
    assert second.json["failed"] > first.json["failed"]


def test_restart_keeps_the_release_and_changes_the_process(serving: Lab) -> None:
    before = serving.status()
    ran = serving.run("restart", "--json")
    assert ran.code == 0, ran
    after = serving.status()
    assert after["release"] == before["release"]
    assert after["server"]["pid"] != before["server"]["pid"]


def _restored(lab: Lab, ran: Ran, good: int) -> None:
    assert ran.code == 10, ran
    assert ran.json["outcome"] == "restored"
    assert ran.json["release"] == good
    assert len(lab.servers()) == 1
    entry = lab.status("--check")
    assert (entry["state"], entry["release"], entry["check"]["state"]) == ("running", good, "serving")
