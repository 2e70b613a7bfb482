"""Is the host fit to serve: room on its disks and in /dev/shm, limits, a sane clock, a /proc that can be read."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import List, Optional, Tuple

from . import shm
from .check import FAIL, OK, UNKNOWN, WARN, Finding, Subject
from .preflight import FREE_DISK_BYTES

_DISK_WARN_BYTES = 2 << 30
_FREE_SHARE = 0.05
# PyTorch and NCCL share memory between ranks; Docker gives a container 64 MiB unless --shm-size says more.
_SHM_BYTES = 1 << 30
_SHM_USED_SHARE = 0.8
# SGLang wants this many descriptors and raises the soft limit itself as far as the hard one goes (sglang.srt.utils.set_ulimit).
_DESCRIPTORS = 65535
_OLDEST_PYTHON = (3, 9)
# The wall clock is wrong when it is before this: 2025-01-01.
_EARLIEST = 1735689600
_CLOCK_DRIFT_S = 5.0


def disk(subject: Subject) -> Finding:
    """Free bytes of ROOT's disk."""
    used = os.statvfs(subject.root.path)
    free = used.f_bavail * used.f_frsize
    evidence = f"{subject.root.path}: {free >> 20} of {used.f_blocks * used.f_frsize >> 20} MiB free"
    if free < FREE_DISK_BYTES:
        return Finding(FAIL, "the disk is full: the next rollout will be refused", evidence, f"df -h {subject.root.path}")
    if free < _DISK_WARN_BYTES:
        return Finding(WARN, "the disk is nearly full", evidence, f"df -h {subject.root.path}")
    return Finding(OK, "the disk has room", evidence)


def inodes(subject: Subject) -> Finding:
    """Free inodes of ROOT's disk: a runtime has tens of thousands of files."""
    used = os.statvfs(subject.root.path)
    if not used.f_files:
        return Finding(OK, "this file system has no fixed number of inodes", str(subject.root.path))
    share = used.f_favail / used.f_files
    evidence = f"{used.f_favail} of {used.f_files} free"
    if share < _FREE_SHARE:
        return Finding(WARN if used.f_favail else FAIL, "inodes run out", evidence, f"df -i {subject.root.path}")
    return Finding(OK, "there are inodes enough", evidence)


def shared_memory(subject: Subject, folder: str = shm.FOLDER) -> Finding:
    """Size and use of /dev/shm."""
    used = os.statvfs(folder)
    total = used.f_blocks * used.f_frsize
    taken = total - used.f_bfree * used.f_frsize
    evidence = f"{taken >> 20} of {total >> 20} MiB used"
    if total < _SHM_BYTES:
        return Finding(
            WARN, f"{folder} is small: several ranks may die with a bus error", evidence, "start the container with --shm-size"
        )
    if taken > _SHM_USED_SHARE * total:
        return Finding(WARN, f"{folder} is nearly full", evidence, f"ls -lS {folder}")
    return Finding(OK, f"{folder} has room", evidence)


def python(subject: Subject) -> Finding:
    """The Python that runs the agent."""
    version = "{}.{}.{}".format(*sys.version_info[:3])
    state = OK if sys.version_info[:2] >= _OLDEST_PYTHON else FAIL
    return Finding(state, f"Python {version}", sys.executable)


def clock(subject: Subject) -> Finding:
    """The clock that deadlines are kept by goes on, and the one that people read is not absurd."""
    boot, monotonic = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
    evidence = (
        f"CLOCK_BOOTTIME {boot:.0f} s, CLOCK_MONOTONIC {monotonic:.0f} s, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}"
    )
    if boot < monotonic - _CLOCK_DRIFT_S or boot <= 0:
        return Finding(FAIL, "CLOCK_BOOTTIME is behind CLOCK_MONOTONIC: deadlines cannot be kept", evidence)
    if time.time() < _EARLIEST:
        return Finding(
            WARN, "the wall clock is wrong: times in the journal mean nothing", evidence, "set the clock (timedatectl)"
        )
    return Finding(OK, "the clocks are sane", evidence)


def descriptors(subject: Subject) -> Finding:
    """The limit of open files, of the server that runs or else of what we would start."""
    (soft, hard), evidence = resource.getrlimit(resource.RLIMIT_NOFILE), "of a process that the agent starts"
    for record in subject.servers:
        limits = _limits(record.pid)
        if limits is not None:
            (soft, hard), evidence = limits, f"of the server, pid {record.pid}"
    evidence = f"soft {soft}, hard {hard}, {evidence}"
    if 0 <= hard < _DESCRIPTORS:
        advice = "raise LimitNOFILE, or nofile in /etc/security/limits.d/, and log in again"
        return Finding(WARN, f"at most {hard} open files: many connections will be refused", evidence, advice)
    return Finding(OK, "enough open files are allowed", evidence)


def hidepid(subject: Subject) -> Finding:
    """Whether /proc shows us other users' processes: what we cannot see we cannot name."""
    options = _mount_options(Path("/proc/self/mountinfo"), "/proc")
    if options is None:
        return Finding(UNKNOWN, "no mount of /proc is listed", "/proc/self/mountinfo")
    hidden = [option for option in options if option.startswith("hidepid=") and option not in ("hidepid=0", "hidepid=off")]
    if hidden and os.geteuid() != 0:
        return Finding(
            WARN, "other users' processes are hidden: one that holds our port cannot be named", f"/proc is mounted {hidden[0]}"
        )
    return Finding(OK, "/proc shows all processes", f"mounted {','.join(hidden)}, but we are root" if hidden else "")


def _limits(pid: int) -> Optional[Tuple[int, int]]:
    try:
        with open(f"/proc/{pid}/limits", encoding="ascii") as file:
            row = next(row for row in file if row.startswith("Max open files"))
    except (OSError, StopIteration):
        return None
    soft, hard = row.split()[3:5]
    return _limit(soft), _limit(hard)


def _limit(text: str) -> int:
    return -1 if text == "unlimited" else int(text)


def _mount_options(mountinfo: Path, point: str) -> Optional[List[str]]:
    """The super block's options of what is mounted last at a place (proc(5), mountinfo)."""
    found = None
    for row in mountinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = row.partition(" - ")
        if before.split()[4] == point:
            found = after.split()[2].split(",")
    return found
