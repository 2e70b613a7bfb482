"""Looking after a server: how its end is told when the one who knows it is late, or gone."""

from __future__ import annotations

import itertools
import os
import signal

import pytest
from gpuops_agent import guard, proc
from gpuops_agent.guard import Died, Guard
from gpuops_agent.proc import Identity
from gpuops_agent.records import ServerRecord
from process_lab import Host, eventually, gone, kill

from gpuops.engines import facts


def watched(host: Host, record: ServerRecord) -> Guard:
    return Guard(
        host.service, record, facts("sglang", "0.5.23").as_order(schedulers=1), lambda: False, lambda event, **fields: None
    )


@pytest.mark.failure_mode("candidate-dies")
def test_a_supervisor_that_is_late_is_waited_for_as_long_as_it_lives(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    record = host.launch()
    looks = itertools.count()

    def clock() -> float:
        """A second passes with every look; after twenty of them time stands still, and the supervisor gets its processor back."""
        seconds = next(looks)
        if seconds == 20:
            os.kill(record.supervisor.pid, signal.SIGCONT)
        return float(min(seconds, 20))

    monkeypatch.setattr(guard, "boottime", clock)
    with watched(host, record) as eyes:
        os.kill(record.supervisor.pid, signal.SIGSTOP)
        os.kill(record.pid, signal.SIGKILL)
        eventually(lambda: gone(record.pid))
        with pytest.raises(Died, match=f"the server \\(pid {record.pid}\\) was killed by signal 9"):
            eyes.poll()


def test_without_a_supervisor_a_server_that_has_ended_is_gone_and_nobody_says_how(host: Host) -> None:
    record = host.launch()
    with watched(host, record) as eyes:
        kill(record.supervisor.pid)
        kill(record.pid)
        with pytest.raises(Died, match=f"the server \\(pid {record.pid}\\) is gone"):
            eyes.poll()


@pytest.mark.failure_mode("candidate-dies")
def test_an_end_that_has_begun_is_waited_for_until_its_last_thread_has_gone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    done = host.folder / "done"
    record = host.launch("--linger", str(done))
    # It has no time to begin to end: what is waited for is an end that is under way.
    monkeypatch.setattr(guard, "DYING_S", 0.0)

    def look(server: Identity) -> bool:
        done_for = proc.ending(server)
        done.touch()
        return done_for

    monkeypatch.setattr(guard, "ending", look)
    with watched(host, record) as eyes:
        os.kill(record.pid, signal.SIGKILL)
        eventually(lambda: gone(record.pid))
        with pytest.raises(Died, match="was killed by signal 9"):
            eyes.expect_end()


def test_a_server_that_lives_on_is_not_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "DYING_S", 0.0)
    with watched(host, host.launch()) as eyes:
        eyes.expect_end()
