"""The end of a login session, under a real systemd that is process 1 of namespaces of its own."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpuops_agent import proc
from process_lab import PROGRAMS, eventually

REMOTE = Path(__file__).parents[2] / "remote"


class Systemd:
    """A booted systemd; :meth:`run` executes beside it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-C", "-i", *argv]
        return subprocess.run(inside, capture_output=True, text=True, timeout=60)

    def check(self, *argv: str) -> str:
        done = self.run(*argv)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    needed = ("unshare", "nsenter", "systemctl", "systemd-run")
    if os.geteuid() != 0 or not all(map(shutil.which, needed)):
        pytest.skip(f"needs root and {', '.join(needed)}")
    folder, name = tmp_path_factory.mktemp("systemd"), f"gpuops-test-{secrets.token_hex(4)}"
    boot = ["unshare", "--mount", "bash", str(PROGRAMS / "systemd_lab.sh"), str(folder), name]
    process = subprocess.Popen(boot, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        booted = eventually(lambda: process.poll() is not None or _process_1(process.pid), "systemd is process 1")
        if process.poll() is not None:
            assert process.stdout is not None
            pytest.skip(f"systemd cannot be booted here: {process.stdout.read().decode().strip()[-300:]}")
        made = Systemd(int(booted))
        eventually(lambda: made.run("systemctl", "is-system-running").stdout.strip() == "running", "systemd has booted")
        yield made
    finally:
        pid = _process_1(process.pid)
        if pid:
            # The end of process 1 is the end of all of its namespace.
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()
        if pid:
            _remove_groups(folder / "cgroup", name)


def _process_1(parent: int) -> int:
    return next((stat.pid for stat in proc.descendants(parent) if stat.comm == "systemd"), 0)


def _remove_groups(mount: Path, name: str) -> None:
    script = f"mount -t cgroup2 cgroup2 {mount} && find {mount}/{name} -depth -type d -exec rmdir {{}} +"
    remove = ["unshare", "--mount", "sh", "-c", script]
    # A group can be removed when the kernel has done with the last of its processes.
    eventually(lambda: subprocess.run(remove, capture_output=True, timeout=60).returncode == 0, f"{name} is removed")


def start_in_a_login_session(systemd: Systemd, session: str, how: str, lock: Path) -> str:
    """Start a long-lived process from within the scope of a login session, as logind makes one; what it said."""
    client = [sys.executable, str(PROGRAMS / "longlived.py"), str(REMOTE), how, str(lock)]
    return systemd.check("systemd-run", "--scope", "--quiet", f"--unit={session}", *client).strip()


def log_out(systemd: Systemd, session: str) -> None:
    """What logind does at a logout with KillUserProcesses=yes. The scope is gone already when nothing was left in it."""
    systemd.run("systemctl", "stop", session)
    eventually(
        lambda: session not in systemd.check("systemctl", "list-units", "--no-legend", "--type=scope"), "the session has ended"
    )


def lives(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_logout_ends_a_process_that_only_has_a_session_of_its_own(systemd: Systemd, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    said = start_in_a_login_session(systemd, "session-7.scope", "plain", lock)
    assert said.endswith("/session-7.scope") and lives(lock)
    log_out(systemd, "session-7.scope")
    assert not lives(lock)


def test_a_logout_spares_a_process_that_was_started_with_the_prefix(systemd: Systemd, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    said = start_in_a_login_session(systemd, "session-8.scope", "prefix", lock)
    assert said.startswith("word 0::/system.slice/gpuops-demo-supervisor-")
    log_out(systemd, "session-8.scope")
    assert lives(lock)
    unit = said.rpartition("/")[2]
    shown = systemd.check("systemctl", "show", unit).splitlines()
    assert "Description=gpuops supervisor of demo in /srv/gpuops" in shown
    # Where scopes have an OOM policy at all, ours lets the others live.
    assert [line for line in shown if line.startswith("OOMPolicy=")] in ([], ["OOMPolicy=continue"])
    systemd.check("systemctl", "stop", unit)
    assert not lives(lock), "and stopping the unit ends it"
