"""Bundles: one file, or parts of a size, that hold all that a host without a registry needs for a playbook.

A bundle is an uncompressed tar: ``index.json`` first, then the agent, the wheels of the runtime (and of the model and of an overlay), builds,
and the model's manifest. The index names every member with its size and sha256; the bundle's id is a hash over the index. The same members give
the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpuops import __version__
from gpuops.agent import pack
from gpuops.builds import download
from gpuops.builds.download import HostPlatform
from gpuops.builds.manifest import Tree, sha256, write_manifest
from gpuops.builds.store import writing
from gpuops.errors import Exit, GpuopsError

VERSION = 1
INDEX = "index.json"
MOST_PARTS = 999

# An installed environment is about this many times its wheels (gpuops_agent/runtimes.py measured it).
UNPACKED_FACTOR = 4

Json = dict[str, Any]


@dataclass(frozen=True)
class Contents:
    """What a bundle shall hold.

    Args:
        prepare: the order's ``prepare``: runtime, model and build.
        builds: builds of this machine.
        platform: the host's.
        wheels: a folder of wheels of one's own, taken instead of the index's of the same name and version.
        caches: a file of caches (:mod:`gpuops.builds.caches`), for a first start that compiles nothing.
    """

    prepare: Mapping[str, Any]
    builds: Sequence[Tree]
    platform: HostPlatform
    wheels: Path | None = None
    caches: CacheFile | None = None


@dataclass(frozen=True)
class CacheFile:
    """A file of caches: its id, its parts, and the bytes that its caches take when they are unpacked."""

    id: str
    files: tuple[Path, ...]
    unpacked: int


@dataclass(frozen=True)
class Written:
    """A bundle on disk: its id, files, bytes, and the number of members."""

    id: str
    files: tuple[Path, ...]
    bytes: int
    members: int


def write(
    out: Path, contents: Contents, *, part_bytes: int | None = None, note: Callable[[str], None] = lambda text: None
) -> Written:
    """Gather the members and write the bundle to ``out``, or to ``out.001``, ``out.002``, ... of at most ``part_bytes`` each.

    Raises:
        GpuopsError: a wheel cannot be downloaded; there is a file of that name already; the disk is full.
    """
    must_be_free(out)
    with writing(out.parent, "another folder for OUT"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=out.parent) as scratch:
            members = _gather(Path(scratch) / "members", contents, note)
            index = _index(members, contents)
            parts = Parts(Path(scratch) / "parts", part_bytes)
            _tar(parts, index, members)
            files = parts.put(out)
    return Written(identity(index), files, parts.total, len(members))


def must_be_free(out: Path) -> None:
    """Raises GpuopsError when there is a file of this name, or a part of one."""
    taken = sorted([path for path in (out, *out.parent.glob(f"{out.name}.[0-9][0-9][0-9]")) if path.exists()])
    if taken:
        raise GpuopsError(f"{taken[0]} is there already", next="choose another name, or remove it", kind="exists")


def identity(index: bytes) -> str:
    """A bundle's id."""
    return f"bundle-{digest(index)}"


def digest(index: bytes) -> str:
    """What an index gives to the name of its file: 12 hex digits."""
    return hashlib.sha256(index).hexdigest()[:12]


def described(prepare: Mapping[str, Any]) -> Json:
    """What of an order's ``prepare`` a bundle was made for: two that are equal need the same members."""
    runtime, model, build = prepare["runtime"], prepare["model"], prepare["build"] or {}
    return {
        "runtime": {key: runtime[key] for key in ("kind", "id", "path") if key in runtime},
        "model": {key: model[key] for key in ("kind", "id", "path", "repo", "revision", "requirement") if key in model},
        "overlay": list(build.get("requirements", ())),
    }


def _gather(folder: Path, contents: Contents, note: Callable[[str], None]) -> dict[str, Path]:
    """Every member, by its path in the bundle."""
    agent = folder / "agent" / pack.name()
    agent.parent.mkdir(parents=True)
    agent.write_bytes(pack.archive())
    wheels = folder / "wheels"
    wheels.mkdir()
    for wanted, backend in _wanted(contents.prepare):
        download.download(wanted, wheels, contents.platform, backend, note, contents.wheels)
    (folder / "model.json").write_text(json.dumps(_model(contents.prepare), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if contents.caches is not None:
        _join(contents.caches.files, folder / "caches" / f"{contents.caches.id}.tar")
    members = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for tree in contents.builds:
        told = folder / "builds" / tree.id
        told.mkdir(parents=True)
        write_manifest(told, tree)
        members[f"builds/{tree.id}/manifest.json"] = told / "manifest.json"
        for path, _, _ in tree.entries:
            part, _, rest = path.partition("/")
            members[f"builds/{tree.id}/{path}"] = tree.parts[part] / rest
    return dict(sorted(members.items()))


def _join(parts: Sequence[Path], whole: Path) -> None:
    whole.parent.mkdir()
    with whole.open("wb") as out:
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, out, 1 << 20)


def _wanted(prepare: Mapping[str, Any]) -> list[tuple[list[str], str | None]]:
    """The packages to download, with PyTorch's backend, a runtime's first."""
    runtime, model, build = prepare["runtime"], prepare["model"], prepare["build"] or {}
    lock = [(download.requirements(runtime["lock"]), runtime.get("torch_backend"))] if runtime["kind"] == "lock" else []
    package = [([model["requirement"]], None)] if model["kind"] == "package" else []
    overlay = [(list(build["requirements"]), None)] if build.get("kind") == "overlay" else []
    return [*lock, *package, *overlay]


def _model(prepare: Mapping[str, Any]) -> Json:
    """The model's manifest: what it is, and what its files must be."""
    model = prepare["model"]
    return {
        key: model[key]
        for key in ("kind", "id", "path", "repo", "revision", "requirement", "wheel_sha256", "files")
        if key in model
    }


def _index(members: Mapping[str, Path], contents: Contents) -> bytes:
    wheels = sum(path.stat().st_size for name, path in members.items() if name.startswith("wheels/"))
    told = {
        "version": VERSION,
        "gpuops": __version__,
        "for": described(contents.prepare),
        "platform": {
            "python": list(contents.platform.python),
            "machine": contents.platform.machine,
            "glibc": list(contents.platform.glibc),
        },
        "builds": sorted(tree.id for tree in contents.builds),
        **({"caches": [contents.caches.id]} if contents.caches else {}),
        "room": wheels * UNPACKED_FACTOR + (contents.caches.unpacked if contents.caches else 0),
        "members": [[name, path.stat().st_size, sha256(path)] for name, path in members.items()],
    }
    return (json.dumps(told, indent=1, sort_keys=True) + "\n").encode()


def _tar(out: Parts, index: bytes, members: Mapping[str, Path]) -> None:
    buffered = io.BufferedWriter(out, 1 << 20)
    with buffered, tarfile.open(fileobj=buffered, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        head = tarfile.TarInfo(INDEX)
        head.size = len(index)
        archive.addfile(head, io.BytesIO(index))
        for name, path in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = path.stat().st_size, 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                archive.addfile(info, content)


class Parts(io.RawIOBase):
    """A file to write to that becomes several, in ``folder``, of at most ``limit`` bytes each; :meth:`put` brings them to their place."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self.paths: list[Path] = []
        self.total = 0
        self._folder = folder
        self._limit = limit
        self._file: BinaryIO | None = None
        self._left = 0
        folder.mkdir()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        while rest:
            if self._file is None or (self._limit is not None and self._left == 0):
                self._next()
            assert self._file is not None
            piece = rest if self._limit is None else rest[: self._left]
            self._file.write(piece)
            self._left -= len(piece)
            rest = rest[len(piece) :]
        self.total += len(data)
        return len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    def put(self, out: Path) -> tuple[Path, ...]:
        """Rename the one part to ``out``; with a limit ``out.001``, ``out.002``, ...

        Raises:
            GpuopsError: there are more parts than numbers of three digits.
        """
        if len(self.paths) > MOST_PARTS:
            least = -(-self.total // (MOST_PARTS * 10**6))
            raise GpuopsError(
                f"{out.name} would be of {len(self.paths)} parts",
                evidence=f"{self.total} bytes; at most {MOST_PARTS} parts have a number",
                next=f"--split {least}M, or more",
                code=Exit.USAGE,
                kind="usage",
            )
        numbered = [out.with_name(f"{out.name}.{number:03}") for number in range(1, len(self.paths) + 1)]
        names = [out] if self._limit is None else numbered
        for path, name in zip(self.paths, names, strict=True):
            path.rename(name)
        return tuple(names)

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self.paths.append(self._folder / f"{len(self.paths) + 1:03}")
        self._file, self._left = self.paths[-1].open("wb"), self._limit or 0
