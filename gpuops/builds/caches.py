"""JIT caches from a host into a file here, and from it to another host, whose first start then compiles nothing.

The file is made on the host (``gpuops_agent/cache_file.py``), is read and sent like a bundle, and may be cut into parts of a size.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.agent.client import Agent
from gpuops.builds import bundle, carry
from gpuops.builds.bundle import CacheFile, Parts
from gpuops.builds.carry import Kind
from gpuops.errors import GpuopsError, OutcomeUnknown, TransportError
from gpuops.rollout.session import Session


def _must_be_of_its_form(index: Any) -> None:
    carry.must_be(list, index["caches"])
    for cache in index["caches"]:
        carry.must_be(str, cache["key"], cache["build"])
        carry.must_be(list, cache["files"], *cache["files"])
        carry.must_be(int, *(row[2] for row in cache["files"]))


KIND = Kind("caches", "the file of caches", "gpuops caches save FILE", _must_be_of_its_form)

# A link that is lost so often is left alone.
ATTEMPTS = 4

_PIECE = 1 << 20

Json = Mapping[str, Any]
Progress = Callable[[int, int], None]
"""Hears how many bytes of how many have crossed the link."""


@dataclass(frozen=True)
class Cached:
    """A file of caches on this machine, whole and true."""

    id: str
    files: tuple[Path, ...]
    bytes: int
    index: Json

    @property
    def unpacked(self) -> int:
        """The bytes that its caches take on a host."""
        return sum(int(row[2]) for cache in self.index["caches"] for row in cache["files"])

    def for_bundle(self) -> CacheFile:
        """As a bundle takes it."""
        return CacheFile(self.id, self.files, self.unpacked)


@dataclass(frozen=True)
class Saved:
    """What was written, and what the host did not pack, each ``{key, why}``."""

    file: Cached
    left_out: tuple[Json, ...]


def open_caches(path: Path) -> Cached:
    """Read a file of caches and check that it is whole.

    Args:
        path: the file, the name of its parts without their number, or one of them.
    Raises:
        GpuopsError: it is not there, cut, altered, or a part of it is missing.
    """
    whole = carry.read_whole(path, KIND)
    name = f"caches-{bundle.digest(whole.index)}"
    return Cached(name, whole.files, whole.size, json.loads(whole.index))


def save(
    connect: Callable[[], Session],
    out: Path,
    wanted: Json,
    *,
    part_bytes: int | None = None,
    told: Progress = lambda done, total: None,
) -> Saved:
    """Let the host pack caches, and bring them to ``out``, or to ``out.001``, ``out.002``, ... of at most ``part_bytes`` each.

    Args:
        connect: opens a session to the host; another one when the link is lost.
        wanted: which caches: the arguments of the agent's ``cache.pack``.
    Raises:
        GpuopsError: there is a file of that name; the host has no such caches; they did not arrive as they were packed.
        TransportError, OutcomeUnknown: the link is lost and did not come back.
    """
    bundle.must_be_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".caches-", dir=out.parent) as scratch:
        whole = Path(scratch) / "caches"
        with connect() as session:
            packed = session.agent.call("cache.pack", **wanted)
        _fetch(connect, packed, whole, told)
        if open_caches(whole).id != packed["id"]:
            raise GpuopsError(
                "the caches did not arrive as they were packed",
                evidence=str(packed["id"]),
                next="run the same command again",
                kind="caches",
            )
        files = (whole.rename(out),) if part_bytes is None else _split(whole, Path(scratch) / "parts", out, part_bytes)
    return Saved(open_caches(files[0]), tuple(packed["left_out"]))


def load(agent: Agent, cached: Cached, wanted: Json, told: Progress = lambda done, total: None) -> dict[str, Any]:
    """Bring a file of caches to a host, which checks it and puts each cache into its place.

    Args:
        wanted: what they are for: ``service`` and ``runtime`` of ``cache.load``, or None each.
    Returns:
        ``{loaded, there, unfit, notes}``, as ``cache.load`` says it.
    Raises:
        GpuopsError: they do not fit the host, or did not arrive as they were sent; nothing was put then.
        OutcomeUnknown: the link was lost; the next call goes on where this one stopped.
    """
    carry.deliver(agent, cached.id, cached.files, cached.bytes, room=cached.unpacked, told=told)
    return agent.call("cache.load", id=cached.id, strict=True, **wanted)


def _fetch(connect: Callable[[], Session], packed: Json, path: Path, told: Progress) -> None:
    """Bring the packed file here, by offset, so that a lost link costs nothing that has arrived; the host's copy is removed."""
    total = int(packed["bytes"])
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with connect() as session, path.open("ab") as file:

                def hear(event: Json, file: Any = file) -> None:
                    if event["event"] == "chunk":
                        file.write(base64.b64decode(event["data"]))
                        told(file.tell(), total)

                session.agent.call("cache.get", on_event=hear, id=packed["id"], offset=file.tell())
                with suppress(GpuopsError):
                    # It has arrived: what is left there goes with the next prune.
                    session.agent.call("cache.drop", id=packed["id"])
            return
        except (OutcomeUnknown, TransportError):
            if attempt == ATTEMPTS:
                raise


def _split(whole: Path, folder: Path, out: Path, part_bytes: int) -> tuple[Path, ...]:
    with Parts(folder, part_bytes) as parts, whole.open("rb") as content:
        for data in iter(lambda: content.read(_PIECE), b""):
            parts.write(data)
    return parts.put(out)
