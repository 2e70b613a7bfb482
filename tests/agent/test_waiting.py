"""`wait`: for readiness, for a promotion, for a death, on real processes."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from gpuops_agent import locks, records
from process_lab import eventually, kill
from rollouts import Lab, operation

from gpuops.errors import GpuopsError

Json = dict[str, Any]


class Waiting:
    """A `wait` in a thread of its own; it has begun when the constructor returns."""

    def __init__(self, lab: Lab, what: str, **args: Any) -> None:
        self.events: list[Json] = []
        self._ended: list[Json | GpuopsError] = []
        self._thread = threading.Thread(target=self._wait, args=(lab, {"for": what, **args}), daemon=True)
        self._thread.start()
        eventually(lambda: self.events or self._ended, "the wait has begun")

    def _wait(self, lab: Lab, args: Json) -> None:
        try:
            self._ended.append(
                lab.agent.call("wait", on_event=lambda event: self.events.append(dict(event)), service="demo", **args)
            )
        except GpuopsError as error:
            self._ended.append(error)

    @property
    def over(self) -> bool:
        return bool(self._ended)

    def end(self) -> Json:
        ended = eventually(lambda: self._ended, "the wait has ended")[0]
        if isinstance(ended, GpuopsError):
            raise ended
        return ended


def test_a_server_that_generates_is_ready_at_once(lab: Lab) -> None:
    served = lab.good().outcome
    told = Waiting(lab, "ready").end()
    assert (told["release"], told["pid"], told["port"]) == (1, served["pid"], served["port"])
    assert told["evidence"] == "generated 'Paris'"


def test_ready_waits_for_a_server_that_comes_up(lab: Lab) -> None:
    waiting = Waiting(lab, "ready")
    hold = lab.folder / "go"
    running = lab.begin(lab.order("--hold", f"capture={hold}"))
    running.until("server")
    assert not waiting.over
    hold.touch()
    assert waiting.end()["release"] == 1
    running.end()


def test_a_wait_that_takes_too_long_says_what_it_waited_for(lab: Lab) -> None:
    lab.good()
    lab.down()
    with pytest.raises(GpuopsError) as late:
        Waiting(lab, "ready", timeout_s=0.3).end()
    assert (late.value.code, late.value.kind) == (1, "timeout")
    assert late.value.what == "after 0.3 s still waiting for demo to have a release that runs"


def test_a_server_that_hangs_is_not_ready(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(GpuopsError) as late:
        Waiting(lab, "ready", timeout_s=0.5).end()
    os.kill(pid, signal.SIGCONT)
    assert "hung: no token" in late.value.evidence


def test_promoted_waits_for_the_end_of_the_running_operation(lab: Lab) -> None:
    hold = lab.folder / "go"
    running = lab.begin(lab.order("--hold", f"capture={hold}"))
    running.until("server")
    waiting = Waiting(lab, "promoted")
    eventually(lambda: [each.get("op") for each in waiting.events][-1:] == [running.op], "the wait knows the operation")
    assert not waiting.over
    hold.touch()
    assert (waiting.end()["outcome"], waiting.end()["op"]) == ("promoted", running.op)
    running.end()


def test_promoted_waits_for_the_next_operation_when_none_runs(lab: Lab) -> None:
    earlier = lab.good().outcome["op"]
    waiting = Waiting(lab, "promoted")
    op = lab.up("--die", "weights=3").outcome["op"]
    told = waiting.end()
    assert (told["outcome"], told["code"], told["op"]) == ("restored", 10, op)
    assert op != earlier


def test_whoever_lost_the_link_asks_by_time_and_misses_nothing(lab: Lab) -> None:
    since = Waiting(lab, "promoted", timeout_s=0.1).events[0]["since"]
    op = lab.good().outcome["op"]
    # It began and ended while nobody listened.
    assert Waiting(lab, "promoted", since=since).end()["op"] == op
    assert Waiting(lab, "promoted", op=op).end()["outcome"] == "promoted"


def test_an_operation_whose_runner_dies_ends_the_wait_as_unknown(lab: Lab) -> None:
    hold = lab.folder / "go"
    running = lab.begin(lab.order("--hold", f"capture={hold}"))
    running.until("server")
    owner = locks.owner(lab.service)
    assert owner is not None
    waiting = Waiting(lab, "promoted", op=running.op)
    kill(owner["runner"]["pid"])
    hold.touch()
    # Either the death itself, or what the recovery that follows has written.
    try:
        told = waiting.end()
    except GpuopsError as error:
        assert (error.code, error.kind) == (12, "runner_died")
    else:
        assert (told["outcome"], told["code"]) == ("cut", 12)
    with pytest.raises(GpuopsError):
        running.end()


def test_waiting_for_an_operation_that_never_was_is_an_error(lab: Lab) -> None:
    with pytest.raises(GpuopsError) as none:
        Waiting(lab, "promoted", op=operation()).end()
    assert none.value.kind == "no_operation"


def test_a_death_is_told_with_its_signal_and_the_last_words(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    waiting = Waiting(lab, "dead")
    assert not waiting.over
    kill(pid)
    told = waiting.end()
    assert (told["release"], told["pid"], told["code"], told["signal"]) == (1, pid, None, signal.SIGKILL)
    assert told["line"] == "The server is fired up and ready to roll!"
    assert told["operation"] is None


def test_a_death_by_a_rollout_says_so(lab: Lab) -> None:
    lab.good()
    waiting = Waiting(lab, "dead")
    hold = lab.folder / "go"
    running = lab.begin(lab.order("--hold", f"launch={hold}"))
    told = waiting.end()
    assert (told["release"], told["operation"]["op"], told["operation"]["kind"]) == (1, running.op, "up")
    hold.touch()
    running.end()


def test_the_last_words_name_the_cause_and_no_secret(lab: Lab) -> None:
    lab.agent.call("secret", values={"KEY": "s3cr3t-v4lue"})
    pid = lab.good("--betray", "KEY", env={"KEY": "@{secret:KEY}"}, secret_names=("KEY",)).outcome["pid"]
    with lab.service.server_log(1).open("a") as log:
        log.write("RuntimeError: CUDA out of memory, the key is s3cr3t-v4lue\n[2026-01-01 00:00:00] bye\n")
    waiting = Waiting(lab, "dead")
    kill(pid)
    assert waiting.end()["line"] == "RuntimeError: CUDA out of memory, the key is <secret KEY>"


def test_a_server_that_has_died_before_is_told_at_once(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    kill(pid)
    eventually(lambda: lab.status()["exit"], "its end is recorded")
    told = Waiting(lab, "dead").end()
    assert (told["pid"], told["signal"]) == (pid, signal.SIGKILL)


def test_a_death_that_nobody_has_written_down_yet_is_waited_for(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    supervisor = records.supervisor_identity(lab.service)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGSTOP)
    kill(pid)
    waiting = Waiting(lab, "dead")
    os.kill(supervisor.pid, signal.SIGCONT)
    told = waiting.end()
    assert (told["release"], told["pid"], told["signal"]) == (1, pid, 9)


def test_what_never_lived_cannot_die(lab: Lab) -> None:
    with pytest.raises(GpuopsError) as none:
        Waiting(lab, "dead").end()
    assert none.value.kind == "not_running"


def test_a_death_that_does_not_come_in_time_is_a_timeout(lab: Lab) -> None:
    lab.good()
    with pytest.raises(GpuopsError) as late:
        Waiting(lab, "dead", timeout_s=0.2).end()
    assert (late.value.kind, late.value.evidence) == ("timeout", "release 1 lives")


def test_one_cannot_wait_for_anything_else(lab: Lab) -> None:
    with pytest.raises(GpuopsError) as unknown:
        Waiting(lab, "better times").end()
    assert unknown.value.code == 2
