"""Segments in ``/dev/shm``: which exist, and which processes hold them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, Optional

FOLDER = "/dev/shm"

# Programs that share memory name it <words>_<creator's pid>_<random>, PyTorch among them (torch_<pid>_<random>_<counter>:
# aten/src/ATen/MapAllocator.cpp, NewProcessWideShmHandle).
_PID_IN_NAME = re.compile(r"[A-Za-z_]+_(\d+)_")


@dataclass(frozen=True)
class Segment:
    """One file in ``/dev/shm``; the inode tells it from a later one of the same name."""

    name: str
    inode: int

    def to_json(self) -> Dict[str, Any]:
        return {"name": self.name, "inode": self.inode}

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "Segment":
        return cls(str(value["name"]), int(value["inode"]))


def segments() -> FrozenSet[Segment]:
    """Everything that lies in ``/dev/shm`` now (plain files; folders are nobody's segments)."""
    try:
        with os.scandir(FOLDER) as entries:
            return frozenset(Segment(entry.name, entry.inode()) for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        return frozenset()


def held_by(pid: int) -> FrozenSet[Segment]:
    """The segments that this process has mapped or open, those with a name that is gone included; none when we may not look."""
    return _mapped(pid) | _opened(pid)


def held(pids: Iterable[int]) -> FrozenSet[Segment]:
    """The segments that any of these processes holds."""
    return frozenset(segment for pid in pids for segment in held_by(pid))


def pid_in_name(segment: Segment) -> Optional[int]:
    """The pid of the creator where the name tells it."""
    match = _PID_IN_NAME.match(segment.name)
    return int(match.group(1)) if match else None


def remove(segment: Segment) -> bool:
    """Delete the segment unless another one has taken its name; whether it is gone."""
    path = f"{FOLDER}/{segment.name}"
    try:
        if os.lstat(path).st_ino == segment.inode:
            os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _mapped(pid: int) -> FrozenSet[Segment]:
    found = set()
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            for row in file:
                if b" /dev/shm/" not in row:
                    continue
                fields = row.rstrip(b"\n").split(None, 5)
                segment = _segment(os.fsdecode(fields[5]), int(fields[4]))
                if segment:
                    found.add(segment)
    except OSError:
        pass
    return frozenset(found)


def _opened(pid: int) -> FrozenSet[Segment]:
    found = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return frozenset()
    for name in names:
        link = f"/proc/{pid}/fd/{name}"
        try:
            target = os.readlink(link)
            segment = _segment(target, os.stat(link).st_ino) if target.startswith(FOLDER + "/") else None
        except OSError:
            continue
        if segment:
            found.add(segment)
    return frozenset(found)


def _segment(path: str, inode: int) -> Optional[Segment]:
    name = path[len(FOLDER) + 1 :]
    if name.endswith(" (deleted)"):
        name = name[: -len(" (deleted)")]
    return Segment(name, inode) if name and "/" not in name else None
