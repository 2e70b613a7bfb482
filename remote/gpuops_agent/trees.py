"""The `tree.*` and `build.*` verbs: builds that come from the controller, checked file by file before they count, and looking at those that are here.

A tree is pushed into an incoming folder beside its final place, and renamed when every sha256 of its manifest holds.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import beats, builds
from .files import read_json, sync_folder
from .paths import Root
from .wire import HOST_UNFIT, AgentError


def have(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Whether the tree is here; else where to put its parts, and the newest other tree of its kind to link unchanged files of ``site/`` from.

    Args: ``kind``, ``id``, ``sizes``: ``[path, sha256, bytes]`` of every file, absent from an older controller.

    Raises:
        AgentError: not enough disk for the files that are not here (code 5).
    """
    folder = root.builds / _plain(args["id"])
    if builds.is_complete(folder):
        return {"present": True, "incoming": "", "link_dest": None}
    incoming = _incoming(root, args["id"])
    nearest = _nearest(root, args["id"])
    root.builds.mkdir(parents=True, exist_ok=True)
    _must_have_room(args["id"], incoming, nearest, args.get("sizes") or [])
    (incoming / "site").mkdir(parents=True, exist_ok=True)
    return {"present": False, "incoming": str(incoming), "link_dest": str(nearest) if nearest else None}


def commit(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Check the incoming tree against its manifest and give it its final name.

    Raises:
        AgentError: a file is missing, altered or too many, or the name is not that of the content; the folder stays for the next attempt.
    """
    name = _plain(args["id"])
    incoming = _incoming(root, name)
    if not builds.is_complete(root.builds / name) and not (incoming / "site").is_dir():
        raise AgentError(f"nothing of {name} has arrived", next="run the same command again", code=HOST_UNFIT, kind="tree")
    return accept(root, name, incoming, args["manifest"], args.get("about") or {})


def accept(root: Root, name: str, incoming: Path, files: List[Any], about: Dict[str, Any]) -> Dict[str, Any]:
    """Make a folder that has arrived the build ``name``; see :func:`commit`."""
    final = root.builds / name
    if builds.is_complete(final):
        # Somebody else brought the same content meanwhile.
        shutil.rmtree(incoming, ignore_errors=True)
        return {"id": name}
    found = {path: (mode, sha) for path, mode, sha in builds.manifest(incoming)}
    wanted = {path: (mode, sha) for path, mode, sha in files}
    wrong = sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    if wrong:
        raise AgentError(
            f"{len(wrong)} files of {name} did not arrive as they were sent",
            evidence=", ".join(wrong[:3]),
            next="run the same command again: only these files are sent",
            code=HOST_UNFIT,
            kind="checksum",
        )
    entries = sorted((path, mode, sha) for path, (mode, sha) in found.items())
    if builds.content_id(entries) != name.rpartition("-")[2]:
        raise AgentError(
            f"the build {name} is not what its name says",
            evidence=f"its files make the id ...-{builds.content_id(entries)}",
            next="make it again: gpuops builds make",
            code=HOST_UNFIT,
            kind="manifest",
        )
    (incoming / "site").mkdir(exist_ok=True)
    builds.drop_byte_code(incoming)
    builds.write_manifest(incoming, name, entries, about)
    builds.make_read_only(incoming / "site")
    if final.exists():
        # Of an older agent's layout: nothing that can be used.
        shutil.rmtree(final)
    os.replace(incoming, final)
    sync_folder(final.parent)
    return {"id": name}


def listed(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The verb `build.list`: ``{builds: [{id, files, at, about}]}``, newest first; ``at`` is the wall clock of its arrival."""
    found = [
        {
            "id": folder.name,
            "files": len((read_json(folder / "manifest.json") or {}).get("files", ())),
            "at": (folder / "manifest.json").stat().st_ctime,
            "about": builds.about(folder),
        }
        for folder in _complete(root)
    ]
    return {"builds": sorted(found, key=lambda each: each["at"], reverse=True)}


def verify(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The verb `build.verify {id}`: every file's sha256 against the manifest, and the manifest against the name.

    Returns:
        ``{id, files, wrong: [{path, what}]}``; see :func:`builds.differences`.
    Raises:
        AgentError: the host has no such build.
    """
    name = _plain(args["id"])
    folder = root.builds / name
    if not (folder / "manifest.json").exists():
        known = ", ".join(each.name for each in _complete(root)) or "none"
        raise AgentError(
            f"the build {name} is not on the host", evidence=f"there: {known}", next=f"gpuops builds push {name}", kind="build"
        )
    return beats.during(lambda: {"id": name, "files": len(builds.manifest(folder)), "wrong": builds.differences(folder)})


def _complete(root: Root) -> List[Path]:
    try:
        folders = [Path(entry.path) for entry in os.scandir(root.builds) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(folder for folder in folders if not folder.name.startswith(".") and builds.is_complete(folder))


def _must_have_room(name: str, incoming: Path, nearest: Optional[Path], sizes: List[Any]) -> None:
    known = (read_json(nearest / "manifest.json") or {}).get("files", ()) if nearest else ()
    linked = {(path, sha) for path, _, sha in known if path.startswith("site/")}
    needed = sum(size for path, sha, size in sizes if (path, sha) not in linked and _size(incoming / path) != size)
    free = shutil.disk_usage(incoming.parent).free
    if free < needed:
        raise AgentError(
            f"the host has not enough disk for the build {name}: {needed >> 20} MB needed, {free >> 20} MB free",
            evidence=str(incoming.parent),
            next="free space on the host (gpuops prune), or set host.root to a larger disk; the running server was not touched",
            code=HOST_UNFIT,
            kind="disk_full",
        )


def _size(path: Path) -> Optional[int]:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _incoming(root: Root, name: str) -> Path:
    return root.builds / f".incoming-{_plain(name)}"


def _nearest(root: Root, name: str) -> Optional[Path]:
    """The newest build of the same name (its hash aside), else the newest of all."""
    stem = name.rpartition("-")[0]
    return max(_complete(root), key=lambda folder: (folder.name.rpartition("-")[0] == stem, folder.stat().st_mtime), default=None)


def _plain(name: str) -> str:
    if "/" in name or name.startswith(".") or not name:
        raise AgentError(f"{name!r} is no name for a tree", code=2, kind="usage")
    return name
