"""The supervisor: launching, watching, and what it writes down, on real processes through the real zipapp."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from gpuops_agent import proc
from gpuops_agent.records import (
    LaunchSpec,
    lost_ranks,
    read_exit,
    read_server,
    run_processes,
    server_alive,
    supervisor_alive,
)
from gpuops_agent.wire import REFUSED, AgentError
from process_lab import PROGRAMS, RANK, Host, eventually, every_python, gone, kill


@every_python
@pytest.mark.failure_mode("session-closed-first")
def test_launch_returns_the_record_of_a_server_that_runs(host: Host) -> None:
    record = host.launch("child")
    assert record.identity == proc.identify(host.pid("server"))
    assert record == read_server(host.service) == server_alive(host.service)
    assert supervisor_alive(host.service)


def test_server_and_supervisor_lead_sessions_of_their_own(host: Host) -> None:
    record = host.launch()
    assert record.pid == record.sid == os.getsid(record.pid)
    assert record.pid == record.pgid == os.getpgid(record.pid)
    assert record.supervisor.pid == os.getsid(record.supervisor.pid)


@pytest.mark.failure_mode("fork-before-file")
def test_server_json_names_the_supervisor_and_release_and_port(host: Host) -> None:
    record = host.launch(release=7)
    written = json.loads(host.service.server_file.read_text())
    stat = proc.read_stat(record.pid)
    assert stat is not None
    assert written["supervisor"]["pid"] == stat.ppid
    assert (written["release"], written["port"]) == (7, host.port)
    assert Path(written["executable"]) == Path(host.python)


@pytest.mark.failure_mode("channel-held-open")
def test_the_server_has_its_own_session_default_signals_and_no_descriptor_of_the_supervisor(host: Host) -> None:
    # A shell, not Python, which itself ignores PIPE and XFSZ: it shows what it was given.
    shell = "grep -E '^(SigBlk|SigIgn):' /proc/self/status; ls -l /proc/$$/fd; readlink /proc/$$/fd/0; exec sleep 600"
    host.launch_spec(host.spec(argv=["/bin/sh", "-c", shell]))
    log = host.service.server_log(1)
    text = eventually(lambda: log.read_text() if "/dev/null\n" in log.read_text() else "")
    assert "SigBlk:\t0000000000000000" in text
    ignored = int(re.search(r"SigIgn:\t([0-9a-f]+)", text)[1], 16)  # type: ignore[index]
    # 32 and 33 belong to the C library, and nobody can set them back.
    assert ignored & ~(0b11 << 31) == 0
    descriptors = [line.split(" -> ")[1] for line in text.splitlines() if " -> " in line]
    assert sorted(descriptors) == sorted(["/dev/null", str(log), str(log)])


@pytest.mark.failure_mode("lock-inherited")
def test_the_supervisor_lock_is_not_inherited_by_the_server(host: Host) -> None:
    record = host.launch("daemon")
    kill(record.supervisor.pid)
    assert not supervisor_alive(host.service)
    assert server_alive(host.service) is not None


@pytest.mark.failure_mode("log-grows")
def test_the_server_log_is_appended_to(host: Host) -> None:
    spec = host.spec(argv=["/bin/echo", "second"])
    spec.log_file.write_text("first\n")
    host.launch_spec(spec)
    eventually(lambda: read_exit(host.service))
    assert spec.log_file.read_text() == "first\nsecond\n"


@every_python
@pytest.mark.failure_mode("channel-held-open")
def test_a_launcher_with_pipes_is_let_go_while_the_server_lives_on(host: Host) -> None:
    request = {"do": "launch", "spec": host.spec("child").to_json()}
    launcher = subprocess.Popen(
        [host.python, "-ISB", str(PROGRAMS / "driver.py"), str(host.zipapp)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # Returns at the end of file of both pipes: as an ssh channel does.
    answer, errors = launcher.communicate(json.dumps(request).encode(), timeout=60)
    assert launcher.returncode == 0, errors
    assert not gone(json.loads(answer)["result"]["pid"])


@pytest.mark.failure_mode("hangup")
def test_the_server_survives_a_hangup_of_its_launchers_process_group(host: Host) -> None:
    request = {"do": "launch", "spec": host.spec().to_json()}
    launcher = subprocess.Popen(
        [host.python, "-ISB", "-c", f"import runpy,sys,signal;sys.argv[1:]=[{str(host.zipapp)!r}];"
         f"runpy.run_path({str(PROGRAMS / 'driver.py')!r});signal.pause()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert launcher.stdin is not None and launcher.stdout is not None
    launcher.stdin.write(json.dumps(request).encode())
    launcher.stdin.close()
    record = json.loads(launcher.stdout.readline())["result"]
    os.killpg(launcher.pid, signal.SIGHUP)
    launcher.wait()
    launcher.stdout.close()
    assert not gone(record["pid"])
    assert supervisor_alive(host.service)


def test_a_second_launch_is_refused_and_names_the_supervisor(host: Host) -> None:
    record = host.launch()
    with pytest.raises(AgentError) as caught:
        host.launch_spec(host.spec(release=2))
    assert caught.value.code == REFUSED
    assert str(record.supervisor.pid) in caught.value.what
    assert f"release 1, pid {record.pid}" in caught.value.evidence
    assert server_alive(host.service) == record


@pytest.mark.failure_mode("supervisor-killed")
def test_a_launch_beside_a_server_whose_supervisor_died_is_refused(host: Host) -> None:
    record = host.launch()
    kill(record.supervisor.pid)
    with pytest.raises(AgentError) as caught:
        host.launch_spec(host.spec(release=2))
    assert caught.value.kind == "server_alive"
    assert server_alive(host.service) == record


def test_asking_whether_a_supervisor_lives_does_not_hinder_a_launch(host: Host) -> None:
    host.service.run.mkdir(parents=True)
    host.service.supervisor_lock.touch()
    asker = subprocess.Popen(["flock", "--shared", str(host.service.supervisor_lock), "sleep", "0.3"])
    host.launch()
    asker.wait()


@every_python
@pytest.mark.failure_mode("program-missing")
def test_a_program_that_does_not_exist_is_a_clear_error(host: Host) -> None:
    with pytest.raises(AgentError) as caught:
        host.launch_spec(host.spec(argv=["/nowhere/python", "-m", "server"]))
    assert caught.value.kind == "exec_failed"
    assert caught.value.what == "the server could not be started: No such file or directory"
    assert "execve /nowhere/python" in caught.value.evidence and "ENOENT" in caught.value.evidence
    assert read_server(host.service) is None
    eventually(lambda: not supervisor_alive(host.service))


def test_a_program_that_may_not_be_executed_is_a_clear_error(host: Host) -> None:
    program = host.folder / "program"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(AgentError) as caught:
        host.launch_spec(host.spec(argv=[str(program)]))
    assert "EACCES" in caught.value.evidence and "mode bits" in caught.value.next


def test_a_working_folder_that_does_not_exist_is_a_clear_error(host: Host) -> None:
    spec = LaunchSpec.from_json({**host.spec().to_json(), "cwd": "/nowhere"})
    with pytest.raises(AgentError) as caught:
        host.launch_spec(spec)
    assert "chdir /nowhere" in caught.value.evidence


def test_a_program_without_a_slash_is_found_on_its_own_path(host: Host) -> None:
    folder = host.folder / "bin"
    folder.mkdir()
    (folder / "myserver").symlink_to("/bin/sleep")
    record = host.launch_spec(host.spec(argv=["myserver", "600"], env={"PATH": str(folder)}))
    assert record.executable == str(folder / "myserver")


def test_a_missing_secret_is_named_and_nothing_is_started(host: Host) -> None:
    with pytest.raises(AgentError) as caught:
        host.launch_spec(host.spec(env={"HF_TOKEN": "@{secret:HF_TOKEN}"}))
    assert caught.value.kind == "secret_missing" and "HF_TOKEN" in caught.value.what
    assert read_server(host.service) is None


@every_python
def test_secrets_reach_the_server_and_lie_nowhere_on_disk(host: Host) -> None:
    (host.root.secrets / "KEY").write_text("s3cr3t-value\n")
    record = host.launch("child", f"rank:{RANK} --api-key s3cr3t-value", env={"TOKEN": "Bearer @{secret:KEY}"})
    host.recorded("child")
    eventually(lambda: any(title.startswith(RANK) for _, title in run_processes(host.service)))
    assert b"TOKEN=Bearer s3cr3t-value\0" in Path(f"/proc/{record.pid}/environ").read_bytes()
    kill(host.pid(f"{RANK} --api-key s3cr3t-value"))
    eventually(lambda: lost_ranks(host.service))
    host.stop()
    written = [file for file in host.service.path.rglob("*") if file.is_file()]
    assert {host.service.processes_file, host.service.supervisor_log} <= set(written)
    assert [file for file in written if b"s3cr3t-value" in file.read_bytes()] == []


def test_a_secret_in_the_arguments_is_redacted_in_the_recorded_titles(host: Host) -> None:
    (host.root.secrets / "KEY").write_text("s3cr3t-value")
    record = host.launch_spec(host.spec(argv=["/bin/sh", "-c", "sleep 600; true", "@{secret:KEY}"]))
    titles = eventually(lambda: {identity.pid: title for identity, title in run_processes(host.service)})
    assert titles[record.pid].endswith("@{secret:KEY}")
    assert "s3cr3t-value" in proc.title(record.pid)


def test_every_descendant_is_recorded_with_its_identity(host: Host) -> None:
    record = host.launch("child", "session", "orphan", "daemon")
    expected = {record.pid, *map(host.recorded, ("child", "session", "orphan", "daemon"))}
    recorded = dict(run_processes(host.service))
    assert {identity.pid for identity in recorded} == expected
    assert all(proc.alive(identity) for identity in recorded)


@pytest.mark.failure_mode("children-survive")
def test_an_orphan_becomes_a_child_of_the_supervisor_and_is_reaped(host: Host) -> None:
    record = host.launch("daemon")
    daemon = host.pid("daemon")
    stat = proc.read_stat(daemon)
    assert stat is not None and stat.ppid == record.supervisor.pid
    kill(daemon)
    eventually(lambda: proc.read_stat(daemon) is None, "reaped")


@every_python
@pytest.mark.failure_mode("server-died")
def test_a_killed_server_leaves_its_signal_in_exit_json(host: Host) -> None:
    record = host.launch("child")
    os.kill(record.pid, signal.SIGKILL)
    ended = eventually(lambda: read_exit(host.service))
    assert (ended.pid, ended.release, ended.code, ended.signal) == (record.pid, 1, None, 9)
    assert ended.boot == proc.boot_id()
    assert server_alive(host.service) is None


def test_a_server_that_exits_leaves_its_code_in_exit_json(host: Host) -> None:
    host.launch_spec(host.spec("--exit", "3"))
    ended = eventually(lambda: read_exit(host.service))
    assert (ended.code, ended.signal, ended.last_lost_rank) == (3, None, None)


def test_exit_json_is_written_before_what_was_left_behind_is_swept(host: Host) -> None:
    record = host.launch("stubborn")
    stubborn = host.recorded("stubborn")
    os.kill(record.pid, signal.SIGKILL)
    eventually(lambda: read_exit(host.service))
    assert not gone(stubborn)  # it ignores TERM, so the grace period has just begun
    assert supervisor_alive(host.service)


@pytest.mark.failure_mode("children-survive")
def test_the_supervisor_sweeps_the_whole_tree_and_goes(host: Host) -> None:
    roles = ("child", "session", "orphan", "daemon", "heritage")
    record = host.launch(*roles)
    tree = [host.pid(role) for role in roles]
    os.kill(record.pid, signal.SIGKILL)
    eventually(lambda: gone(record.supervisor.pid))
    assert all(map(gone, tree))
    assert not supervisor_alive(host.service)
    assert run_processes(host.service) == []


@pytest.mark.failure_mode("rank-lost")
def test_a_rank_that_dies_is_noted_while_the_server_lives(host: Host) -> None:
    record = host.launch(f"rank:{RANK}", "child")
    rank = host.recorded(RANK)
    eventually(lambda: any(title.startswith(RANK) for _, title in run_processes(host.service)))
    kill(rank)
    (lost,) = eventually(lambda: lost_ranks(host.service))
    assert lost.pid == rank and lost.title.startswith(RANK)
    assert server_alive(host.service) == record
    os.kill(record.pid, signal.SIGKILL)
    ended = eventually(lambda: read_exit(host.service))
    assert ended.last_lost_rank == lost


@pytest.mark.failure_mode("candidate-dies")
def test_a_rank_that_goes_down_with_its_server_is_not_lost(host: Host) -> None:
    """The kernel kills the rank when the server's main thread has ended, and tells the supervisor when all of its threads have."""
    done = host.folder / "done"
    record = host.launch("--linger", str(done), f"bound:{RANK}")
    rank = host.recorded(RANK)
    eventually(lambda: any(title.startswith(RANK) for _, title in run_processes(host.service)))
    os.kill(record.pid, signal.SIGKILL)
    eventually(lambda: rank not in host.recorded_pids())
    assert read_exit(host.service) is None, "the server still has a thread"
    done.touch()
    ended = eventually(lambda: read_exit(host.service))
    assert (ended.signal, ended.last_lost_rank) == (9, None)
    assert lost_ranks(host.service) == []


@pytest.mark.failure_mode("rank-lost")
def test_a_copy_that_a_rank_forked_of_itself_is_no_rank(host: Host) -> None:
    """Between fork and exec a child shows its parent's arguments: a rank that starts a program is two for a moment."""
    host.launch(f"fork:{RANK}")
    rank, copy = host.recorded(RANK), host.recorded("copy")
    eventually(
        lambda: all(title.startswith(RANK) for pid in (rank, copy) for it, title in run_processes(host.service) if it.pid == pid)
    )
    kill(copy)
    eventually(lambda: copy not in host.recorded_pids())
    assert lost_ranks(host.service) == []
    kill(rank)
    assert [lost.pid for lost in eventually(lambda: lost_ranks(host.service))] == [rank]


def test_a_process_that_is_no_rank_is_not_lost_when_it_ends(host: Host) -> None:
    host.launch("child", f"rank:{RANK}")
    child = host.recorded("child")
    eventually(lambda: any(title.startswith(RANK) for _, title in run_processes(host.service)))
    kill(child)
    eventually(lambda: child not in host.recorded_pids())
    assert lost_ranks(host.service) == []


def test_ranks_that_end_in_an_announced_stop_are_not_lost(host: Host) -> None:
    host.launch(f"rank:{RANK}", "--ignore-term")
    rank = host.recorded(RANK)
    supervisor = read_server(host.service)
    assert supervisor is not None
    proc.send(supervisor.supervisor, signal.SIGUSR1)
    kill(rank)
    eventually(lambda: rank not in host.recorded_pids())
    assert lost_ranks(host.service) == []


def test_term_to_the_supervisor_is_passed_on_and_it_stays_until_the_server_ends(host: Host) -> None:
    record = host.launch()
    proc.send(record.supervisor, signal.SIGTERM)
    ended = eventually(lambda: read_exit(host.service))
    assert ended.signal == signal.SIGTERM
    eventually(lambda: not supervisor_alive(host.service))


@pytest.mark.failure_mode("hangup")
def test_the_supervisor_ignores_a_hangup(host: Host) -> None:
    record = host.launch()
    proc.send(record.supervisor, signal.SIGHUP)
    proc.send(record.supervisor, signal.SIGINT)
    os.kill(record.pid, signal.SIGKILL)
    assert eventually(lambda: read_exit(host.service)).signal == 9


def test_a_new_launch_forgets_the_exit_of_the_last_server(host: Host) -> None:
    first = host.launch_spec(host.spec("--exit", "0"))
    eventually(lambda: not supervisor_alive(host.service) and read_exit(host.service))
    second = host.launch(release=2)
    assert second.pid != first.pid and second.run != first.run
    assert read_exit(host.service) is None


def test_a_launch_spec_survives_json(host: Host) -> None:
    spec = host.spec("--port", "1", env={"A": "@{secret:B}"})
    assert LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
