"""Decisions of a rollout that real processes cannot be brought to make on demand."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import attempt, liveness, locks, preflight, proc, releases, rollout, session, stop
from gpuops_agent.files import append_line
from gpuops_agent.gpus import GpuProcess
from gpuops_agent.liveness import Sample
from gpuops_agent.paths import Root, Service
from gpuops_agent.proc import Stat
from gpuops_agent.recorder import Recorder
from gpuops_agent.rollout import Rollout
from gpuops_agent.stop import Holder, Proof, Survivor
from gpuops_agent.wire import AgentError


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = Root(tmp_path).service("demo")
    made.operation("op-1").mkdir(parents=True)
    return made


def proof(**left: Any) -> Proof:
    whole = {"survivors": (), "stuck": (), "port_held": (), "shm_left": (), **left}
    return Proof(clean=not left, pid=77, signals=(), seconds=0.1, **whole)


def restart_with(service: Service, monkeypatch: pytest.MonkeyPatch, stopped: Proof) -> dict[str, Any]:
    """Play a restart of release 1, whose server stops so; a start is out of the question."""
    document = {"port": 1, "secrets": [], "spec": "s", "probes": [], "deadlines": {}, "engine": {}}
    releases.stage(service, document)
    releases.point(service, service.current, 1)
    monkeypatch.setattr(stop, "stop", lambda *args, **kwargs: stopped)
    monkeypatch.setattr(rollout.attempt, "bring_up", lambda *args, **kwargs: pytest.fail("started beside the old server"))
    order = {"kind": "restart", "service": "demo", "op": "op-1", "deadlines": {"stop_s": 1}}
    return Rollout(service, order, Recorder(service, "op-1")).play()


@pytest.mark.failure_mode("stuck-in-kernel")
def test_an_old_server_that_cannot_be_stopped_is_no_fault_of_the_candidate(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = restart_with(service, monkeypatch, proof(survivors=(Survivor(77, 1, "sglang::scheduler", "D"),)))
    assert (outcome["outcome"], outcome["code"]) == ("restore_failed", 11)
    assert outcome["reason"] == "the old server could not be stopped"
    assert outcome["evidence"] == "still alive: pid 77: sglang::scheduler (state D)"
    assert releases.state(service, 1)["state"] == "unknown"


@pytest.mark.failure_mode("port-taken")
def test_a_port_that_a_foreign_process_takes_after_the_stop_is_named(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = restart_with(service, monkeypatch, proof(port_held=(Holder(5, "nginx"),)))
    assert (outcome["code"], outcome["evidence"]) == (11, "held by pid 5: nginx")
    assert releases.state(service, 1)["state"] == "unknown"


def test_gpu_memory_that_is_not_given_back_is_named_by_card_and_pid(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = restart_with(service, monkeypatch, proof(gpu_held=(GpuProcess(3, 77, 40960, "sglang::scheduler_TP3"),)))
    assert (outcome["code"], outcome["evidence"]) == (11, "GPU 3: 40960 MiB by pid 77")


def test_what_hangs_in_the_kernel_is_told_with_the_drivers_words(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Survivor(77, 1, "sglang::scheduler_TP3", "D")
    xid = "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."
    outcome = restart_with(service, monkeypatch, proof(survivors=(stuck,), stuck=(stuck,), xids=(xid,)))
    assert "(state D)" in outcome["evidence"] and xid in outcome["evidence"]


def test_left_over_shared_memory_keeps_nobody_from_serving(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    # It goes on to the start, which this test forbids.
    with pytest.raises(pytest.fail.Exception, match="started"):
        restart_with(service, monkeypatch, proof(shm_left=("psm_1",)))


def test_a_host_without_a_free_port_is_unfit(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_free(bind: str) -> int:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(preflight, "pick_port", none_free)
    with pytest.raises(AgentError) as unfit:
        preflight.port_of(service, "auto", "127.0.0.1")
    assert (unfit.value.code, unfit.value.kind) == (5, "no_port")


def test_an_automatic_port_is_picked_once_and_remembered(service: Service) -> None:
    port = preflight.port_of(service, "auto", "127.0.0.1")
    assert preflight.port_of(service, "auto", "127.0.0.1") == preflight.remembered_port(service, "auto") == port
    assert preflight.port_of(service, 1234, "127.0.0.1") == 1234


# The lock.


def me() -> dict[str, Any]:
    identity = proc.identify(os.getpid())
    assert identity is not None
    return {"op": "op-1", "runner": identity.to_json()}


def test_the_lock_names_its_live_holder(service: Service) -> None:
    lock = locks.acquire(service, me())
    with pytest.raises(locks.Held) as held:
        locks.acquire(service, me())
    assert held.value.owner == me() == locks.owner(service)
    os.close(lock)


@pytest.mark.failure_mode("lock-left")
def test_a_holder_that_has_told_its_outcome_is_on_its_way_out(service: Service) -> None:
    lock = locks.acquire(service, me())
    (service.operation("op-1") / "outcome.json").write_text("{}")
    assert locks.owner(service) is None
    os.close(lock)


def test_a_holder_that_has_not_written_itself_yet_is_not_taken_for_the_last_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(locks.acquire(service, {"op": "op-0", "runner": {**me()["runner"], "start": 0}}))
    monkeypatch.setattr(locks, "PATIENCE_S", 0.0)
    fd = os.open(service.lock, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(locks.Held) as held:
        locks.acquire(service, me())
    assert held.value.owner == {}
    os.close(fd)


# A start that never came to the server.


@pytest.mark.failure_mode("supervisor-killed")
def test_a_supervisor_that_dies_before_its_first_word_is_no_fault_of_the_candidate(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = {"ranks": {"patterns": []}}
    document = {
        "spec": "s",
        "argv": ["true"],
        "env": {},
        "bind": "127.0.0.1",
        "port": 1,
        "model": {"path": "m"},
        "engine": engine,
    }
    candidate = releases.stage(service, document)
    # What stands in front of its argv, `systemd-run` on other hosts, ends before it does.
    monkeypatch.setattr(session, "prefix", lambda *args: ["sh", "-c", "kill -9 $$"])
    with pytest.raises(AgentError) as failed:
        attempt.bring_up(service, candidate, Recorder(service, "op-1"), fast=False, cancelled=lambda: False)
    assert failed.value.kind == "no_supervisor"
    assert "status -9 before its first word" in failed.value.evidence


# Records.


@pytest.mark.failure_mode("disk-full-during")
def test_a_line_that_the_disk_takes_only_in_part_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    append_line(path, b"first\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    with pytest.raises(AgentError) as full:
        append_line(path, b"second\n")
    assert full.value.kind == "disk_full" and path.read_bytes() == b"first\n"


@pytest.mark.failure_mode("garbled-file")
def test_after_half_a_line_the_next_one_begins_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event":"first"}\n{"event":"sec')
    append_line(path, b'{"event":"third"}\n')
    assert path.read_bytes().splitlines() == [b'{"event":"first"}', b'{"event":"sec', b'{"event":"third"}']


@pytest.mark.failure_mode("disk-full-during")
def test_a_recorder_outlives_a_disk_that_takes_no_events_and_counts_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(service, "op-1")

    def full(*args: Any, **kwargs: Any) -> None:
        raise AgentError("full", code=5, kind="disk_full")

    with monkeypatch.context() as patched:
        patched.setattr("gpuops_agent.recorder.append_line", full)
        recorder("note", text="unheard")
    recorder.finish({"outcome": "restored", "code": 10})
    assert json.loads((service.operation("op-1") / "outcome.json").read_text())["unwritten_events"] == 1


# Hung or slow.


def sample(*stats: tuple[int, str, int], log: int = 0) -> Sample:
    return Sample({pid: Stat(pid, "x", state, 1, 1, 1, ticks, 0, 1) for pid, state, ticks in stats}, log)


@pytest.mark.parametrize(
    ("before", "after", "state", "part"),
    [
        (sample((5, "S", 10)), sample((5, "S", 11)), "hung", "no process of the server used more than 0.1% of a core"),
        (sample((5, "S", 10)), sample((5, "R", 510)), "slow", "rank (pid 5) used 5.0 s of CPU"),
        (sample((5, "S", 10)), sample((5, "S", 10), log=9), "slow", "its log grew by 9 bytes"),
        (sample((5, "S", 10)), sample((5, "T", 10)), "hung", "rank (pid 5) is stopped (state T)"),
        (sample((5, "S", 10), (6, "S", 0)), sample((5, "S", 10), (6, "R", 900)), "slow", "rank (pid 6)"),
    ],
)
@pytest.mark.failure_mode("hang")
def test_hung_is_told_from_slow_by_the_processes(before: Sample, after: Sample, state: str, part: str) -> None:
    verdict, evidence = liveness.judge(before, after, 10.0, 100, lambda pid: "rank")
    assert verdict == state and part in evidence
