"""Stopping a run and proving that it is gone, on real process trees, with and without a supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import files, proc, records
from gpuops_agent.records import ServerRecord, read_exit, read_server, server_alive, supervisor_alive
from gpuops_agent.wire import UNKNOWN, AgentError
from process_lab import PROGRAMS, RANK, Host, bystander, eventually, every_python, gone, kill

TREE = ("child", "session", "orphan", "daemon")


def sent(proof: dict[str, Any], pid: int) -> list[str]:
    return [each["signal"] for each in proof["signals"] if each["pid"] == pid]


@contextlib.contextmanager
def segment(name: str) -> Iterator[Path]:
    """A segment of somebody else's in /dev/shm."""
    path = Path("/dev/shm") / name
    path.write_bytes(b"x")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def recorded_segments(host: Host) -> set[str]:
    """The segments in /dev/shm that the supervisor has found to be the run's."""
    return {segment.name for segment in records.read_run(host.service).shm}


@every_python
@pytest.mark.failure_mode("children-survive")
def test_stop_ends_the_whole_tree_and_proves_it(host: Host) -> None:
    record = host.launch(*TREE, "--port", str(host.port))
    tree = [host.pid(role) for role in TREE]
    proof = host.stop()
    assert proof["clean"], proof
    assert proof["pid"] == record.pid
    assert all(map(gone, [record.pid, *tree]))
    assert not supervisor_alive(host.service)
    assert (proof["survivors"], proof["port_held"], proof["shm_left"], proof["stuck"]) == ([], [], [], [])


def test_the_server_gets_term_once_and_no_kill_when_it_drains_in_time(host: Host) -> None:
    record = host.launch()
    proof = host.stop()
    assert sent(proof, record.pid) == ["SIGTERM"]
    ended = read_exit(host.service)
    assert ended is not None and ended.signal == signal.SIGTERM


@pytest.mark.failure_mode("term-ignored")
def test_a_server_that_ignores_term_is_killed_at_the_drain_deadline(host: Host) -> None:
    record = host.launch("--ignore-term")
    proof = host.stop(drain_s=0.3)
    assert sent(proof, record.pid) == ["SIGTERM", "SIGKILL"]
    assert proof["clean"]
    ended = read_exit(host.service)
    assert ended is not None and ended.signal == signal.SIGKILL


def test_ranks_that_end_while_their_server_drains_are_no_losses(host: Host) -> None:
    host.launch("--ignore-term", f"rank:{RANK}")
    rank = host.recorded(RANK)
    driver = subprocess.Popen(
        [host.python, "-ISB", str(PROGRAMS / "driver.py"), str(host.zipapp)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    request = {"do": "stop", "root": str(host.root.path), "service": "demo", "drain_s": 60, "kill_s": 10}
    assert driver.stdin is not None
    driver.stdin.write(json.dumps(request).encode())
    driver.stdin.close()
    server = read_server(host.service)
    assert server is not None
    log = host.service.supervisor_log
    eventually(lambda: "a stop was announced" in log.read_text())
    kill(rank)
    eventually(lambda: rank not in host.recorded_pids())
    kill(server.pid)
    assert driver.wait(60) == 0
    ended = read_exit(host.service)
    assert ended is not None and ended.last_lost_rank is None


def test_nothing_running_is_a_clean_stop_without_a_pid(host: Host) -> None:
    proof = host.stop()
    assert (proof["clean"], proof["pid"], proof["signals"]) == (True, None, [])


def test_a_second_stop_finds_nothing(host: Host) -> None:
    host.launch("child")
    assert host.stop()["pid"] is not None
    proof = host.stop()
    assert (proof["clean"], proof["pid"], proof["signals"]) == (True, None, [])


@every_python
@pytest.mark.failure_mode("supervisor-killed")
def test_everything_is_swept_when_the_supervisor_was_killed_first(host: Host) -> None:
    record = host.launch(*TREE, "--port", str(host.port))
    tree = [host.recorded(role) for role in TREE]
    kill(record.supervisor.pid)
    proof = host.stop()
    assert proof["clean"], proof
    assert proof["pid"] == record.pid
    assert all(map(gone, [record.pid, *tree]))


def test_what_ignores_term_is_killed_when_the_supervisor_was_killed_first(host: Host) -> None:
    record = host.launch("stubborn")
    stubborn = host.recorded("stubborn")
    kill(record.supervisor.pid)
    proof = host.stop()
    assert sent(proof, stubborn) == ["SIGTERM", "SIGKILL"]
    assert proof["clean"] and gone(stubborn)


@every_python
@pytest.mark.failure_mode("supervisor-killed")
def test_orphans_are_swept_when_both_supervisor_and_server_were_killed(host: Host) -> None:
    record = host.launch(*TREE)
    tree = [host.recorded(role) for role in TREE]
    kill(record.supervisor.pid)
    kill(record.pid)
    assert not any(map(gone, tree))
    proof = host.stop()
    assert (proof["clean"], proof["pid"]) == (True, None)
    assert all(map(gone, tree))


def test_a_process_without_our_environment_is_known_by_its_recorded_identity(host: Host) -> None:
    record = host.launch("heritage")
    heritage = host.recorded("heritage")
    kill(record.supervisor.pid)
    kill(record.pid)
    assert (proof := host.stop())["clean"], proof
    assert gone(heritage)


def test_a_process_that_nobody_recorded_is_known_by_the_run_in_its_environment(host: Host) -> None:
    record = host.launch("daemon")
    daemon = host.recorded("daemon")
    kill(record.supervisor.pid)
    kill(record.pid)
    host.service.processes_file.unlink()
    assert (proof := host.stop())["clean"], proof
    assert gone(daemon)


def test_a_process_forked_after_the_supervisor_died_is_swept_too(host: Host) -> None:
    record = host.launch("forker")
    forker = host.recorded("forker")
    kill(record.supervisor.pid)
    os.kill(forker, signal.SIGUSR1)
    late = host.pid("late")
    kill(forker)
    proof = host.stop()
    assert proof["clean"]
    assert gone(late)


def test_a_launch_that_hangs_is_of_unknown_outcome_until_a_stop_ends_it(host: Host) -> None:
    spec = host.spec()
    os.mkfifo(spec.log_file)  # to open it for writing waits for a reader
    with pytest.raises(AgentError) as caught:
        host.drive({"do": "launch", "spec": spec.to_json(), "ack_timeout": 3.0})
    assert (caught.value.code, caught.value.kind) == (UNKNOWN, "no_supervisor")
    eventually(lambda: supervisor_alive(host.service), "the supervisor has come as far as its lock")
    assert (proof := host.stop())["clean"], proof
    assert not supervisor_alive(host.service)


def test_a_supervisor_that_hangs_is_ended_and_its_sweep_done(host: Host) -> None:
    record = host.launch("daemon")
    os.kill(record.supervisor.pid, signal.SIGSTOP)
    proof = host.stop(kill_s=0.5)
    assert sent(proof, record.supervisor.pid)[-1] == "SIGKILL"
    assert proof["clean"], proof
    assert gone(host.pid("daemon"))


def test_a_child_that_takes_over_the_port_is_ended_with_the_rest(host: Host) -> None:
    record = host.launch("heir", "--port", str(host.port))
    heir = host.recorded("heir")
    kill(record.supervisor.pid)
    kill(record.pid)
    host.pid("heir-listens")
    proof = host.stop()
    assert proof["clean"], proof
    assert gone(heir)


@pytest.mark.failure_mode("foreign-process")
def test_a_foreign_listener_on_the_port_is_named_and_left_alone(host: Host) -> None:
    host.launch()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", host.port))
        sock.listen()
        proof = host.stop()
    assert not proof["clean"]
    assert [each["pid"] for each in proof["port_held"]] == [os.getpid()]
    assert "pytest" in proof["port_held"][0]["command"] or sys.executable in proof["port_held"][0]["command"]


def forge(host: Host, **changes: Any) -> None:
    """Rewrite the PID file of a run that has ended."""
    record = host.launch()
    host.service.run.joinpath("kept.json").write_bytes(host.service.server_file.read_bytes())
    assert (proof := host.stop())["clean"], proof
    value = json.loads(host.service.run.joinpath("kept.json").read_text())
    files.write_json(host.service.server_file, {**value, **changes})
    assert record.pid


@every_python
@pytest.mark.failure_mode("pid-reused")
def test_a_reused_pid_is_not_signalled(host: Host) -> None:
    with bystander() as foreign:
        forge(host, pid=foreign.pid, pgid=foreign.pid, sid=foreign.pid, start=1)
        assert server_alive(host.service) is None
        proof = host.stop()
        assert (proof["clean"], proof["pid"], proof["signals"]) == (True, None, [])


@pytest.mark.failure_mode("pid-reused")
def test_a_reused_session_number_is_not_signalled(host: Host) -> None:
    # The server is dead, and a foreign session has got its number, all of it younger than the server.
    with bystander("sh", "-c", "sleep 600 & wait") as foreign:
        forge(host, pid=foreign.pid, pgid=foreign.pid, sid=foreign.pid, start=2)
        assert host.stop()["signals"] == []


@pytest.mark.failure_mode("stale-after-reboot")
def test_a_pid_file_of_another_boot_is_not_believed(host: Host) -> None:
    with bystander() as foreign:
        identity = proc.identify(foreign.pid)
        assert identity is not None
        forge(host, **{**identity.to_json(), "boot_id": "an earlier boot"})
        assert server_alive(host.service) is None
        assert host.stop()["signals"] == []


@pytest.mark.failure_mode("pid-namespace")
def test_a_pid_file_of_another_pid_namespace_is_not_believed(host: Host) -> None:
    with bystander() as foreign:
        identity = proc.identify(foreign.pid)
        assert identity is not None
        forge(host, **{**identity.to_json(), "pid_ns": "pid:[1]"})
        assert server_alive(host.service) is None
        assert host.stop()["signals"] == []


@pytest.mark.parametrize("pid", [0, -1, 1, "many", None])
def test_a_pid_file_with_a_pid_that_is_none_reads_as_no_server(host: Host, pid: object) -> None:
    forge(host, pid=pid)
    assert read_server(host.service) is None
    assert host.stop()["signals"] == []


@pytest.mark.parametrize("content", [b"", b"{", b"4242\n", b"\x00" * 64, b"[1]", b'{"pid": 4242}'])
@pytest.mark.failure_mode("garbled-file")
def test_an_empty_or_garbled_pid_file_reads_as_no_server(host: Host, content: bytes) -> None:
    host.service.run.mkdir(parents=True)
    host.service.server_file.write_bytes(content)
    assert server_alive(host.service) is None
    proof = host.stop()
    assert (proof["clean"], proof["pid"]) == (True, None)


@pytest.mark.failure_mode("garbled-file")
def test_a_running_server_whose_pid_file_was_garbled_is_stopped_through_its_supervisor(host: Host) -> None:
    record = host.launch(*TREE)
    host.service.server_file.write_bytes(b"{")
    proof = host.stop()
    assert proof["clean"]
    assert sent(proof, record.supervisor.pid) == ["SIGTERM"]
    assert gone(record.pid)


def test_garbled_records_of_processes_do_not_hinder_a_stop(host: Host) -> None:
    record = host.launch(*TREE)
    host.recorded("daemon")
    kill(record.supervisor.pid)
    host.service.processes_file.write_bytes(b'{"processes": [{"pid": "x"}]}')
    assert (proof := host.stop())["clean"], proof
    assert host.leftovers() == []


@pytest.mark.failure_mode("zombie")
def test_a_zombie_server_counts_as_ended(host: Host) -> None:
    record = host.launch()
    # A supervisor that does not run does not reap.
    os.kill(record.supervisor.pid, signal.SIGSTOP)
    os.kill(record.pid, signal.SIGKILL)

    def state() -> str:
        stat = proc.read_stat(record.pid)
        return stat.state if stat else "?"

    eventually(lambda: state() == "Z")
    assert server_alive(host.service) is None
    os.kill(record.supervisor.pid, signal.SIGCONT)
    assert (proof := host.stop())["clean"], proof


@pytest.mark.failure_mode("shm-leaked")
def test_shared_memory_of_a_killed_run_is_removed(host: Host) -> None:
    name = f"gpuops_test_{os.getpid()}"
    host.launch("--shm", name)
    eventually(lambda: name in recorded_segments(host))
    assert host.stop()["shm_left"] == []
    assert not (Path("/dev/shm") / name).exists()


@pytest.mark.failure_mode("shm-leaked")
def test_shared_memory_of_a_run_without_supervisor_is_removed(host: Host) -> None:
    name = f"gpuops_test_{os.getpid()}"
    record = host.launch("--shm", name)
    kill(record.supervisor.pid)
    assert (proof := host.stop())["clean"], proof
    assert not (Path("/dev/shm") / name).exists()


@pytest.mark.failure_mode("shm-leaked")
@pytest.mark.parametrize("found", [True, False], ids=["that the supervisor has found", "that only the stop has found"])
def test_shared_memory_that_a_foreign_process_has_mapped_is_reported_and_left(host: Host, found: bool) -> None:
    name = f"gpuops_test_{os.getpid()}"
    path = Path("/dev/shm") / name
    record = host.launch("--shm", name)
    eventually(path.exists)
    if found:
        eventually(lambda: name in recorded_segments(host))
    else:
        kill(record.supervisor.pid)
        run = dataclasses.replace(records.read_run(host.service), shm=frozenset())
        files.write_json(host.service.processes_file, run.to_json())
    with path.open("rb"):
        proof = host.stop()
        assert (proof["clean"], proof["shm_left"]) == (False, [name])
        assert path.exists()
    assert (proof := host.stop())["clean"], proof
    assert not path.exists()


def test_shared_memory_that_was_there_before_the_run_is_left_although_the_run_used_it(host: Host) -> None:
    with segment(f"gpuops_test_{os.getpid()}") as path:
        host.launch("child", "--shm", path.name)
        host.recorded("child")
        assert (proof := host.stop())["clean"], proof
        assert path.exists()


def test_a_segment_of_a_stranger_is_left_alone(host: Host) -> None:
    host.launch("child")
    with segment(f"gpuops_test_{os.getpid()}") as path:
        host.recorded("child")
        assert (proof := host.stop())["clean"], proof
        assert path.exists()


def test_a_segment_named_after_a_process_of_the_run_is_removed(host: Host) -> None:
    record = host.launch("child")
    host.recorded("child")
    with segment(f"torch_{record.pid}_1234_0") as path:
        eventually(lambda: path.name in recorded_segments(host))
        assert (proof := host.stop())["clean"], proof
        assert not path.exists()


def test_the_pid_file_is_taken_away_by_a_clean_stop_and_the_exit_stays(host: Host) -> None:
    record = host.launch()
    host.stop()
    assert not host.service.server_file.exists()
    ended = read_exit(host.service)
    assert ended is not None and ended.pid == record.pid


def test_the_proof_is_json_without_the_secrets_of_the_command_line(host: Host) -> None:
    (host.root.secrets / "KEY").write_text("s3cr3t-value")
    host.launch("@{secret:KEY}", "--ignore-term")
    host.recorded("server")
    answer = host.drive({"do": "stop", "root": str(host.root.path), "service": "demo", "drain_s": 0.1, "kill_s": 10})
    assert answer["proof"]["clean"] and answer["notes"]
    assert "s3cr3t-value" not in json.dumps(answer)


def test_a_record_survives_json(host: Host) -> None:
    record = host.launch()
    assert ServerRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
