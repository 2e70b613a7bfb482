"""Process identity, on real processes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpuops_agent import proc
from gpuops_agent.proc import Identity
from gpuops_agent.wire import AgentError
from process_lab import eventually

NOBODY = 65534


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def identity_of(process: subprocess.Popen[bytes]) -> Identity:
    identity = proc.identify(process.pid)
    assert identity is not None
    return identity


def as_nobody(work: Callable[[], str]) -> str:
    """What ``work`` returns when another user does it, or the traceback of what it raised.

    That user may not read our Python: what ``work`` imports, codecs too, must be imported already.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write, work().encode())
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def test_a_name_with_spaces_and_parentheses_does_not_confuse_the_parser(tmp_path: Path) -> None:
    program = tmp_path / "x) Z 1 (y"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([program, "600"])
    try:
        stat = eventually(lambda: (found := proc.read_stat(process.pid)) and found.comm == program.name and found)
        assert (stat.pid, stat.ppid, stat.living) == (process.pid, os.getpid(), True)
    finally:
        process.kill()
        process.wait()


def test_a_cut_stat_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="cut"):
        proc.parse_stat(b"12 (sleep) S 1 2")


def test_stat_agrees_with_the_system(sleeper: subprocess.Popen[bytes]) -> None:
    stat = proc.read_stat(sleeper.pid)
    assert stat is not None
    assert (stat.ppid, stat.pgid, stat.sid) == (os.getpid(), os.getpgid(sleeper.pid), os.getsid(sleeper.pid))
    assert stat.start / os.sysconf("SC_CLK_TCK") == pytest.approx(proc.boottime(), abs=600)


def test_a_living_process_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    assert proc.alive(identity_of(sleeper))


@pytest.mark.failure_mode("zombie")
def test_a_zombie_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    os.kill(sleeper.pid, signal.SIGKILL)
    eventually(lambda: (stat := proc.read_stat(sleeper.pid)) and stat.state == "Z")
    os.kill(sleeper.pid, 0)  # the kernel still takes signals for it
    assert not proc.alive(identity)
    assert proc.open_pidfd(identity) is None
    assert not proc.send(identity, signal.SIGTERM)


@pytest.mark.parametrize("change", [{"start": 1}, {"boot_id": "other"}, {"pid_ns": "pid:[1]"}])
@pytest.mark.failure_mode("pid-reused")
def test_an_identity_that_differs_in_anything_is_never_signalled(
    sleeper: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    other = dataclasses.replace(identity_of(sleeper), **change)
    assert not proc.alive(other)
    assert not proc.send(other, signal.SIGKILL)
    assert proc.wait_gone(other, 0)
    assert sleeper.poll() is None


def test_a_signal_reaches_the_process_and_the_wait_ends(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    pidfd = proc.open_pidfd(identity)
    assert pidfd is not None
    assert not proc.wait_exit(pidfd, 0.01)
    assert proc.send(identity, signal.SIGTERM)
    assert proc.wait_exit(pidfd, 30)
    os.close(pidfd)
    assert sleeper.wait() == -signal.SIGTERM


def test_pidfds_work_without_the_standard_library(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(signal, "pidfd_send_signal")
    identity = identity_of(sleeper)
    assert not proc.wait_gone(identity, 0)
    assert proc.send(identity, signal.SIGTERM)
    assert proc.wait_gone(identity, 30)
    assert sleeper.wait() == -signal.SIGTERM
    assert not proc.send(identity, signal.SIGTERM)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
@pytest.mark.failure_mode("eperm")
def test_another_users_process_is_alive_but_cannot_be_signalled_and_is_named(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)

    def attempt() -> str:
        assert proc.alive(identity)
        try:
            proc.send(identity, signal.SIGTERM)
        except AgentError as error:
            return f"{error.kind}|{error.what}|{error.evidence}|{error.next}"
        return "sent"

    kind, what, evidence, after = as_nobody(attempt).split("|")
    assert kind == "not_permitted"
    assert f"process {sleeper.pid} (sleep 600)" in what
    assert evidence == f"SIGTERM: Operation not permitted; it runs as uid 0, we are uid {NOBODY}"
    assert after == f"end it as its own user: kill {sleeper.pid}"
    assert sleeper.poll() is None


def test_an_identity_survives_json(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    assert Identity.from_json(identity.to_json()) == identity


@pytest.mark.parametrize("pid", [0, 1, -1, "x", None])
def test_a_number_that_means_no_single_process_is_no_identity(pid: object) -> None:
    with pytest.raises(ValueError, match=r"identity|literal"):
        Identity.from_json({"pid": pid, "start": 5, "boot_id": "b", "pid_ns": "n"})


def test_descendants_are_the_whole_tree_below() -> None:
    process = subprocess.Popen(["sh", "-c", "sh -c 'sleep 600 & wait' & wait"])
    try:
        below = eventually(lambda: [stat for stat in proc.descendants(process.pid) if stat.comm == "sleep"])
        assert process.pid not in {stat.pid for stat in proc.descendants(process.pid)}
        assert below[0].ppid in {stat.pid for stat in proc.descendants(process.pid)}
    finally:
        for stat in proc.descendants(process.pid):
            os.kill(stat.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def test_a_title_set_through_the_arguments_is_read_back() -> None:
    process = subprocess.Popen(["sglang::scheduler_TP0", "600"], executable="/bin/sleep")
    try:
        eventually(lambda: proc.title(process.pid) == "sglang::scheduler_TP0 600")
        assert proc.cmdline(process.pid) == ["sglang::scheduler_TP0", "600"]
    finally:
        process.kill()
        process.wait()


def test_a_title_shows_no_values_of_key_options() -> None:
    words = [
        "--api-key",
        "hush",
        "--admin-api-key=hush",
        "--hf-token",
        "hush",
        "--tokenizer-path",
        "shown",
        "--max-total-tokens",
        "9",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", *words], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        title = proc.title(process.pid)
        assert "hush" not in title
        assert title.endswith("--tokenizer-path shown --max-total-tokens 9")
    finally:
        process.kill()
        process.communicate()
