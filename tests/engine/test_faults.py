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


@pytest.mark.parametrize("phase", ["launch", "weights", "warm-up"])
@pytest.mark.failure_mode("candidate-dies")
def test_a_server_killed_in_any_phase_is_named_with_its_signal_and_restored(serving: Lab, phase: str) -> None:
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


def _restored(lab: Lab, ran: Ran, good: int) -> None:
    assert ran.code == 10, ran
    assert ran.json["outcome"] == "restored"
    assert ran.json["release"] == good
    assert len(lab.servers()) == 1
    assert lab.run("smoke").code == 0
