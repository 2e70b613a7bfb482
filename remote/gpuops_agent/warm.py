"""Warming a model's files: they are read once while the old server still serves, so that the new one finds them in the page cache.

The reading is of low priority, bounded by the memory that is there, and stops when that shrinks; nothing of it can fail a rollout. Only memory counts
that page cache may take: the kernel's ``MemAvailable``, and what the agent's own control group still may use, since what we read is booked there. A
server in another control group profits all the same: cached pages are found by whoever reads the file.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional

from .proc import boottime
from .wire import Cancelled

# Unless the playbook says so, weights are warmed when they fit into this share of the available memory: the new server needs some itself.
SHARE = 0.6

# So much available memory is left alone, whatever the playbook says.
FLOOR_BYTES = 1 << 30

# No more time than this, in seconds: a slow network disk would hold the rollout up for what its server reads by itself.
LONGEST_S = 900.0

_CHUNK = 8 << 20
_LOOK_EVERY = 64  # chunks: half a gigabyte

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Room:
    """How much page cache may grow: bytes, and what says so."""

    bytes: int
    why: str


@dataclass(frozen=True)
class Warmed:
    """What was read: bytes of all, those that came from a disk, of how many, seconds, and why not all (empty when all)."""

    bytes: int
    from_disk: int
    total: int
    seconds: float
    why: str

    def to_json(self) -> Dict[str, Any]:
        return vars(self)


def decide(total: int, room: Room, wanted: Optional[bool]) -> str:
    """Why files of ``total`` bytes are not warmed; empty when they are.

    Args:
        wanted: the playbook's ``model.warm``; None: when they fit.
    """
    if wanted is False:
        return "the playbook says model.warm: false"
    if wanted is None and total > SHARE * room.bytes:
        return f"{total >> 20} MB do not fit into {SHARE:.0%} of {room.bytes >> 20} MB ({room.why})"
    if room.bytes <= FLOOR_BYTES:
        return f"only {room.bytes >> 20} MB of memory are available ({room.why})"
    return ""


def files_of(model: Path) -> List[Path]:
    """The model's weight files, largest last: what is read last stays longest."""
    found = [path for path in model.glob("*") if path.suffix in (".safetensors", ".bin", ".gguf", ".pt") and path.is_file()]
    return sorted(found, key=lambda path: (path.stat().st_size, path.name))


def warm(
    paths: Iterable[Path], cancelled: Callable[[], bool], on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Warmed:
    """Read the files once, in a thread of low priority.

    Raises:
        wire.Cancelled
    """
    work = _Reading(list(paths), cancelled, on_progress)
    thread = threading.Thread(target=work.run, name="warm", daemon=True)
    thread.start()
    thread.join()
    if work.was_cancelled:
        raise Cancelled()
    return work.result()


def room() -> Room:
    """What page cache may take now."""
    said = [Room(_meminfo("MemAvailable"), "MemAvailable"), *_groups()]
    return min(said, key=lambda each: each.bytes)


class _Reading:
    def __init__(self, paths: List[Path], cancelled: Callable[[], bool], on_progress: Callable[[int, int], None]) -> None:
        self.was_cancelled = False
        self._paths = paths
        self._cancelled = cancelled
        self._on_progress = on_progress
        self._total = sum(path.stat().st_size for path in paths)
        self._read = 0
        self._chunks = 0
        self._why = ""
        self._began = boottime()
        self._disk = _read_from_disk()
        self._ended = self._began

    def run(self) -> None:
        # The thread's own: on Linux niceness is a thread's, and the priority of its reads follows from it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        buffer = bytearray(_CHUNK)
        for path in self._paths:
            try:
                self._file(path, buffer)
            except OSError as error:
                self._why = self._why or f"{path.name}: {error.strerror}"
            if self._why:
                break
        self._ended = boottime()

    def result(self) -> Warmed:
        from_disk = max(0, _read_from_disk() - self._disk)
        return Warmed(self._read, from_disk, self._total, round(self._ended - self._began, 3), self._why)

    def _file(self, path: Path, buffer: bytearray) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while not self._stop():
                count = os.readv(fd, [buffer])
                if count == 0:
                    return
                self._read += count
                self._chunks += 1
        finally:
            os.close(fd)

    def _stop(self) -> bool:
        if self._cancelled():
            self.was_cancelled, self._why = True, "cancelled"
        elif boottime() - self._began > LONGEST_S:
            self._why = f"it took {LONGEST_S:g} s"
        elif self._chunks % _LOOK_EVERY == 0:
            self._on_progress(self._read, self._total)
            left = room()
            if left.bytes < FLOOR_BYTES:
                self._why = f"memory is short: {left.bytes >> 20} MB ({left.why})"
        return bool(self._why)


def _groups() -> List[Room]:
    """What the control groups around this process may still use; [] without limits. Version 2 and 1, as mounted in a container or on a host."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _limits(_CGROUP, path, "memory.max", "memory.current", "file")
        elif "memory" in controllers.split(","):
            found += _limits(_CGROUP / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
    return found


def _limits(mount: Path, path: str, limit: str, usage: str, cache: str) -> List[Room]:
    found = []
    folder = mount / path.lstrip("/")
    for each in [folder, *folder.parents]:
        most, used = _number(each / limit), _number(each / usage)
        # Version 1 says "no limit" by a number near 2^63.
        if most is not None and used is not None and most < 1 << 60:
            # Page cache in the group gives way, so it counts as free.
            found.append(Room(max(0, most - used + _stat(each / "memory.stat", cache)), f"{each / limit}"))
        if each == mount:
            break
    return found


def _number(path: Path) -> Optional[int]:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _stat(path: Path, name: str) -> int:
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) if found else 0


def _meminfo(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0


def _read_from_disk() -> int:
    """Bytes that this process has had read from block devices so far."""
    try:
        found = re.search(r"^read_bytes: (\d+)$", Path("/proc/self/io").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) if found else 0
