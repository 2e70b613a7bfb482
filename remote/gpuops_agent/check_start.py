"""Can something end the server that nobody meant to end? How it is started, logind's settings, OOM killers, control groups."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import List, Optional

from . import proc, session
from .check import OK, UNKNOWN, WARN, Finding, Subject
from .records import supervisor_identity
from .session import PLAIN

_CGROUP2_MAGIC = 0x63677270  # CGROUP2_SUPER_MAGIC, include/uapi/linux/magic.h
_CGROUPS = Path("/sys/fs/cgroup")


def start_method(subject: Subject) -> Finding:
    """How a server is started on this host, and what can still end it."""
    choice = subject.choice
    where = _where(subject)
    if choice.killers:
        return Finding(WARN, f"started as {choice.how}: {choice.reason}", "; ".join([*choice.killers, *where]), choice.next)
    return Finding(OK, f"started as {choice.how}: {choice.reason}", "; ".join(where))


def kill_user_processes(subject: Subject) -> Finding:
    """logind's KillUserProcesses=, as it holds for this user."""
    facts = subject.facts
    if not facts.systemd:
        return Finding(OK, "no logind here: a logout ends nothing")
    if facts.kill_user_processes is None:
        return Finding(UNKNOWN, "logind.conf does not tell its default", next="loginctl show-session self -p KillUserProcesses")
    if not facts.kill_user_processes:
        return Finding(
            OK, f"a logout does not end {facts.user}'s processes", "logind.conf: KillUserProcesses=no, or the user is exempt"
        )
    if subject.choice.how != PLAIN:
        return Finding(OK, f"KillUserProcesses=yes, which spares a {subject.choice.how}")
    return Finding(WARN, f"a logout ends {facts.user}'s processes", "logind.conf: KillUserProcesses=yes", subject.choice.next)


def linger(subject: Subject) -> Finding:
    """Whether the user's systemd outlives the last session."""
    facts = subject.facts
    if not facts.systemd or facts.uid == 0:
        return Finding(OK, "not needed" + (" by root" if facts.systemd else ": systemd is not the init of this host"))
    evidence = f"/var/lib/systemd/linger/{facts.user}"
    if facts.linger:
        return Finding(OK, f"{facts.user} lingers", evidence)
    return Finding(WARN, f"{facts.user} does not linger", f"{evidence} does not exist", f"loginctl enable-linger {facts.user}")


def remove_ipc(subject: Subject) -> Finding:
    """logind's RemoveIPC=: the last logout would empty /dev/shm of what is the user's."""
    facts = subject.facts
    if not facts.systemd:
        return Finding(OK, "no logind here: nobody clears /dev/shm")
    if facts.remove_ipc is None:
        return Finding(UNKNOWN, "logind.conf does not tell RemoveIPC", next="systemd-analyze cat-config systemd/logind.conf")
    if not facts.remove_ipc:
        return Finding(OK, f"a logout leaves {facts.user}'s shared memory alone", "RemoveIPC=no, or a system user")
    if facts.linger:
        return Finding(OK, "RemoveIPC=yes, but a user that lingers never logs out")
    return Finding(
        WARN,
        f"{facts.user}'s last logout deletes the server's shared memory",
        "logind.conf: RemoveIPC=yes",
        f"loginctl enable-linger {facts.user}, or RemoveIPC=no in /etc/systemd/logind.conf.d/",
    )


def oom(subject: Subject) -> Finding:
    """Who goes first when memory runs out: the server should, not its supervisor."""
    for service in subject.services:
        supervisor = supervisor_identity(service)
        record = next((each for each in subject.servers if supervisor and each.supervisor.pid == supervisor.pid), None)
        if supervisor is None or record is None:
            continue
        mine, its = _oom_score(supervisor.pid), _oom_score(record.pid)
        if mine is not None and its is not None and mine > its:
            return Finding(WARN, "the kernel would end the supervisor before the server", f"oom_score_adj {mine} and {its}")
    daemon = next((stat.pid for stat in proc.processes() if stat.comm == "systemd-oomd"), None)
    if subject.choice.how == PLAIN and subject.facts.session_scope and (daemon or _ends_sessions(subject)):
        who = f"systemd-oomd (pid {daemon})" if daemon else f"systemd {subject.facts.version}"
        return Finding(
            WARN,
            "running out of memory can end the whole login session, and the server with it",
            f"we are in {subject.facts.session_scope}; {who} ends it as a whole",
            subject.choice.next,
        )
    return Finding(
        OK, "an OOM kill takes one process, the server's first", "no systemd-oomd" if daemon is None else "in a unit of its own"
    )


def cgroups(subject: Subject) -> Finding:
    """Whether /sys/fs/cgroup is the unified hierarchy: elsewhere a `cgroup.kill` would be an ordinary file that kills nothing."""
    magic = _filesystem(_CGROUPS)
    if magic is None:
        return Finding(OK, "no control groups are mounted; none are needed", str(_CGROUPS))
    if magic != _CGROUP2_MAGIC:
        return Finding(OK, "control groups v1 or hybrid; none are needed", f"{_CGROUPS} has filesystem magic {magic:#x}")
    own = re.search(r"^0::(/.*)$", _read("/proc/self/cgroup"), re.MULTILINE)
    folder = _CGROUPS / (own.group(1).lstrip("/") if own else "")
    delegated = os.access(folder / "cgroup.procs", os.W_OK) and os.access(folder / "cgroup.kill", os.W_OK)
    return Finding(OK, f"control groups v2, {'ours to use' if delegated else 'not delegated to us'}", str(folder))


def _where(subject: Subject) -> List[str]:
    """The unit that each living supervisor is in: it may have been started another way than one would be now."""
    told = []
    for service in subject.services:
        supervisor = supervisor_identity(service)
        if supervisor is None:
            continue
        paths = re.findall(r"^\d+:(?:name=systemd)?:(/.*)$", _read(f"/proc/{supervisor.pid}/cgroup"), re.MULTILINE)
        told.append(f"{service.name} runs in {max(paths, key=len, default='/')}")
    return told


def _ends_sessions(subject: Subject) -> bool:
    return subject.facts.version == session.OOM_ENDS_SESSION


def _oom_score(pid: int) -> Optional[int]:
    text = _read(f"/proc/{pid}/oom_score_adj").strip()
    return int(text) if text else None


def _filesystem(path: Path) -> Optional[int]:
    """statfs(2).f_type, which Python does not offer: the first word of the structure on every 64-bit Linux."""
    buffer = (ctypes.c_long * 64)()
    if ctypes.CDLL(None).statfs(os.fsencode(path), ctypes.byref(buffer)) != 0:
        return None
    return int(buffer[0])


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
