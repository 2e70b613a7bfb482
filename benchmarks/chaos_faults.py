"""The faults themselves. Each is done once, at its moment, to one host; what it spoils beyond the operation is mended afterwards."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpuops_agent import proc
from gpuops_agent.proc import Identity

from benchmarks.chaos_draw import GARBAGE
from benchmarks.chaos_host import Host, read_json

PIDS = Path("/sys/fs/cgroup/pids")
"""The pids controller of cgroup v1: where a limit on forks can be put on one runner, root or not."""

# How long a victim that does not exist yet is waited for, in seconds: there is none between two servers.
VICTIM_S = 20.0


@dataclass
class Done:
    """What a fault did.

    Args:
        what: for the report.
        second: the second controller, where the fault was one.
        mends: what takes the fault away again.
        known_s: after the death of a server: seconds until ``exit.json`` says so.
    """

    what: str
    second: subprocess.Popen[str] | None = None
    mends: list[Callable[[], None]] = field(default_factory=list)
    known_s: float | None = None

    def mend(self) -> None:
        for mend in self.mends:
            mend()
        self.mends.clear()


def strike(host: Host, op: str, controller: subprocess.Popen[str]) -> Done:
    """Do the case's fault to an operation that runs, or has just ended."""
    faults: dict[str, Callable[[], Done]] = {
        "kill_controller": lambda: _kill_controller(controller),
        "kill_agent": lambda: _kill_agent(host),
        "kill_runner": lambda: _kill(host, op, "runner", lambda: host.runner(op)),
        "kill_supervisor": lambda: _kill(host, op, "supervisor", host.supervisor),
        "kill_server": lambda: _kill_server(host, op),
        "kill_rank": lambda: _kill(host, op, "rank", lambda: _rank(host)),
        "kill_ssh_session": lambda: _kill_ssh_session(host),
        "link_cut": lambda: _spoil_link(host, host.link.cut, "the connections were cut"),
        "link_down": lambda: _spoil_link(host, host.link.down, "the connections were cut, new ones are refused"),
        "link_half_open": lambda: _spoil_link(host, host.link.swallow, "the link carries nothing any more"),
        "disk_full": lambda: _fill_disk(host),
        "no_fork": lambda: _forbid_forks(host, op),
        "second_controller": lambda: Done("a second controller wants another release", second=host.gpuops("up", "other")),
        "garbled_file": lambda: _garble(host, op),
    }
    return faults[host.case.fault]()


@functools.cache
def impossible() -> tuple[str, ...]:
    """The faults that this machine, or this user, cannot make."""
    missing = []
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "gpuops-chaos", folder]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            missing.append("disk_full")
        else:
            subprocess.run(["umount", folder], check=True, capture_output=True)
    probe = PIDS / f"gpuops-chaos-probe-{os.getpid()}"
    try:
        probe.mkdir()
        possible = (probe / "pids.max").exists()
        probe.rmdir()
    except OSError:
        possible = False
    return tuple(missing if possible else [*missing, "no_fork"])


def _kill_controller(controller: subprocess.Popen[str]) -> Done:
    controller.kill()
    return Done(f"KILL to the controller (pid {controller.pid})")


def _kill_agent(host: Host) -> Done:
    """KILL to the agent's processes that a controller is connected to; the runner is another process."""
    killed = [pid for pid, words, _ in host.processes() if words[-1] in ("run", "follow", "renew", "confirm")]
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Done(f"KILL to the controller's agents {killed}")


def _kill(host: Host, op: str, who: str, find: Callable[[], Identity | None]) -> Done:
    victim = _victim(host, op, find)
    if victim is None:
        return Done(f"there was no {who} to kill any more")
    proc.send(victim, signal.SIGKILL)
    return Done(f"KILL to the {who} (pid {victim.pid})")


def _kill_server(host: Host, op: str) -> Done:
    victim = _victim(host, op, host.server)
    if victim is None:
        return Done("there was no server to kill any more")
    at = time.time()
    proc.send(victim, signal.SIGKILL)
    done = Done(f"KILL to the server (pid {victim.pid})")
    # In a thread: the file is there for as long as nobody starts the next server.
    watcher = threading.Thread(target=_watch_exit, args=(host, victim.pid, at, done))
    watcher.start()
    done.mends.append(watcher.join)
    return done


def _watch_exit(host: Host, pid: int, killed_at: float, done: Done) -> None:
    deadline = time.monotonic() + VICTIM_S
    while time.monotonic() < deadline:
        ended = read_json(host.service.exit_file)
        if ended is not None and ended.get("pid") == pid:
            done.known_s = max(0.0, ended["at"] - killed_at)
            return
        time.sleep(0.002)


def _victim(host: Host, op: str, find: Callable[[], Identity | None]) -> Identity | None:
    """The victim; one that is about to come is waited for as long as the operation runs."""
    deadline = time.monotonic() + VICTIM_S
    while True:
        victim = find()
        runner = host.runner(op)
        if victim is not None and proc.alive(victim):
            return victim
        if runner is None or not proc.alive(runner) or time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def _rank(host: Host) -> Identity | None:
    server = host.server()
    if server is None:
        return None
    ranks = [stat for stat in proc.descendants(server.pid) if proc.title(stat.pid).startswith("sglang::scheduler")]
    return proc.identity_of(ranks[0]) if ranks else None


def _kill_ssh_session(host: Host) -> Done:
    """KILL to sshd's processes of the connections; the daemon itself, and the commands that it started, live on."""
    killed = []
    for stat in proc.descendants(host.sshd.pid):
        if proc.title(stat.pid).startswith("sshd"):
            proc.send(proc.identity_of(stat), signal.SIGKILL)
            killed.append(stat.pid)
    return Done(f"KILL to the sshd sessions {killed}")


def _spoil_link(host: Host, spoil: Callable[[], None], what: str) -> Done:
    spoil()
    return Done(what, mends=[host.link.mend])


def _fill_disk(host: Host) -> Done:
    filler = host.path / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        step, size = 64 << 20, 0
        while step >= 4096:
            try:
                os.posix_fallocate(fd, size, step)
                size += step
            except OSError:
                step //= 2
    finally:
        os.close(fd)
    return Done(f"the disk is full ({size >> 20} MB of filler)", mends=[lambda: filler.unlink(missing_ok=True)])


def _forbid_forks(host: Host, op: str) -> Done:
    """The runner, and all that it starts from now on, may not fork: neither processes nor threads."""
    runner = host.runner(op)
    group = PIDS / f"gpuops-chaos-{os.getpid()}-{host.case.seed}"
    group.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):  # it has ended
        if runner is not None and proc.alive(runner):
            (group / "cgroup.procs").write_text(str(runner.pid))
    (group / "pids.max").write_text("1")
    return Done("the runner cannot fork any more", mends=[lambda: _allow_forks(group)])


def _allow_forks(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (PIDS / "cgroup.procs").write_text(pid)
    deadline = time.monotonic() + VICTIM_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # the last of its processes is just going
            group.rmdir()
            return
        time.sleep(0.01)


def _garble(host: Host, op: str) -> Done:
    """Spoil the file that the case names, or, when it does not exist at that moment, the next one that does."""
    service = host.service
    operations = host.operations()
    places = {
        "server.json": service.server_file,
        "state.json": service.current / "state.json",
        "lease.json": service.operation(op) / "lease.json",
        "outcome.json": service.operation(operations[0]) / "outcome.json",
        "port.json": service.port_file,
        "journal.jsonl": service.journal,
        "lock owner": service.lock_owner,
    }
    others = sorted(places)
    random.Random(host.case.seed).shuffle(others)
    name = next(name for name in (host.case.file, *others) if places[name].exists())
    path, garbage = places[name].resolve(), GARBAGE[host.case.garbage]
    if name == "journal.jsonl":
        # What a power cut leaves: the records before are on the disk, the last one is not whole.
        with path.open("ab") as file:
            file.write(garbage.rstrip(b"\n"))
    else:
        path.write_bytes(garbage)
    return Done(f"{path.relative_to(host.path)} was garbled ({host.case.garbage})")
