"""Crashes at unlucky moments: whoever dies, and whatever cannot be written, the known-good release serves in the end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import deputy, files, lease, lifeguard, locks, net, operations, proc, records, recovery, releases
from gpuops_agent.paths import Root, Service
from gpuops_agent.recorder import Recorder, outcome, outcome_file
from gpuops_agent.reserve import Reserve
from gpuops_agent.rollout import Rollout
from process_lab import bystander, eventually, own_port
from rollouts import Lab, Running

from gpuops.errors import GpuopsError

LISTEN = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Root(tmp_path).service("demo")
    made.operations.mkdir(parents=True)
    yield made


def a_candidate_waits(lab: Lab) -> Running:
    """Release 1 is known-good; release 2 has passed its gates, and waits for its confirmation."""
    lab.good()
    running = lab.begin({**lab.order(env={"OTHER": "1"}, lease_s=120.0), "on_controller_lost": "restore"})
    running.until("awaiting")
    return running


def spawn_runner(lab: Lab, op: str) -> None:
    """The runner of an order whose folder lies there."""
    begin = (
        f"import sys; sys.argv[0] = {str(lab.zipapp)!r}; sys.path.insert(0, sys.argv[0])\n"
        "from pathlib import Path\nfrom gpuops_agent.detach import spawn\nfrom gpuops_agent.paths import Root\n"
        f"service = Root(Path({str(lab.path)!r})).service('demo')\n"
        f"spawn(service, 'runner', {{'service': 'demo', 'op': {op!r}}}, Path(sys.argv[0]))"
    )
    subprocess.run([sys.executable, "-ISc", begin], check=True)


def server_pid(lab: Lab) -> int:
    record = records.server_alive(lab.service)
    assert record is not None
    return record.pid


def cut(lab: Lab, running: Running) -> None:
    lab.kill_all_watchers(running.op)
    with pytest.raises(GpuopsError, match="its runner died"):
        running.end()


def serves(lab: Lab, release: int) -> None:
    eventually(lambda: (lab.status()["state"], lab.status()["release"]) == ("running", release), f"release {release} serves", 60)


# Several at once.


@pytest.mark.failure_mode("runner-killed")
def test_a_runner_and_its_candidate_that_die_together_are_followed_by_the_known_good_release(lab: Lab) -> None:
    running = a_candidate_waits(lab)
    candidate = server_pid(lab)
    os.kill(lab.runner(running.op).pid, signal.SIGKILL)
    os.kill(candidate, signal.SIGKILL)
    serves(lab, 1)


@pytest.mark.failure_mode("runner-killed")
def test_a_runner_that_dies_while_the_supervisor_sweeps_is_followed_by_the_known_good_release(lab: Lab) -> None:
    old = lab.good().outcome["pid"]
    for each in proc.descendants(old):
        os.kill(each.pid, signal.SIGSTOP)  # none of them takes the TERM of the sweep
    running = lab.begin({**lab.order(env={"OTHER": "1"}, lease_s=120.0), "on_controller_lost": "restore"})
    running.until("stopping")
    eventually(lambda: records.server_alive(lab.service) is None, "the old server has ended")
    assert records.supervisor_alive(lab.service)
    os.kill(lab.runner(running.op).pid, signal.SIGKILL)
    serves(lab, 1)


@pytest.mark.parametrize("moment", ["stopped", "server", "awaiting"])
@pytest.mark.failure_mode("runner-killed")
def test_a_runner_and_the_supervisor_that_die_together_are_followed_by_the_known_good_release(lab: Lab, moment: str) -> None:
    lab.good()
    running = lab.begin({**lab.order(env={"OTHER": "1"}, lease_s=120.0), "on_controller_lost": "restore"})
    running.until(moment)
    runner = lab.runner(running.op)
    os.kill(runner.pid, signal.SIGSTOP)
    # After "stopped" there is none: nobody but the runner's deputy is left to see its end.
    supervisor = records.supervisor_identity(lab.service)
    if supervisor is not None:
        os.kill(supervisor.pid, signal.SIGKILL)
    os.kill(runner.pid, signal.SIGKILL)
    serves(lab, 1)
    eventually(lambda: locks.owner(lab.service) is None, "the recovery has ended")
    assert next(each["kind"] for each in lab.history()["operations"]) == "recover"


# A debt is not forgotten.


@pytest.mark.failure_mode("runner-killed")
def test_a_rollout_that_was_cut_is_undone_by_an_order_that_is_then_refused(lab: Lab) -> None:
    cut(lab, a_candidate_waits(lab))
    refused = lab.restore(99)
    assert refused.name == "failed" and refused.outcome["serving"]
    assert (lab.status()["release"], lab.link("good"), lab.state(2)["state"]) == (1, 1, "unknown")


@pytest.mark.failure_mode("runner-killed")
def test_a_recovery_that_is_cut_before_it_stops_anything_is_begun_again(lab: Lab) -> None:
    running = a_candidate_waits(lab)
    dead = lab.runner(running.op)
    cut(lab, running)
    # As far as a recovery gets before it stops the candidate.
    folder = lab.service.operation("recover-x")
    folder.mkdir()
    files.write_json(folder / "order.json", lab.simple("recover", op="recover-x"))
    files.write_json(folder / "runner.json", dead.to_json())
    assert recovery.close_cut_operations(lab.service, "recover-x") == ["up"]
    assert lab.play(lab.simple("recover")).name == "recovered"
    assert lab.status()["release"] == 1


def test_a_recovery_from_a_down_that_is_cut_too_leaves_the_service_down(service: Service) -> None:
    for op, kind in (("op-1", "down"), ("op-2", "recover"), ("op-3", "recover")):
        service.operation(op).mkdir()
        files.write_json(service.operation(op) / "order.json", {"kind": kind})
        files.write_json(service.operation(op) / "runner.json", {"pid": 1, "start": 0, "boot_id": "b", "pid_ns": "n"})
    recovery.touch(service, "op-1")
    assert recovery.close_cut_operations(service, "op-2") == ["down"]
    assert recovery.close_cut_operations(service, "op-3") == ["down"]


# An order whose runner is still on its way.


def test_an_operation_whose_runner_is_on_its_way_is_not_cut(service: Service) -> None:
    service.operation("op-1").mkdir()
    assert recovery.close_cut_operations(service, "op-2") == []
    assert outcome(service, "op-1") is None and operations.running(service, "op-1")
    me = proc.identify(os.getpid())
    assert me is not None
    files.write_json(service.operation("op-1") / "runner.json", {**me.to_json(), "start": 0})
    recovery.close_cut_operations(service, "op-2")
    assert (outcome(service, "op-1") or {})["outcome"] == "cut"


@pytest.mark.failure_mode("runner-killed")
def test_an_order_that_another_one_overtakes_is_still_watched(lab: Lab) -> None:
    lab.good()
    order = {**lab.order(env={"OTHER": "1"}, op="op-b", lease_s=120.0), "on_controller_lost": "restore"}
    folder = lab.service.operation("op-b")
    folder.mkdir(parents=True)
    files.write_json(folder / "order.json", order, 0o600)
    lease.begin(lab.service, order)
    assert lab.restore(99).name == "failed"
    spawn_runner(lab, "op-b")
    eventually(lambda: (record := records.server_alive(lab.service)) and record.release == 2, "the candidate runs")
    assert (locks.owner(lab.service) or {})["op"] == "op-b"
    os.kill(lab.runner("op-b").pid, signal.SIGKILL)
    serves(lab, 1)


# Files that cannot be written.


@pytest.mark.failure_mode("disk-full-during")
def test_a_statistic_that_cannot_be_written_does_not_end_the_known_good_server(lab: Lab) -> None:
    order = lab.order()
    order["candidate"]["env"]["TRITON_CACHE_DIR"] = "@{cache}/triton"
    assert lab.play(order).name == "promoted"
    good = releases.load(lab.service, 1)
    assert good is not None
    statistic = Path(good.document["cache"]) / "cache.json"
    statistic.unlink()
    statistic.mkdir()
    played = lab.restart()
    assert (played.name, played.outcome["release"], played.outcome["serving"]) == ("promoted", 1, True)
    assert any("could not be written" in each["text"] for each in played.all("note"))


@pytest.mark.failure_mode("disk-full-during")
def test_room_that_a_cut_rollout_has_kept_back_is_there_for_whoever_pays_its_debt(service: Service) -> None:
    Reserve(service.reserve_file).take()
    service.operation("op-1").mkdir()
    order = {"kind": "recover", "op": "op-1", "deadlines": {"stop_s": 1.0}}
    held = []

    class Looks(Rollout):
        def _recover(self, cut: "list[str]") -> "dict[str, Any]":
            held.append((cut, service.reserve_file.exists()))
            return {}

    Looks(service, order, Recorder(service, "op-1")).play()
    assert held == [([], False)]


def refuses(*_: Any) -> int:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize("broken", [(os, "fork"), (lifeguard, "spawn"), (lifeguard, "write_json")], ids=["fork", "spawn", "disk"])
@pytest.mark.failure_mode("no-fork")
def test_a_recovery_that_cannot_be_called_leaves_no_order_behind(
    service: Service, monkeypatch: pytest.MonkeyPatch, broken: tuple[Any, str]
) -> None:
    dead = {"pid": 1, "start": 0, "boot_id": proc.boot_id(), "pid_ns": proc.pid_namespace()}
    service.root.locks.mkdir()
    service.operation("op-1").mkdir()
    files.write_json(service.lock_owner, {"op": "op-1", "runner": dead})
    recovery.touch(service, "op-1")

    monkeypatch.setattr(*broken, refuses)
    for _ in range(3):
        lifeguard.look_after_rollout(service)
    assert [folder.name for folder in service.operations.iterdir()] == ["op-1"]


@pytest.mark.failure_mode("no-fork")
def test_a_deputy_calls_until_somebody_comes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.operation("op-1").mkdir()
    recovery.touch(service, "op-1")
    called = []

    def fails_twice(_: Service, op: str) -> None:
        called.append(op)
        if len(called) == 3:
            files.write_json(outcome_file(service, op), {"outcome": "cut"})

    monkeypatch.setattr(deputy, "LOOK_S", 0.01)
    monkeypatch.setattr(lifeguard, "call_recovery", fails_twice)
    deputy.see_to_it(service, "op-1")
    assert called == ["op-1"] * 3
    service.operation("op-2").mkdir()
    deputy.see_to_it(service, "op-2")
    assert len(called) == 3, "what had touched nothing is nobody's debt"


@pytest.mark.failure_mode("runner-killed")
def test_a_measurement_that_is_quicker_than_the_recovery_does_not_make_the_debt_forgotten(lab: Lab) -> None:
    running = a_candidate_waits(lab)
    runner, supervisor = lab.runner(running.op), records.supervisor_identity(lab.service)
    me = proc.identify(os.getpid())
    assert supervisor is not None and me is not None
    others = [supervisor.pid, *(each.pid for each in proc.descendants(runner.pid))]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    os.kill(runner.pid, signal.SIGKILL)
    assert proc.wait_gone(runner, 30.0)
    held = locks.acquire(lab.service, {"op": "bench-1", "kind": "bench", "by": "x", "at": time.time(), "runner": me.to_json()})
    lab.service.lock_owner.unlink()
    os.close(held)
    for pid in others:
        os.kill(pid, signal.SIGCONT)
    serves(lab, 1)


@pytest.mark.failure_mode("restore-fails")
def test_an_order_that_pays_a_debt_in_vain_says_that_nobody_serves(lab: Lab) -> None:
    cut(lab, a_candidate_waits(lab))
    lab.faults.write_text("--garbage")
    refused = lab.restore(99)
    assert (refused.name, refused.code, refused.outcome["serving"]) == ("restore_failed", 11, False)


def test_looking_at_what_serves_on_the_way_back_cannot_be_cancelled(lab: Lab) -> None:
    """A promotion that was cut after the link: its release serves, without a supervisor, and the order that comes next is cancelled at once."""
    running = a_candidate_waits(lab)
    releases.point(lab.service, lab.service.good, 2)
    cut(lab, running)
    folder = lab.service.operation("op-c")
    folder.mkdir()
    files.write_json(folder / "order.json", lab.simple("restart", op="op-c"), 0o600)
    files.write_json(folder / "cancel", {"at": 1.0})
    spawn_runner(lab, "op-c")
    assert lab.follow("op-c").name == "cancelled"
    assert records.supervisor_alive(lab.service) and lab.status()["release"] == 2


# Death while others look on.


@pytest.mark.failure_mode("server-died")
def test_a_server_that_dies_under_a_measurement_is_started_again_when_that_has_ended(lab: Lab) -> None:
    order = lab.order()
    order["candidate"]["restart"] = {"max": 3, "backoff_s": 0.01}
    pid = lab.play(order).outcome["pid"]
    eventually(lambda: locks.owner(lab.service) is None)
    me = proc.identify(os.getpid())
    assert me is not None
    held = locks.acquire(lab.service, {"op": "bench-1", "kind": "bench", "by": "x", "at": time.time(), "runner": me.to_json()})
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: records.read_exit(lab.service), "the supervisor has seen the end")
    assert records.supervisor_alive(lab.service)
    lab.service.lock_owner.unlink()
    os.close(held)
    serves(lab, 1)


@pytest.mark.failure_mode("runner-killed")
def test_a_restart_by_its_policy_that_is_cut_is_undone(lab: Lab) -> None:
    order = lab.order(start_s=5.0)
    order["candidate"]["restart"] = {"max": 3, "backoff_s": 0.01}
    pid = lab.play(order).outcome["pid"]
    eventually(lambda: locks.owner(lab.service) is None)
    lab.faults.write_text("--mute")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: (record := records.server_alive(lab.service)) and record.pid != pid, "it is started again")
    op = eventually(lambda: (locks.owner(lab.service) or {}).get("op"))
    assert recovery.was_touched(lab.service, op)
    lab.faults.unlink()
    os.kill(lab.runner(op).pid, signal.SIGKILL)
    answers = lambda: (lab.status(check=True, timeout_s=1.0).get("check") or {}).get("state") == "serving"  # noqa: E731
    eventually(answers, "release 1 answers", 90)


@pytest.mark.failure_mode("port-taken")
def test_a_stranger_on_the_port_of_a_dead_server_is_in_nobodys_way_on_another_port(lab: Lab) -> None:
    first = lab.good().outcome
    os.kill(first["pid"], signal.SIGKILL)
    eventually(lambda: not records.supervisor_alive(lab.service), "what it left is swept")
    with bystander(sys.executable, "-c", LISTEN.format(port=first["port"])):
        eventually(lambda: net.listeners(first["port"]))
        played = lab.up(env={"OTHER": "1"}, port=own_port())
        assert played.name == "promoted"
