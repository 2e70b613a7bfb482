"""Ranks that are lost while a server of several loads or serves: noticed, named, swept, and the known-good release back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import exits, proc, ranks, records
from gpuops_agent.records import LostRank
from process_lab import eventually
from rollouts import Lab, Played
from test_gpus import PRINTED, Tools

from gpuops.engines import facts

FACTS = facts("sglang", "0.5.15").as_order(schedulers=2)["ranks"]


def lost(title: str, at: float = 1.0, code: int | None = None, signal: int | None = None) -> LostRank:
    return LostRank(7, f"sglang::{title}", at, code, signal)


@pytest.mark.parametrize(
    ("found", "number", "words"),
    [
        ([lost("scheduler_TP1", signal=9)], 2, "1 of 2 ranks lost: TP1, signal 9"),
        ([lost("scheduler_TP0", signal=9), lost("scheduler_TP1", 1.05, signal=9)], 2, "2 of 2 ranks lost: TP0, TP1, signal 9"),
        (
            [lost("scheduler_TP3", signal=6), lost("scheduler_TP0", 1.01, code=1), lost("scheduler_TP5", 1.02, signal=6)],
            8,
            "3 of 8 ranks lost: TP3, TP5, signal 6; TP0, status 1",
        ),
        # What ends a second later ends because of the first.
        ([lost("scheduler_TP1", signal=9), lost("scheduler_TP0", 2.0, code=1)], 2, "1 of 2 ranks lost: TP1, signal 9"),
        ([lost("scheduler_DP0_TP1_EP1", code=3)], 4, "1 of 4 ranks lost: DP0 TP1 EP1, status 3"),
        ([lost("scheduler_TP1")], 2, "1 of 2 ranks lost: TP1, nobody saw how"),
        ([lost("scheduler", signal=9)], 1, "sglang::scheduler (pid 7) was killed by signal 9"),
        ([lost("detokenizer", code=1)], 2, "sglang::detokenizer (pid 7) exited with status 1"),
        ([lost("scheduler_TP1", signal=9)], None, "sglang::scheduler_TP1 (pid 7) was killed by signal 9"),
        ([], 2, ""),
    ],
)
@pytest.mark.failure_mode("rank-lost")
def test_the_loss_says_which_of_how_many_and_how(found: list[LostRank], number: int | None, words: str) -> None:
    assert ranks.lost(found, {**FACTS, "schedulers": number}) == words


@pytest.mark.parametrize(("how", "ending"), [("os.kill(os.getpid(), 9)", (None, 9)), ("os._exit(3)", (3, None))])
def test_the_end_of_somebody_elses_child_is_seen_before_its_parent_has_looked(how: str, ending: exits.Ending) -> None:
    # A shell looks after its children between two commands; this parent never does.
    never = f"import os, time\npid = os.fork()\nif not pid: {how}\nprint(pid, flush=True)\ntime.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", never], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        stat = eventually(lambda: (found := proc.read_stat(pid)) is not None and found.state == "Z" and found, "it has ended")
        assert isinstance(stat, proc.Stat)
        pidfd = os.pidfd_open(pid)
        assert exits.of_other(pid, pidfd) == ending
        os.close(pidfd)
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.skipif(tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15), reason="the kernel tells this since Linux 6.15")
def test_the_end_of_a_process_is_seen_after_its_parent_has_looked() -> None:
    child = subprocess.Popen(["sleep", "600"])
    pidfd = os.pidfd_open(child.pid)
    child.kill()
    child.wait()
    assert exits.of_other(child.pid, pidfd) == (None, 9)
    os.close(pidfd)


# Whole rollouts.


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(tmp_path / "tools", monkeypatch)


def order(lab: Lab, *faults: str, number: int = 2, **changes: Any) -> dict[str, Any]:
    made = lab.order("--tp", str(number), *faults)
    made["engine"] = facts("sglang", "0.5.23").as_order(schedulers=number)
    made["candidate"].update(changes)
    return made


def good(lab: Lab, *faults: str, **changes: Any) -> Played:
    played = lab.play(order(lab, *faults, **changes))
    assert played.name == "promoted", played.outcome
    return played


def loading(lab: Lab, *faults: str) -> Any:
    """A candidate that loads, and never would get on by itself, over a good release of two ranks."""
    good(lab)
    running = lab.begin(order(lab, *faults, "--hold", f"weights={lab.folder / 'never'}"))
    running.until("server", release=2)
    return running


def assert_back(lab: Lab, played: Played) -> None:
    assert (played.name, played.outcome["release"], played.outcome["failed"]) == ("restored", 1, 2)
    assert lab.status()["state"] == "running" and lab.status()["ranks_lost"] is None
    assert [each["proof"]["clean"] for each in played.all("stopped")][-1]


@pytest.mark.failure_mode("rank-lost")
def test_a_rank_that_is_killed_while_its_server_loads_is_named_and_the_known_good_release_is_back(lab: Lab) -> None:
    running = loading(lab)
    os.kill(lab.rank("TP1"), signal.SIGKILL)
    played = running.end()
    assert played.all("died")[0]["what"] == "1 of 2 ranks lost: TP1, signal 9"
    assert played.outcome["reason"] == "1 of 2 ranks lost: TP1, signal 9 in phase weights"
    assert_back(lab, played)


@pytest.mark.failure_mode("rank-lost")
def test_two_ranks_that_are_killed_together_are_one_loss(lab: Lab) -> None:
    running = loading(lab)
    pids = [lab.rank(name) for name in ("TP0", "TP1")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    played = running.end()
    assert played.all("died")[0]["what"].startswith("2 of 2 ranks lost: TP")
    assert played.all("died")[0]["what"].endswith(", signal 9") and "TP0" in played.outcome["reason"]
    assert_back(lab, played)


@pytest.mark.failure_mode("rank-lost")
def test_the_stop_after_a_lost_rank_is_proved_on_every_card_of_the_service(lab: Lab, tools: Tools) -> None:
    tools.add_cards()
    # Nobody is on a card any more; the memory of the first has not come back.
    (tools.folder / "none.csv").write_text("gpu_uuid, pid, used_gpu_memory [MiB], process_name\n")
    program = tools.folder / "nvidia-smi"
    program.write_text(program.read_text().replace(str(PRINTED / "h200x2_apps.csv"), str(tools.folder / "none.csv")))
    running = loading(lab)
    os.kill(lab.rank("TP1"), signal.SIGKILL)
    told = running.end().all("stopped")[-1]["proof"]["cards"]
    assert [(each["card"], each["free"]) for each in told] == [(0, False), (1, True)]
    assert told[0]["text"] == "card 0, 2575 MiB used by no process that can be seen from here"


@pytest.mark.failure_mode("rank-lost")
def test_an_engine_that_ends_itself_after_the_loss_of_a_rank_does_not_hide_which(lab: Lab) -> None:
    served = good(lab, "--watchdog").outcome["pid"]
    os.kill(lab.rank("TP1"), signal.SIGKILL)
    eventually(lambda: lab.status()["ranks_lost"], "the loss is noticed")
    eventually(lambda: not Path(f"/proc/{served}").exists(), "the engine has ended itself")
    eventually(lambda: not records.supervisor_alive(lab.service), "the supervisor has swept")
    status = lab.status()
    assert (status["state"], status["ranks_lost"]) == ("died", "1 of 2 ranks lost: TP1, signal 9")
    told = lab.agent.call("wait", **{"service": "demo", "for": "dead"})
    assert (told["signal"], told["ranks_lost"]) == (9, "1 of 2 ranks lost: TP1, signal 9")

    played = lab.play(lab.simple("recover"))

    assert (played.name, played.outcome["reason"]) == ("recovered", "1 of 2 ranks lost: TP1, signal 9")
    assert lab.status()["state"] == "running"


@pytest.mark.failure_mode("rank-lost")
def test_a_server_that_lost_a_rank_while_it_served_is_started_again_by_itself_where_the_playbook_says_so(lab: Lab) -> None:
    served = good(lab, "--watchdog", restart={"max": 1, "backoff_s": 0.1}).outcome["pid"]
    os.kill(lab.rank("TP0"), signal.SIGKILL)

    def back() -> bool:
        status = lab.status()
        return bool(status["state"] == "running" and status["server"]["pid"] != served)

    eventually(back, "another server runs")
    notes = [each["text"] for each in lab.follow().all("note")]
    assert "1 of 2 ranks lost: TP0, signal 9; restart 1 of 1 in a row" in notes
