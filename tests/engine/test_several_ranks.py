"""The real engine with three ranks (its small model has 9 heads): one of them is killed, while it loads and while it serves."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from lab import Lab, process_titled, wait_for

pytestmark = pytest.mark.slow

# Without words of its own the engine takes one rank a NUMA node.
THREE = ("--set", "server.flags.tp=3", "--set", "server.env.SGLANG_CPU_OMP_THREADS_BIND=0|1|0")
LOST = "1 of 3 ranks lost: TP1, signal 9"


@pytest.mark.failure_mode("rank-lost")
def test_a_killed_rank_is_named_while_the_engine_loads_and_while_it_serves(lab: Lab) -> None:
    ran = lab.up(*THREE)
    assert ran.code == 0, ran
    killed: list[int] = []

    def kill_a_rank(event: dict[str, Any], client: subprocess.Popen[str]) -> None:
        if event.get("phase") == "weights" and not killed:
            killed.append(process_titled(lab.status(), "sglang::scheduler_TP1"))
            os.kill(killed[0], signal.SIGKILL)

    ran = lab.up_watched(kill_a_rank, *THREE, "--set", "server.flags.max-running-requests=5")
    assert killed and ran.code == 10, ran
    assert LOST in ran.json["error"]["what"]
    assert lab.status("--check")["check"]["state"] == "serving", "the known-good release is back"

    os.kill(process_titled(lab.status(), "sglang::scheduler_TP1"), signal.SIGKILL)
    # The engine notices by itself within a second, kills its other ranks, then itself: all that is no further loss.
    wait_for(lambda: lab.status()["state"] == "died", "the engine has ended itself")
    assert lab.status()["ranks_lost"] == LOST
    wait_for(lambda: lab.servers() == [], "nothing of it is left")
