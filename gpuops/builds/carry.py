"""Reading a bundle, checking that it is whole, and bringing it to the host in pieces that a cut link does not undo. A file of caches
(:mod:`gpuops.builds.caches`) is read and sent the same way."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.agent.client import Agent
from gpuops.builds import bundle
from gpuops.errors import Exit, GpuopsError

# One round trip each; small enough that a slow link shows signs of life, large enough that a fast one is not slowed down.
PIECE = 8 << 20

_PART = re.compile(r"(.+)\.(\d{3})\Z")


@dataclass(frozen=True)
class Bundle:
    """A bundle on this machine, whole and true.

    Args:
        files: its parts in order.
        bytes: of all parts.
        index: what it holds and what it was made for.
    """

    id: str
    files: tuple[Path, ...]
    bytes: int
    index: Mapping[str, Any]

    @property
    def builds(self) -> tuple[str, ...]:
        return tuple(self.index["builds"])

    @property
    def caches(self) -> tuple[str, ...]:
        """The files of caches in it, by id."""
        return tuple(self.index.get("caches", ()))

    def must_fit(self, prepare: Mapping[str, Any]) -> None:
        """Raises GpuopsError when it was made for another runtime, model or overlay than the order's."""
        wanted = bundle.described(prepare)
        differs = [key for key in wanted if wanted[key] != self.index["for"][key]]
        if differs:
            raise GpuopsError(
                f"the bundle {self.files[0].name} was made for another {' and '.join(differs)} than the playbook's",
                evidence=", ".join(f"{key}: {self.index['for'][key]}, wanted {wanted[key]}" for key in differs),
                next="make it again: gpuops builds bundle OUT -p PLAYBOOK",
                code=Exit.PLAYBOOK,
                kind="bundle",
            )


@dataclass(frozen=True)
class Kind:
    """What a file in parts is called, the command that makes one, and what refuses an index of another form (KeyError, TypeError, AttributeError)."""

    word: str
    name: str
    made_by: str
    must_be_of_its_form: Callable[[Any], None]


def must_be(kind: type | tuple[type, ...], *values: Any) -> None:
    """Raises TypeError."""
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} in its {bundle.INDEX} is of another form")


def _must_be_of_its_form(index: Any) -> None:
    must_be(dict, index["for"]["runtime"], index["for"]["model"])
    must_be(list, index["for"]["overlay"], index["builds"], index.get("caches", []))
    must_be(str, *index["builds"], *index.get("caches", ()))
    must_be(int, index["room"])


BUNDLE = Kind("bundle", "the bundle", "gpuops builds bundle OUT", _must_be_of_its_form)


@dataclass(frozen=True)
class Whole:
    """A file, or its parts in order, whose members are all as its index says: the size of all, and the index as it stands there."""

    files: tuple[Path, ...]
    size: int
    index: bytes


def open_bundle(path: Path) -> Bundle:
    """Read a bundle and check every member.

    Args:
        path: the file, the name of its parts without their number, or one of them.
    Raises:
        GpuopsError: it is not there, cut, altered, or a part of it is missing.
    """
    whole = read_whole(path, BUNDLE)
    return Bundle(bundle.identity(whole.index), whole.files, whole.size, json.loads(whole.index))


def read_whole(path: Path, kind: Kind) -> Whole:
    """:func:`open_bundle` for any kind of file that is made like a bundle."""
    files = _files(path, kind)
    with _Stream(files) as stream:
        try:
            index = _checked(stream, kind)
        except (tarfile.TarError, ValueError, EOFError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise GpuopsError(
                f"{kind.name} {path} is cut or altered",
                evidence=f"its {bundle.INDEX} lacks {error}" if isinstance(error, KeyError) else str(error),
                next=f"copy it again, or make it again: {kind.made_by}",
                kind=kind.word,
            ) from error
        return Whole(files, stream.size, index)


def send(agent: Agent, bundled: Bundle, told: Callable[[int, int], None] = lambda done, total: None) -> bool:
    """Make sure that the host has the bundle, and its builds in their place; False when it had it already.

    Args:
        told: hears how many bytes of how many are there.
    Raises:
        GpuopsError: the host's disk has no room; the bundle did not arrive as it was made.
        OutcomeUnknown: the link was lost; the next call goes on where this one stopped.
    """
    runtime = bundled.index["for"]["runtime"].get("id")
    sent = deliver(agent, bundled.id, bundled.files, bundled.bytes, room=bundled.index["room"], runtime=runtime, told=told)
    agent.call("bundle.commit", id=bundled.id)
    return sent


def deliver(
    agent: Agent,
    name: str,
    files: tuple[Path, ...],
    size: int,
    *,
    room: int,
    runtime: str | None = None,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> bool:
    """Bring a file, or its parts, to the host in pieces; False when it has it already.

    Args:
        room: bytes that what is made of it takes there; ``runtime`` is the runtime that that is, where it is one.
    Raises:
        GpuopsError, OutcomeUnknown: as :func:`send`.
    """
    there = agent.call("bundle.have", id=name, bytes=size, room=room, runtime=runtime)
    received = int(there["received"])
    with _Stream(files) as stream:
        while not there["present"] and received < size:
            stream.seek(received)
            piece = stream.read(PIECE)
            received = int(agent.call("bundle.put", id=name, offset=received, size=len(piece), payload=piece)["received"])
            told(received, size)
    return not there["present"]


def _files(path: Path, kind: Kind) -> tuple[Path, ...]:
    """The parts of a file, in order. Raises GpuopsError when there are none, or one is missing in between."""
    if (match := _PART.match(path.name)) is not None:
        path = path.with_name(match[1])
    elif path.is_file():
        return (path,)
    parts = sorted(each for each in path.parent.glob(f"{path.name}.*") if _PART.match(each.name))
    if not parts:
        raise GpuopsError(
            f"there is no {kind.word} {path}",
            evidence=f"neither {path.name} nor {path.name}.001",
            next=kind.made_by,
            kind=kind.word,
        )
    for number, part in enumerate(parts, 1):
        if part.name != f"{path.name}.{number:03}":
            raise GpuopsError(
                f"{kind.name} {path} is cut: part {path.name}.{number:03} is missing",
                evidence=f"there: {', '.join(each.name for each in parts)}",
                next="copy the missing part too",
                kind=kind.word,
            )
    return tuple(parts)


def _checked(stream: _Stream, kind: Kind) -> bytes:
    """The index, once every member has been compared with it. Raises ValueError with the first thing that is wrong."""
    with tarfile.open(fileobj=io.BufferedReader(stream, 1 << 20), mode="r:") as archive:
        first = archive.next()
        if first is None or first.name != bundle.INDEX:
            raise ValueError(f"it does not begin with {bundle.INDEX}: this is no {kind.word}")
        index = _content(archive, first, stream).read()
        told = json.loads(index)
        must_be(dict, told)
        if told.get("kind", BUNDLE.word) != kind.word:
            raise ValueError(f"this is a {told['kind']} file, no {kind.word}")
        if told["version"] != bundle.VERSION:
            raise ValueError(f"it is of version {told['version']}, this gpuops reads {bundle.VERSION}")
        kind.must_be_of_its_form(told)
        left = {str(name): (int(size), str(sha)) for name, size, sha in told["members"]}
        while (member := archive.next()) is not None:
            size, sha = left.pop(member.name, (None, ""))
            found = hashlib.sha256()
            content = _content(archive, member, stream)
            for data in iter(lambda content=content: content.read(1 << 20), b""):  # type: ignore[misc]
                found.update(data)
            if (member.size, found.hexdigest()) != (size, sha):
                raise ValueError(
                    f"{member.name} is altered: sha256 {found.hexdigest()[:12]}..., expected {sha[:12] or 'no such member'}"
                )
        if left:
            raise ValueError(f"it is cut: {len(left)} of its members are missing, the first is {next(iter(left))}")
    return bytes(index)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, stream: _Stream) -> Any:
    end = member.offset_data + member.size
    if end > stream.size:
        raise ValueError(f"it is cut: {stream.size} bytes are here, and {member.name} ends at byte {end}")
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise ValueError(f"{member.name} is no plain file")
    return content


class _Stream(io.RawIOBase):
    """Several files, read as one."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = [path.open("rb") for path in files]
        self._ends: list[int] = []
        for path in files:
            self._ends.append((self._ends[-1] if self._ends else 0) + path.stat().st_size)
        self._at = 0

    @property
    def size(self) -> int:
        return self._ends[-1]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """All of ``size`` bytes, across files, where there are so many."""
        wanted = self.size - self._at if size < 0 else size
        pieces = []
        while wanted > 0 and (piece := self._piece(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()

    def _piece(self, wanted: int) -> bytes:
        number = next((number for number, end in enumerate(self._ends) if self._at < end), None)
        if number is None:
            return b""
        begin = self._ends[number - 1] if number else 0
        self._files[number].seek(self._at - begin)
        data = self._files[number].read(min(wanted, self._ends[number] - self._at))
        self._at += len(data)
        return data
