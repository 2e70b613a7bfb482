"""Looking at a server that fails or does not get on: what its processes do, what they wait for, what the kernel and the cards say.

Everything here only reads, answers quickly, and answers with nothing where a host does not tell; it is asked on the way back to a server that serves.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from . import gpus, net, xid
from .ask import Silent
from .gpus import Activity
from .liveness import CLOCK_TICKS
from .paths import Service
from .proc import Stat, descendants, read_stat, title
from .records import ServerRecord, lost_ranks, read_run
from .shm import FOLDER as SHM

# Between two looks at the processes' CPU time and the cards, in seconds.
APART_S = 0.5

# A driver in trouble hangs its own tools; the way back does not wait for them longer than this, in seconds.
ASK_S = 3.0

_COMPILERS = re.compile(
    r"^(?:ptxas(?:-blackwell)?|nvcc|cicc|cudafe\+\+|fatbinary|nvlink|ninja|cc1(?:plus)?|gcc|g\+\+|c\+\+|clang(?:\+\+)?|ld|as|cmake)$"
)
_COMPILE_WORKERS = re.compile(r"compile_worker|torch/_inductor|triton.*compile|tilelang.*compile")
_OOM = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]*)\)")
_STAMP = re.compile(r"^\s*\[\s*(?P<at>\d+\.\d+)\]")
_DOWNLOAD = re.compile(r"\.incomplete$|\.part$|\.download$")
_HTTP_PORTS = (80, 443)

# torch.utils.cpp_extension waits as long as a file of this name exists (file_baton.py): one that a killed compile left is waited for in vain.
_BATON = "lock"
_EXTENSIONS = "~/.cache/torch_extensions"
_MANY_FILES = 20_000


@dataclass(frozen=True)
class Process:
    """One process of the server. ``cpu`` is its share of one core between two looks; ``wait`` the kernel function that it sleeps in, if it tells."""

    pid: int
    title: str
    state: str
    cpu: float
    wait: str = ""

    @property
    def program(self) -> str:
        return os.path.basename(self.title.partition(" ")[0])

    @property
    def compiles(self) -> bool:
        return bool(_COMPILERS.match(self.program) or _COMPILE_WORKERS.search(self.title))

    @property
    def name(self) -> str:
        return f"{self.title[:60]} (pid {self.pid})"


@dataclass(frozen=True)
class LockWait:
    """A process that waits for a file's lock, and who holds it."""

    pid: int
    path: str
    holder: Optional[int]
    holder_title: str = ""


@dataclass(frozen=True)
class Download:
    """A file that is being fetched: its bytes, and by how many they grew between two looks. ``path`` is empty for a mere connection."""

    pid: int
    path: str
    size: int
    grown: int
    peer: str = ""


@dataclass(frozen=True)
class Scene:
    """What a look at the host showed, beside the log.

    Args:
        ranks: titles of the living rank processes; ``expected`` is how many schedulers there should be, None when nobody knows.
        lost: ranks that have ended while the server lived.
        left_locks: lock files of a compile cache that are older than the launch, with their age in words.
        kernel: the kernel log's lines since the launch that name a card, or the end of one of our processes for memory.
        free: bytes left, by what: ``disk``, ``cache``, ``shm``.
    """

    processes: Tuple[Process, ...] = ()
    ranks: Tuple[str, ...] = ()
    expected: Optional[int] = None
    lost: Tuple[str, ...] = ()
    locks: Tuple[LockWait, ...] = ()
    left_locks: Tuple[str, ...] = ()
    downloads: Tuple[Download, ...] = ()
    cards: Tuple[Activity, ...] = ()
    kernel: Tuple[str, ...] = ()
    kernel_unread: str = ""
    free: Dict[str, int] = field(default_factory=dict)

    @property
    def compilers(self) -> List[Process]:
        return [each for each in self.processes if each.compiles]


def look(service: Service, record: ServerRecord, engine: Dict[str, Any], cache: Optional[str] = None) -> Scene:
    """Look at a launched server, living or dead. Takes :data:`APART_S`, and some seconds more where a driver hangs."""
    before = {stat.pid: stat for stat in _tree(record)}
    files = _downloads(before)
    earlier = _cards()
    if before:
        threading.Event().wait(APART_S)
    after = _tree(record)
    patterns = [re.compile(pattern) for pattern in engine["ranks"]["patterns"]]
    processes = tuple(_process(stat, before.get(stat.pid)) for stat in after if stat.living)
    kernel, unread = kernel_lines(service, record)
    return Scene(
        processes=processes,
        ranks=tuple(each.title for each in processes if any(pattern.search(each.title) for pattern in patterns)),
        expected=engine["ranks"].get("schedulers"),
        lost=tuple(rank.title for rank in lost_ranks(service)),
        locks=tuple(lock_waits(stat.pid for stat in after)),
        left_locks=tuple(_left_locks(cache, record.started_at)),
        downloads=tuple(_grown(each) for each in files) + tuple(_connections(after) if not files else ()),
        cards=_slope(earlier, _cards()) if earlier else (),
        kernel=kernel,
        kernel_unread=unread,
        free=_free(service, cache),
    )


def kernel_lines(service: Service, record: ServerRecord) -> "Tuple[Tuple[str, ...], str]":
    """The kernel log's lines since the launch that are about us (Xids, our processes killed for memory), and why it could not be read."""
    try:
        log = xid.kernel_log(ASK_S)
    except Silent as error:
        return (), str(error)
    run = read_run(service)
    pids = {record.pid, *(identity.pid for identity, _ in run.processes), *(rank.pid for rank in run.lost)}
    # The kernel cuts a name after 15 characters; those of a container are counted otherwise, so an engine's own titles count too.
    names = {name[:15] for name in (*(each for _, each in run.processes), *(rank.title for rank in run.lost)) if "::" in name}
    return tuple(line for line in log.splitlines() if _since(line, record.started_boot) and _about_us(line, pids, names)), ""


def bytes_moved(pids: Iterable[int]) -> int:
    """What these processes have read and written so far, page faults on files included, in bytes (``/proc/PID/io``)."""
    total = 0
    for pid in pids:
        try:
            rows = Path(f"/proc/{pid}/io").read_text(encoding="ascii").split()
        except OSError:
            continue
        total += sum(int(rows[rows.index(name) + 1]) for name in ("rchar:", "wchar:", "read_bytes:"))
    return total


def cards_spin() -> bool:
    """Whether two cards or more are busy at little power, and their memory stands still. False where nobody can tell. Takes :data:`APART_S`."""
    before = _cards()
    if len(before) < 2:
        return False
    threading.Event().wait(APART_S)
    return sum(card.spins for card in _slope(before, _cards())) >= 2


def lock_waits(pids: Iterable[int]) -> List[LockWait]:
    """Which of these processes wait for a file's lock (``/proc/locks`` marks a waiter with ``->``)."""
    ours = set(pids)
    try:
        rows = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    holders: Dict[str, int] = {}
    found = []
    for row in rows:
        fields = row.split()
        # "12: FLOCK ADVISORY WRITE 4711 fd:00:1234 0 EOF", a waiter below its holder: "12: -> FLOCK ADVISORY WRITE 4712 fd:00:1234 0 EOF".
        if fields[1] != "->":
            holders[fields[0]] = int(fields[4])
        elif int(fields[5]) in ours:
            pid, holder = int(fields[5]), holders.get(fields[0])
            known = holder if holder is not None and holder > 0 else None
            found.append(LockWait(pid, _path_of(pid, fields[6]), known, title(known) if known is not None else ""))
    return found


def _tree(record: ServerRecord) -> List[Stat]:
    own = read_stat(record.pid)
    return ([own] if own else []) + descendants(record.pid)


def _process(stat: Stat, before: Optional[Stat]) -> Process:
    used = stat.utime + stat.stime - (before.utime + before.stime if before else 0)
    return Process(stat.pid, title(stat.pid), stat.state, round(used / CLOCK_TICKS / APART_S, 2), _wait(stat.pid))


def _wait(pid: int) -> str:
    try:
        wait = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return "" if wait == "0" else wait


def _since(line: str, started: float) -> bool:
    stamp = _STAMP.match(line)
    return stamp is None or float(stamp["at"]) >= started - 1.0


def _about_us(line: str, pids: Set[int], names: Set[str]) -> bool:
    killed = _OOM.search(line)
    if killed:
        return int(killed["pid"]) in pids or killed["name"] in names
    return "NVRM: " in line and ("Xid" in line or "fallen off the bus" in line or "probably locked" in line)


def _path_of(pid: int, device_and_inode: str) -> str:
    """The file of a lock that a process waits for: it has it open. The inode's number when it cannot be seen."""
    inode = int(device_and_inode.rpartition(":")[2])
    for fd, path in _open_files(pid):
        try:
            if os.stat(f"/proc/{pid}/fd/{fd}").st_ino == inode:
                return path
        except OSError:
            continue
    return f"inode {inode}"


def _open_files(pid: int) -> List[Tuple[str, str]]:
    folder = f"/proc/{pid}/fd"
    found = []
    try:
        for fd in os.listdir(folder):
            found.append((fd, os.readlink(f"{folder}/{fd}")))
    except OSError:
        pass  # it has ended, or is not ours
    return found


def _left_locks(cache: Optional[str], started_at: float) -> List[str]:
    found: List[str] = []
    seen = 0
    for top in filter(None, (cache, os.path.expanduser(_EXTENSIONS))):
        for folder, _, names in os.walk(top):
            seen += len(names)
            if seen > _MANY_FILES:
                return found
            path = os.path.join(folder, _BATON)
            if _BATON in names and (age := started_at - _changed(path, started_at)) > 0:
                found.append(f"{path} ({age:.0f} s older than this launch)")
    return found


def _changed(path: str, otherwise: float) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return otherwise


def _downloads(pids: Iterable[int]) -> List[Download]:
    found = []
    for pid in pids:
        for _, path in _open_files(pid):
            if _DOWNLOAD.search(path):
                found.append(Download(pid, path, _size(path), 0))
    return found


def _grown(before: Download) -> Download:
    size = _size(before.path)
    return Download(before.pid, before.path, size, max(0, size - before.size))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _connections(stats: List[Stat]) -> List[Download]:
    found = []
    for stat in stats:
        found += [Download(stat.pid, "", 0, 0, peer) for peer in net.peers(stat.pid, _HTTP_PORTS)]
    return found


def _cards() -> List[Activity]:
    try:
        return gpus.ask_activity(ASK_S)
    except (Silent, ValueError, KeyError):
        return []


def _slope(before: List[Activity], after: List[Activity]) -> Tuple[Activity, ...]:
    used = {card.index: card.used_mib for card in before}
    return tuple(card.since(used.get(card.index)) for card in after)


def _free(service: Service, cache: Optional[str]) -> Dict[str, int]:
    places = {"disk": str(service.root.path), "cache": cache or "", "shm": SHM}
    found = {}
    for name, path in places.items():
        try:
            found[name] = shutil.disk_usage(path).free
        except OSError:
            continue
    return found
