"""Caches in one file, for another host: an uncompressed tar, ``index.json`` first, then one compressed tar a cache.

The index says what each cache belongs to, under which paths its files were written, and of every file its mode, size, sha256 and time, in
nanoseconds: ninja compares times. The file's id is a hash over the index. What passes (locks, temporary files, byte-code) is left out, as are links,
and what a living server changes while it is read.
"""

from __future__ import annotations

import concurrent.futures
import fnmatch
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Callable, Deque, Dict, Iterator, List, Tuple

from . import caches
from .files import sha256

try:
    import lzma
except ImportError:  # a Python that was built without liblzma
    lzma = None  # type: ignore[assignment]

VERSION = 1
INDEX = "index.json"

# Blocks are compressed at the same time on all CPUs, each a stream of its own; their dictionary (1 MiB at this level of xz) is far smaller. Of the
# 83 MB of a DeepSeek-V4's caches xz 1 makes 12.6 MB in 4.6 s of CPU, gzip 1 makes 20.8 MB in 2.0 s, xz 2 makes 10.7 MB in 7 s.
_BLOCK = 8 << 20
_XZ_LEVEL, _GZIP_LEVEL = 1, 1

_PIECE = 1 << 20


@dataclass(frozen=True)
class Source:
    """A cache to be packed.

    Args:
        known: what its ``cache.json`` says.
        links: the paths by which servers see it, besides its own.
        rebase: by part, the names of files that hold absolute paths and have to be rewritten (the engine's ``rebase``).
    """

    path: Path
    known: Dict[str, Any]
    links: Tuple[str, ...]
    rebase: Dict[str, str]


def write(folder: Path, sources: List[Source], host: str) -> Tuple[str, Path, Dict[str, Any]]:
    """Pack caches into ``folder``.

    Returns:
        The file's id, ``<folder>/.outgoing-<id>.tar``, and its index.
    Raises:
        OSError
    """
    token = os.urandom(4).hex()
    whole = folder / f".outgoing-{token}.tar"
    members: Dict[str, Path] = {}
    told = []
    try:
        for source in sources:
            member = f"{source.path.name}.tar.{'gz' if lzma is None else 'xz'}"
            members[member] = folder / f".outgoing-{token}-{source.path.name}.tar"
            told.append({**_about(source), "member": member, "files": _compress(members[member], source.path)})
        listed = [[member, path.stat().st_size, sha256(path)] for member, path in members.items()]
        index = {"version": VERSION, "kind": "caches", "host": host, "caches": told, "members": listed}
        raw = (json.dumps(index, separators=(",", ":"), sort_keys=True) + "\n").encode()
        _tar(whole, raw, members)
        name = identity(raw)
        final = outgoing(folder, name)
        os.replace(whole, final)
    finally:
        for path in (whole, *members.values()):
            path.unlink(missing_ok=True)
    return name, final, index


def outgoing(folder: Path, name: str) -> Path:
    """Where a packed file lies until it has been fetched."""
    return folder / f".outgoing-{name}.tar"


def size(cache: Dict[str, Any]) -> Dict[str, Any]:
    """``{entries, bytes}`` of a cache in an index."""
    return {"entries": len(cache["files"]), "bytes": sum(int(row[2]) for row in cache["files"])}


def identity(index: bytes) -> str:
    """The id of a file with this index."""
    return f"caches-{hashlib.sha256(index).hexdigest()[:12]}"


def read(path: Path, name: str) -> Dict[str, Any]:
    """The index of a file whose members are all as they were packed.

    Raises:
        ValueError, tarfile.TarError: with the first thing that is wrong.
    """
    with tarfile.open(path, "r:") as archive:
        first = archive.next()
        content = archive.extractfile(first) if first is not None and first.name == INDEX and first.isreg() else None
        raw = content.read() if content is not None else b""
        if identity(raw) != name:
            raise ValueError(f"its {INDEX} is not the one of {name}")
        index: Dict[str, Any] = json.loads(raw)
        if index["version"] != VERSION:
            raise ValueError(f"it is of version {index['version']}, this agent reads {VERSION}")
        for member, size, sha in index["members"]:
            found = _hashed(archive, str(member))
            if found != (size, sha):
                raise ValueError(f"{member} is cut or altered: {found[0]} bytes, sha256 {found[1][:12]}...")
    return index


def extract(path: Path, cache: Dict[str, Any], target: Path, final: Path) -> None:
    """Unpack one cache of a file, and check every file of it.

    Args:
        cache: its entry in the index.
        target: an empty folder.
        final: where the cache will lie: files that hold absolute paths shall lead there.
    Raises:
        ValueError, EOFError, tarfile.TarError: with the first thing that is wrong. OSError: the disk.
    """
    left = {str(name): (int(mode), int(size), str(sha), int(time)) for name, mode, size, sha, time in cache["files"]}
    old = sorted([cache["path"], *cache["links"]], key=len, reverse=True)
    with _opened(path, cache["member"]) as content, tarfile.open(fileobj=content, mode="r|") as archive:
        for member in archive:
            if member.name not in left or not member.isreg():
                raise ValueError(f"{member.name} is not in the index, there twice, or no plain file")
            mode, size, sha, time = left.pop(member.name)
            file = archive.extractfile(member)
            data = file.read() if file is not None else b""
            if (len(data), hashlib.sha256(data).hexdigest()) != (size, sha):
                raise ValueError(f"{member.name} is altered")
            there = _inside(target, member.name)
            there.parent.mkdir(parents=True, exist_ok=True)
            pattern = cache["rebase"].get(member.name.partition("/")[0])
            if pattern and fnmatch.fnmatch(there.name, pattern):
                data = _rebased(data, old, final)
            there.write_bytes(data)
            there.chmod(mode)
            os.utime(there, ns=(time, time))
    if left:
        raise ValueError(f"{len(left)} files are missing, the first is {next(iter(left))}")


def _about(source: Source) -> Dict[str, Any]:
    kept = ("build", "card", "runtime", "versions", "apart", "last_start")
    told: Dict[str, Any] = {key: source.known[key] for key in kept if key in source.known}
    return {**told, "key": source.path.name, "path": str(source.path), "links": list(source.links), "rebase": source.rebase}


def _compress(target: Path, cache: Path) -> List[List[Any]]:
    """Write a cache's files as one compressed tar; returns the index's rows of them."""
    rows: List[List[Any]] = []
    with (
        target.open("wb") as out,
        _Blocks(out) as blocks,
        tarfile.open(fileobj=blocks, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(each for each, _ in caches.counted(cache)):
            try:
                before = path.lstat()
                data = path.read_bytes() if stat.S_ISREG(before.st_mode) else None
                after = path.lstat()
            except FileNotFoundError:
                continue
            if (
                data is None
                or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)
                or len(data) != after.st_size
            ):
                continue
            name, mode = path.relative_to(cache).as_posix(), stat.S_IMODE(after.st_mode)
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
            rows.append([name, mode, len(data), hashlib.sha256(data).hexdigest(), after.st_mtime_ns])
    return rows


class _Blocks(io.RawIOBase):
    """A file to write to whose blocks are compressed by threads, in order."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._buffer = bytearray()
        self._cpus = os.cpu_count() or 1
        self._pool = concurrent.futures.ThreadPoolExecutor(self._cpus)
        self._waiting: Deque["concurrent.futures.Future[bytes]"] = deque()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._buffer += data
        while len(self._buffer) >= _BLOCK:
            self._put(bytes(self._buffer[:_BLOCK]))
            del self._buffer[:_BLOCK]
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._put(bytes(self._buffer))
            while self._waiting:
                self._out.write(self._waiting.popleft().result())
            self._pool.shutdown()
        super().close()

    def _put(self, block: bytes) -> None:
        # No more blocks in memory than are worked on.
        while len(self._waiting) > self._cpus:
            self._out.write(self._waiting.popleft().result())
        self._waiting.append(self._pool.submit(_compressor(), block))


def _compressor() -> Callable[[bytes], bytes]:
    if lzma is None:
        return lambda block: gzip.compress(block, _GZIP_LEVEL)
    return lambda block: lzma.compress(block, preset=_XZ_LEVEL)


@contextmanager
def _opened(path: Path, member: str) -> Iterator[Any]:
    """The decompressed content of a member. Raises ValueError when this Python cannot read it."""
    with tarfile.open(path, "r:") as archive:
        raw = archive.extractfile(member)
        if raw is None:
            raise ValueError(f"{member} is no plain file")
        if member.endswith(".xz") and lzma is None:
            raise ValueError(f"{member}: this host's Python was built without lzma")
        with lzma.open(raw) if member.endswith(".xz") else gzip.open(raw) as content:
            yield content


def _hashed(archive: tarfile.TarFile, member: str) -> Tuple[int, str]:
    """Size and sha256 of a member; those of nothing when it is not there."""
    info = archive.getmember(member) if member in archive.getnames() else None
    content = archive.extractfile(info) if info is not None and info.isreg() else None
    digest, size = hashlib.sha256(), 0
    while content is not None and (data := content.read(_PIECE)):
        digest.update(data)
        size += len(data)
    return size, digest.hexdigest()


def _rebased(data: bytes, old: List[str], final: Path) -> bytes:
    for path in old:
        data = data.replace(os.fsencode(path), os.fsencode(final))
    return data


def _inside(target: Path, path: str) -> Path:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path} leads out of the cache")
    return target / path


def _tar(target: Path, index: bytes, members: Dict[str, Path]) -> None:
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        head = tarfile.TarInfo(INDEX)
        head.size = len(index)
        archive.addfile(head, io.BytesIO(index))
        for name, path in members.items():
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(info, content)
