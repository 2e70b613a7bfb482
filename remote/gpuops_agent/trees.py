"""The `tree.*` verbs: builds that come from the controller, checked file by file before they count.

A tree is pushed into an incoming folder beside its final place, and renamed when every sha256 of its manifest holds.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Dict, Optional

from . import builds
from .files import sync_folder, write_json
from .paths import Root
from .wire import HOST_UNFIT, AgentError


def have(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Whether the tree is here; else where to put it, and the newest other tree of its kind to link unchanged files from."""
    folder = root.builds / _plain(args["id"])
    if (folder / "manifest.json").exists():
        return {"present": True, "incoming": "", "link_dest": None}
    incoming = _incoming(root, args["id"])
    (incoming / "site").mkdir(parents=True, exist_ok=True)
    nearest = _nearest(root, args["id"])
    return {"present": False, "incoming": str(incoming / "site"), "link_dest": str(nearest) if nearest else None}


def commit(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Check the incoming tree against its manifest and give it its final name.

    Raises:
        AgentError: a file is missing, altered or too many; the folder stays for the next attempt.
    """
    name = _plain(args["id"])
    incoming, final = _incoming(root, name), root.builds / name
    if (final / "manifest.json").exists():
        # Somebody else pushed the same content meanwhile.
        shutil.rmtree(incoming, ignore_errors=True)
        return {"id": name}
    if not (incoming / "site").is_dir():
        raise AgentError(f"nothing of {name} has arrived", next="run the same command again", code=HOST_UNFIT, kind="tree")
    found = {path: (mode, sha) for path, mode, sha in builds.manifest(incoming / "site")}
    wanted = {path: (mode, sha) for path, mode, sha in args["manifest"]}
    wrong = sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    if wrong:
        raise AgentError(
            f"{len(wrong)} files of {name} did not arrive as they were sent",
            evidence=", ".join(wrong[:3]),
            next="run the same command again: only these files are sent",
            code=HOST_UNFIT,
            kind="checksum",
        )
    write_json(incoming / "manifest.json", {"id": name, "files": args["manifest"]})
    builds.make_read_only(incoming / "site")
    os.replace(incoming, final)
    sync_folder(final.parent)
    return {"id": name}


def _incoming(root: Root, name: str) -> Path:
    return root.builds / f".incoming-{_plain(name)}"


def _nearest(root: Root, name: str) -> Optional[Path]:
    """The newest build of the same name (its hash aside), else the newest of all."""
    complete = [folder for folder in root.builds.iterdir() if (folder / "manifest.json").exists()]
    stem = name.rpartition("-")[0]
    best = max(complete, key=lambda folder: (folder.name.rpartition("-")[0] == stem, folder.stat().st_mtime), default=None)
    return best / "site" if best else None


def _plain(name: str) -> str:
    if "/" in name or name.startswith(".") or not name:
        raise AgentError(f"{name!r} is no name for a tree", code=2, kind="usage")
    return name
