"""What the sandbox needs on this machine: OpenSSH's server and client, and rsync.

As root on a Debian-like system they are installed, and that is said; otherwise the error names the command to run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuops.errors import Exit, GpuopsError

SSHD = Path("/usr/sbin/sshd")
"""sshd must be started by its absolute path (it re-executes itself for every connection)."""

# An init script may start a service at installation only when this file lets it (Debian policy, section 9.3.3.1).
_POLICY = Path("/usr/sbin/policy-rc.d")
_INSTALL_S = 300.0

# dpkg puts sshd in its place before it makes the user that sshd wants: who looks meanwhile finds one that does not start.
_LOCK = Path("/run/gpuops-prerequisites.lock")


def ensure(note: Callable[[str], None] = lambda text: None) -> None:
    """Make sure that sshd, the ssh client tools and rsync are there.

    Args:
        note: is told, before it happens, what will be installed.

    Raises:
        GpuopsError: HOST_UNFIT, they are missing and cannot be installed by us; ``next`` is the command to run.
    """
    if not Path("/proc/self/stat").exists():
        raise GpuopsError(
            "the sandbox runs on Linux only", evidence="there is no /proc here", code=Exit.HOST_UNFIT, kind="no_sandbox"
        )
    with _alone():
        _provide(note)


def _provide(note: Callable[[str], None]) -> None:
    packages = missing_packages()
    if not packages:
        return
    command = f"apt-get install --no-install-recommends -y {' '.join(packages)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise GpuopsError(
            f"the sandbox needs {' and '.join(packages)}",
            evidence="not installed, and installing needs root and apt-get",
            next=f"sudo {command}",
            code=Exit.HOST_UNFIT,
            kind="missing_packages",
        )
    note(f"installing {' and '.join(packages)} with apt-get (no service is started)")
    _install(packages, command)


def missing_packages() -> list[str]:
    """The Debian packages that have to be installed first."""
    needs = {
        "openssh-server": SSHD.exists(),
        "openssh-client": shutil.which("ssh") is not None and shutil.which("ssh-keygen") is not None,
        "rsync": shutil.which("rsync") is not None,
    }
    return [package for package, present in needs.items() if not present]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait for an installation of ours that runs already; only root installs, so nobody else waits."""
    if os.geteuid() != 0:
        yield
        return
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go with the file
        yield


def _install(packages: list[str], command: str) -> None:
    held = _hold_services() if "openssh-server" in packages else False
    try:
        _apt(["update"], command)
        _apt(["install", "--no-install-recommends", "-y", *packages], command)
    finally:
        if held:
            _POLICY.unlink(missing_ok=True)
    if "openssh-server" in packages and Path("/run/systemd/system").exists():
        # The package enables a system-wide sshd at the next boot; nobody asked us for one.
        subprocess.run(["systemctl", "disable", "ssh.service", "ssh.socket"], capture_output=True, check=False, timeout=60)


def _hold_services() -> bool:
    """Keep the package from starting a system-wide sshd on port 22. False when the machine has a policy of its own."""
    try:
        with _POLICY.open("x", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        return False
    _POLICY.chmod(0o755)
    return True


def _apt(words: list[str], command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Another installation may be running; apt waits for its lock instead of failing.
    argv = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "-q", *words]
    done = subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_INSTALL_S,
        check=False,
    )
    if done.returncode != 0:
        raise GpuopsError(
            f"apt-get {words[0]} failed",
            evidence=(done.stderr or done.stdout).strip()[-800:],
            next=command,
            code=Exit.HOST_UNFIT,
            kind="missing_packages",
        )
