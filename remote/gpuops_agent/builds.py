"""Builds on the host: immutable folders named by their content.

``builds/<id>/`` holds ``manifest.json``, ``site/``, which goes on PYTHONPATH, and, where it has some, ``patches/<engine>-<version>/*.patch``.
The id is a hash over the sorted (path, mode, sha256) of ``site/`` and ``patches/``, without byte-code, RECORD files and timestamps, so that the
same sources give the same id on another machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from . import fitness, overlays, tool
from .files import read_json, sha256, write_json
from .overlays import Overlay
from .paths import Root
from .runtimes import Runtime
from .wire import HOST_UNFIT, AgentError

if TYPE_CHECKING:
    from .prepare import Work

MANIFEST_VERSION = 1
"""Of ``manifest.json``: ``{version, id, files: [[path, mode, sha256]], about}``; ``about`` is outside of the id."""

PARTS = ("site", "patches")

Entry = Tuple[str, int, str]
"""(path from the build's folder, 0o755 or 0o644, sha256)."""

NO_FILE = (0, "")
"""Mode and sha256 of what is no plain file. A link could lead to something else tomorrow: no manifest says so, and nothing is read through it."""


@dataclass(frozen=True)
class Build:
    """A build in place: its id, the folder that goes on PYTHONPATH, the patched copy that goes before it, and what its maker knows of it."""

    id: str
    site: Path
    overlay: Optional[Overlay] = None
    about: Dict[str, Any] = field(default_factory=dict)

    @property
    def python_path(self) -> str:
        return ":".join(str(folder) for folder in (self.overlay.site if self.overlay else None, self.site) if folder)

    def to_json(self) -> Dict[str, Any]:
        return {"id": self.id, "site": str(self.site), "overlay": self.overlay.to_json() if self.overlay else None}


def ensure(root: Root, spec: Dict[str, Any], runtime: Runtime, engine: Dict[str, Any], work: "Work") -> Build:
    """The build of the order: one that was pushed, or an overlay installed here once for its recipe.

    Args:
        engine: ``{name, version}`` of the order.
    Raises:
        AgentError: the pushed build is not here, is not what its manifest says, or does not fit the runtime or the engine; a patch does not
            apply; pip failed.
    """
    if spec["kind"] == "overlay":
        return _installed(root, spec, runtime, work)
    folder = _folder(root, spec["id"])
    must_be_true(folder)
    told = about(folder)
    fitness.check(spec["id"], folder / "site", told, runtime, engine)
    work.emit("checked", build=spec["id"])
    return Build(spec["id"], folder / "site", overlays.ensure(root, folder, runtime, engine, work), told)


def manifest(folder: Path) -> List[Entry]:
    """Every file of a build's folder that counts, sorted by path."""
    return sorted(entry for part in PARTS if (folder / part).is_dir() for entry in _entries(folder / part, f"{part}/"))


def content_id(entries: List[Entry]) -> str:
    """12 hex digits over the manifest."""
    digest = hashlib.sha256()
    for path, mode, sha in entries:
        digest.update(f"{path}\0{mode:o}\0{sha}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]


def counts(name: str) -> bool:
    """Whether a file or folder of this name is part of a build's content."""
    return name not in ("__pycache__", "RECORD") and not name.endswith(".pyc")


def is_complete(folder: Path) -> bool:
    """Whether a folder is a build that this agent understands."""
    return (read_json(folder / "manifest.json") or {}).get("version") == MANIFEST_VERSION


def about(folder: Path) -> Dict[str, Any]:
    """What the build's maker wrote beside its content; empty for an overlay that was installed here."""
    return (read_json(folder / "manifest.json") or {}).get("about") or {}


def write_manifest(folder: Path, name: str, entries: List[Entry], facts: Dict[str, Any]) -> None:
    """Write ``manifest.json``, whole or not at all."""
    files = [list(entry) for entry in entries]
    write_json(folder / "manifest.json", {"version": MANIFEST_VERSION, "id": name, "files": files, "about": facts})


def differences(folder: Path) -> List[Dict[str, str]]:
    """Where a build is not what its manifest says: ``{path, what}`` with what one of ``missing``, ``altered``, ``mode``, ``unknown``, ``id``."""
    known = read_json(folder / "manifest.json") or {}
    try:
        listed = [(str(path), int(mode), str(sha)) for path, mode, sha in known.get("files", ())]
    except (TypeError, ValueError):
        return [{"path": "manifest.json", "what": "id"}]
    found = {path: (mode, sha) for path, mode, sha in manifest(folder)}
    wanted = {path: (mode, sha) for path, mode, sha in listed}
    wrong = [{"path": path, "what": _what(wanted.get(path), found.get(path))} for path in sorted(wanted.keys() | found.keys())]
    wrong = [each for each in wrong if each["what"]]
    if folder.name.rpartition("-")[2] != content_id(sorted(listed)) or known.get("id") != folder.name:
        wrong.append({"path": "manifest.json", "what": "id"})
    return wrong


def must_be_true(folder: Path) -> None:
    """Raises AgentError (exit code 5) when a build is not what its manifest and its name say."""
    wrong = differences(folder)
    if wrong:
        raise AgentError(
            f"the build {folder.name} is not what its manifest says: {len(wrong)} files differ",
            evidence=", ".join(f"{each['path']} ({each['what']})" for each in wrong[:3]),
            next=f"remove {folder} on the host, then run the same command again: it is sent anew; the running server was not touched",
            code=HOST_UNFIT,
            kind="manifest",
        )


def drop_byte_code(folder: Path) -> None:
    """Byte-code is no content (:func:`counts`), so that nothing checks it: none is taken from elsewhere. This host's own comes later."""
    for parent, names, files in os.walk(folder):
        for name in [each for each in names if each == "__pycache__"]:
            shutil.rmtree(os.path.join(parent, name))
            names.remove(name)
        for name in files:
            if name.endswith(".pyc"):
                os.unlink(os.path.join(parent, name))


def make_read_only(folder: Path) -> None:
    """A build never changes: its files lose their write bits, and setuid. Files that rsync linked from an older build have lost them already."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            mode = os.stat(path).st_mode
            if mode & 0o7222:
                os.chmod(path, mode & 0o555)


def _what(wanted: Optional[Tuple[int, str]], found: Optional[Tuple[int, str]]) -> str:
    if wanted == found:
        return ""
    if wanted is None:
        return "unknown"
    if found is None:
        return "missing"
    return "altered" if wanted[1] != found[1] else "mode"


def _installed(root: Root, spec: Dict[str, Any], runtime: Runtime, work: "Work") -> Build:
    stamp = root.builds / "recipes" / f"{spec['recipe']}.json"
    known = read_json(stamp)
    build = known.get("id") if known else None
    if isinstance(build, str) and is_complete(root.builds / build):
        return Build(build, root.builds / build / "site")
    stamp.parent.mkdir(parents=True, exist_ok=True)
    made = _install(root, spec, runtime, work)
    write_json(stamp, {"id": made.id, "requirements": spec["requirements"]})
    return made


def _install(root: Root, spec: Dict[str, Any], runtime: Runtime, work: "Work") -> Build:
    work.emit("phase", phase="install", progress=None, detail=f"build {spec['name']}")
    incoming = root.builds / f".incoming-{spec['recipe'][:12]}"
    shutil.rmtree(incoming, ignore_errors=True)
    site = incoming / "site"
    pip = [str(runtime.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    options = ["--no-deps", "--no-compile", "--progress-bar", "off", "--target", str(site), *work.package_source()]
    tool.run(
        [*pip, "install", *options, *spec["requirements"]],
        what=f"installing {' '.join(spec['requirements'])}",
        log=work.log,
        cancelled=work.cancelled,
        deadline=work.deadline,
    )
    drop_byte_code(incoming)
    entries = manifest(incoming)
    build = f"{spec['name']}-{content_id(entries)}"
    write_manifest(incoming, build, entries, {"requirements": spec["requirements"]})
    make_read_only(site)
    target = root.builds / build
    if target.exists():
        shutil.rmtree(incoming)
    else:
        os.replace(incoming, target)
    return Build(build, target / "site")


def _folder(root: Root, name: str) -> Path:
    folder = root.builds / name
    if not is_complete(folder):
        raise AgentError(
            f"the build {name} is not on the host",
            evidence=f"{folder} has no manifest.json",
            next="gpuops up pushes it",
            code=HOST_UNFIT,
            kind="build",
        )
    return folder


def _entries(folder: Path, prefix: str) -> Iterator[Entry]:
    for item in os.scandir(folder):
        if not counts(item.name):
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _entries(Path(item.path), f"{prefix}{item.name}/")
        elif not item.is_file(follow_symlinks=False):
            yield (f"{prefix}{item.name}", *NO_FILE)
        else:
            mode = 0o755 if item.stat().st_mode & stat.S_IXUSR else 0o644
            yield f"{prefix}{item.name}", mode, sha256(Path(item.path))
