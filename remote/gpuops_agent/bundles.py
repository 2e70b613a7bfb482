"""The `bundle.*` verbs: everything that a rollout would fetch from a registry, brought by the controller in one stream.

A bundle is an uncompressed tar whose first member, ``index.json``, names every other one with its size and sha256; its id is a hash over the
index. It arrives in pieces at known offsets, so that a transfer that was cut goes on where it stopped, and counts (``bundles/<id>/``) only when
every member has been checked.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import beats, fitness, runtimes, trees
from .files import disk_error, read_json, sync_folder
from .paths import Root
from .wire import HOST_UNFIT, AgentError

INDEX = "index.json"
_PIECE = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")


def have(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Whether the bundle is here; else how much of it.

    Args: ``id``, ``bytes`` of the whole stream, ``room`` in bytes for what will be made of it, ``runtime``: the id of the runtime that that
    is, or None.

    Returns:
        ``{present, received}``
    Raises:
        AgentError: not enough disk for the rest of the stream, for its members, and for what will be made (code 5).
    """
    name = plain(args["id"])
    if (root.bundles / name / INDEX).exists():
        return {"present": True, "received": int(args["bytes"])}
    root.bundles.mkdir(parents=True, exist_ok=True)
    stream = arriving(root, name)
    received = stream.stat().st_size if stream.exists() else 0
    made = args.get("runtime") and (root.runtimes / plain(args["runtime"]) / "runtime.json").exists()
    room = 0 if made else int(args["room"])
    needed = 2 * int(args["bytes"]) - received + room
    free = shutil.disk_usage(root.bundles).free
    why = f"twice its {int(args['bytes']) >> 20} MB while it is unpacked, and {room >> 20} MB for what is made of it"
    if free < needed:
        raise AgentError(
            f"the host has not enough disk for {name}: {needed >> 20} MB needed, {free >> 20} MB free",
            evidence=f"{root.bundles}: {why}",
            next="free space on the host (gpuops prune), or set host.root to a larger disk; the running server was not touched",
            code=HOST_UNFIT,
            kind="disk_full",
        )
    return {"present": False, "received": received}


def put(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Take a piece of the stream: ``size`` bytes that follow the request, at ``offset``.

    Returns:
        ``{received}``: how much of the stream is here now. A piece that is cut counts as far as it came.
    Raises:
        AgentError: the offset is not where the stream ends (another client sends the same bundle); the disk is full.
    """
    stream = arriving(root, args["id"])
    return {"received": beats.during(lambda: _append(stream, int(args["offset"]), int(args["size"])))}


def commit(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Unpack the stream, check every member, and put the builds in it into their place.

    Returns:
        ``{id, builds: [ID]}``
    Raises:
        AgentError: the stream is cut or altered (its first bad member is named); it is removed, so that the next attempt sends it anew.
    """
    name = plain(args["id"])
    return beats.during(lambda: _unpack(root, name))


def platform(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """What the wheels of a runtime with this Python must fit: ``{python: [MAJOR, MINOR], machine, glibc: [MAJOR, MINOR] | null}``.

    Raises:
        AgentError: the host has no such Python.
    """
    there = fitness.platform_of(Path(runtimes.interpreter(args.get("python"))))
    return {"python": list(there.python), "machine": there.machine, "glibc": list(there.glibc) if there.glibc else None}


def wheels(root: Root, name: Optional[str]) -> Optional[Path]:
    """The folder of a bundle's wheels; None for an order without a bundle. Raises AgentError when the bundle is not here."""
    if name is None:
        return None
    folder = root.bundles / plain(name)
    if read_json(folder / INDEX) is None:
        raise AgentError(
            f"the bundle {name} is not on the host",
            evidence=str(folder),
            next="gpuops up --bundle FILE",
            code=HOST_UNFIT,
            kind="bundle",
        )
    return folder / "wheels"


def arriving(root: Root, name: str) -> Path:
    """Where the stream of a bundle, or of a file of caches, lies while it comes in pieces. Raises AgentError for what is no name."""
    return root.bundles / f".incoming-{plain(name)}.tar"


def plain(name: str) -> str:
    """The name, which is part of a path. Raises AgentError when it is none."""
    if not _NAME.match(name):
        raise AgentError(f"{name!r} is no name for a bundle", code=2, kind="usage")
    return name


def _append(stream: Path, offset: int, size: int) -> int:
    # Read before the file is locked: a client whose link hangs must not keep the next one out.
    data = sys.stdin.buffer.read(size)
    try:
        with open(stream, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            if end != offset:
                raise AgentError(
                    f"the bundle has {end} bytes here, and a piece came for {offset}",
                    evidence="somebody else sends the same bundle",
                    next="run the same command again",
                    kind="offset",
                )
            file.write(data)
            file.flush()
            return file.tell()
    except OSError as error:
        raise disk_error(error, stream) from error


def _unpack(root: Root, name: str) -> Dict[str, Any]:
    final = root.bundles / name
    if not (final / INDEX).exists():
        stream, incoming = arriving(root, name), root.bundles / f".incoming-{name}"
        shutil.rmtree(incoming, ignore_errors=True)
        try:
            _extract(stream, incoming, name)
        except (tarfile.TarError, ValueError, KeyError, EOFError) as error:
            stream.unlink(missing_ok=True)
            shutil.rmtree(incoming, ignore_errors=True)
            raise AgentError(
                "the bundle did not arrive as it was made",
                evidence=str(error),
                next="run the same command again: it is sent anew; the running server was not touched",
                code=HOST_UNFIT,
                kind="bundle",
            ) from error
        except OSError as error:
            shutil.rmtree(incoming, ignore_errors=True)
            raise disk_error(error, incoming) from error
        os.replace(incoming, final)
        sync_folder(root.bundles)
        stream.unlink()
    index = read_json(final / INDEX) or {}
    for build in index["builds"]:
        try:
            _place(root, final / "builds" / build, build)
        except OSError as error:
            raise disk_error(error, root.builds / build) from error
    return {"id": name, "builds": index["builds"]}


def _extract(stream: Path, target: Path, name: str) -> None:
    """Raises ValueError with the first thing that is wrong."""
    with tarfile.open(stream, "r:") as archive:
        first = archive.next()
        raw = _content(archive, first).read() if first is not None and first.name == INDEX else b""
        if hashlib.sha256(raw).hexdigest()[:12] != name.rpartition("-")[2]:
            raise ValueError(f"{INDEX} is not the one of {name}")
        told = json.loads(raw)
        left = {str(path): (int(size), str(sha)) for path, size, sha in told["members"]}
        for build in told["builds"]:
            # The name becomes part of a path.
            if "/" in build or f"builds/{build}/manifest.json" not in left:
                raise ValueError(f"it does not hold the build {build}")
        while (member := archive.next()) is not None:
            if member.name not in left:
                raise ValueError(f"{member.name} is not in the index, or there twice")
            size, sha = left.pop(member.name)
            found = _write(archive, member, _inside(target, member.name))
            if (member.size, found) != (size, sha):
                raise ValueError(f"{member.name} is altered: sha256 {found}, expected {sha}")
    if left:
        raise ValueError(f"{len(left)} members are missing, the first is {next(iter(left))}")
    (target / INDEX).write_bytes(raw)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    content = _content(archive, member)
    with open(path, "wb") as file:
        for data in iter(lambda: content.read(_PIECE), b""):
            digest.update(data)
            file.write(data)
        os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)
    return digest.hexdigest()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise ValueError(f"{member.name} is no plain file")
    return content


def _place(root: Root, folder: Path, name: str) -> None:
    """A build of the bundle becomes one of the host. It is copied: the bundle stays whole until it is pruned."""
    known: Dict[str, Any] = read_json(folder / "manifest.json") or {}
    files: List[Any] = known.get("files") or []
    incoming = root.builds / f".incoming-{name}"
    shutil.rmtree(incoming, ignore_errors=True)
    shutil.copytree(folder, incoming)
    trees.accept(root, name, incoming, files, known.get("about") or {})


def _inside(target: Path, path: str) -> Path:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path} leads out of the bundle")
    return target / path
