"""Builds on the host: immutable folders named by their content.

The id is a hash over the sorted (path, mode, sha256) of the files, without byte-code, RECORD files and timestamps, so that the same sources give the
same id on another machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Tuple

from . import tool
from .files import read_json, sha256, write_json
from .paths import Root
from .runtimes import Runtime
from .wire import HOST_UNFIT, AgentError

if TYPE_CHECKING:
    from .prepare import Work

Entry = Tuple[str, int, str]
"""(relative path, 0o755 or 0o644, sha256)."""


@dataclass(frozen=True)
class Build:
    """A build in place: its id and the folder that goes on PYTHONPATH."""

    id: str
    site: Path

    def to_json(self) -> Dict[str, Any]:
        return {"id": self.id, "site": str(self.site)}


def ensure(root: Root, spec: Dict[str, Any], runtime: Runtime, work: "Work") -> Build:
    """The build of the order: one that was pushed, or an overlay installed here once for its recipe.

    Raises:
        AgentError: the pushed build is not here; pip failed.
    """
    if spec["kind"] == "tree":
        return _existing(root, spec["id"])
    stamp = root.builds / "recipes" / f"{spec['recipe']}.json"
    known = read_json(stamp)
    build = known.get("id") if known else None
    if isinstance(build, str) and (root.builds / build / "manifest.json").exists():
        return _existing(root, build)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    made = _overlay(root, spec, runtime, work)
    write_json(stamp, {"id": made.id, "requirements": spec["requirements"]})
    return made


def manifest(site: Path) -> List[Entry]:
    """Every file of a tree that counts, sorted by path."""
    return sorted(_entries(site, ""))


def content_id(entries: List[Entry]) -> str:
    """12 hex digits over the manifest."""
    digest = hashlib.sha256()
    for path, mode, sha in entries:
        digest.update(f"{path}\0{mode:o}\0{sha}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]


def counts(name: str) -> bool:
    """Whether a file or folder of this name is part of a build's content."""
    return name not in ("__pycache__", "RECORD") and not name.endswith(".pyc")


def make_read_only(site: Path) -> None:
    """A build never changes: its files lose their write bits. Files that rsync linked from an older build have lost them already."""
    for folder, _, names in os.walk(site):
        for name in names:
            path = os.path.join(folder, name)
            mode = os.stat(path).st_mode
            if mode & 0o222:
                os.chmod(path, mode & ~0o222)


def _overlay(root: Root, spec: Dict[str, Any], runtime: Runtime, work: "Work") -> Build:
    work.emit("phase", phase="install", progress=None, detail=f"build {spec['name']}")
    incoming = root.builds / f".incoming-{spec['recipe'][:12]}"
    shutil.rmtree(incoming, ignore_errors=True)
    site = incoming / "site"
    pip = [str(runtime.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    argv = [*pip, "install", "--no-deps", "--no-compile", "--progress-bar", "off", "--target", str(site), *spec["requirements"]]
    tool.run(
        argv, what=f"installing {' '.join(spec['requirements'])}", log=work.log, cancelled=work.cancelled, deadline=work.deadline
    )
    entries = manifest(site)
    build = f"{spec['name']}-{content_id(entries)}"
    write_json(
        incoming / "manifest.json",
        {"id": build, "requirements": spec["requirements"], "files": [list(entry) for entry in entries]},
    )
    make_read_only(site)
    target = root.builds / build
    if target.exists():
        shutil.rmtree(incoming)
    else:
        os.replace(incoming, target)
    return _existing(root, build)


def _existing(root: Root, name: str) -> Build:
    folder = root.builds / name
    if not (folder / "manifest.json").exists():
        raise AgentError(
            f"the build {name} is not on the host",
            evidence=f"{folder} has no manifest.json",
            next="gpuops up pushes it",
            code=HOST_UNFIT,
            kind="build",
        )
    return Build(name, folder / "site")


def _entries(folder: Path, prefix: str) -> Iterator[Entry]:
    for item in os.scandir(folder):
        if not counts(item.name):
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _entries(Path(item.path), f"{prefix}{item.name}/")
        else:
            mode = 0o755 if item.stat().st_mode & stat.S_IXUSR else 0o644
            yield f"{prefix}{item.name}", mode, sha256(Path(item.path))
