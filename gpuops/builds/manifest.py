"""A folder as a build: every file with its mode and sha256, and the id over them.

A build is ``{manifest.json, site/, patches/<engine>-<version>/*.patch}``; a plain folder that a playbook names is one of ``site/`` alone. The agent
computes the same on the host (``gpuops_agent/builds.py``); a test holds the two together.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.errors import GpuopsError, PlaybookError

VERSION = 1
MANIFEST = "manifest.json"
PARTS = ("site", "patches")

Entry = tuple[str, int, str]
"""(path from the build's folder, 0o755 or 0o644, sha256 in hex)."""

NO_FILE = (0, "")
"""Mode and sha256 of what lies in a build and is no plain file: nothing that a manifest could say."""


@dataclass(frozen=True)
class Tree:
    """A hashed build.

    Args:
        id: ``<name>-<12 hex digits>``.
        parts: the folders that it consists of, by part.
        entries: its files, sorted by path.
        about: what its maker knows of it, outside of the id.
        clean: whether the folders hold nothing else, so that they can be sent as they are.
    """

    id: str
    parts: Mapping[str, Path]
    entries: tuple[Entry, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    clean: bool = True

    @property
    def patched(self) -> tuple[str, ...]:
        """The engines that it has patches for, as ``<engine>-<version>``."""
        return tuple(sorted({path.split("/")[1] for path, _, _ in self.entries if path.startswith("patches/")}))


def read_tree(folder: Path) -> Tree:
    """Hash what a playbook names: a build as :func:`gpuops.builds.make.make` made it, or any folder that shall go on PYTHONPATH.

    Byte-code and RECORD files do not count; links and special files are refused.

    Raises:
        GpuopsError: it is a build, and its manifest does not tell the truth.
        PlaybookError: the folder is empty or holds something that is no plain file.
    """
    if is_build(folder):
        return read_build(folder)
    tree = hashed(folder.name, {"site": folder})
    if not tree.entries:
        raise PlaybookError(f"the build {folder} is empty", next="name the folder that goes on PYTHONPATH in build.tree")
    return tree


def read_build(folder: Path) -> Tree:
    """Read a build and check every file against its manifest, and the manifest against its name.

    Raises:
        GpuopsError: something differs (``manifest``), with the first files.
    """
    tree, wrong = verified(folder)
    if wrong:
        raise GpuopsError(
            f"the build {folder.name} is not what its manifest says: {len(wrong)} files differ",
            evidence=", ".join(f"{path} ({what})" for path, what in wrong[:3]),
            next=f"remove {folder} and make it again: gpuops builds make",
            kind="manifest",
        )
    return tree


def verified(folder: Path) -> tuple[Tree, tuple[tuple[str, str], ...]]:
    """A build, and where it differs from its manifest: (path, one of ``missing``, ``altered``, ``mode``, ``unknown``, ``id``).

    A link in the place of a file differs from it, whatever it points to.
    """
    told = read_manifest(folder)
    tree = hashed("", {part: folder / part for part in PARTS if (folder / part).is_dir()}, strict=False)
    wanted = {str(path): (int(mode), str(sha)) for path, mode, sha in told["files"]}
    found = {path: (mode, sha) for path, mode, sha in tree.entries}
    wrong = [
        (path, what) for path in sorted(wanted.keys() | found.keys()) if (what := _differs(wanted.get(path), found.get(path)))
    ]
    listed = sorted((path, mode, sha) for path, (mode, sha) in wanted.items())
    if told["id"] != folder.name or folder.name.rpartition("-")[2] != content_id(listed):
        wrong.append((MANIFEST, "id"))
    return Tree(folder.name, tree.parts, tree.entries, told.get("about") or {}, tree.clean), tuple(wrong)


def is_build(folder: Path) -> bool:
    """Whether a folder is a build that was made, and no plain folder of packages."""
    return (folder / MANIFEST).is_file() and (folder / "site").is_dir()


def read_manifest(folder: Path) -> dict[str, Any]:
    """``manifest.json``. Raises GpuopsError when there is none, or when it is of another version, cut, or of another form."""
    path = folder / MANIFEST
    try:
        told = json.loads(path.read_bytes())
        if told["version"] != VERSION:
            raise ValueError(f"version {told['version']}, expected {VERSION}")
        _must_be_of_its_form(told)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GpuopsError(
            f"{folder} is no build that this gpuops can read",
            evidence=f"{path}: {error}",
            next=f"remove {folder} and make it again: gpuops builds make",
            kind="manifest",
        ) from error
    return dict(told)


def write_manifest(folder: Path, tree: Tree) -> None:
    """Write ``manifest.json`` for a tree; ``about`` goes with it."""
    told = {"version": VERSION, "id": tree.id, "files": [list(entry) for entry in tree.entries], "about": tree.about}
    (folder / MANIFEST).write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def hashed(name: str, parts: Mapping[str, Path], about: Mapping[str, Any] | None = None, *, strict: bool = True) -> Tree:
    """The tree of these folders, under the name ``<name>-<id>``.

    Raises:
        PlaybookError: something is no plain file; when not ``strict``, it has an entry that no file has.
    """
    skipped: list[str] = []
    entries = tuple(
        sorted(entry for part, folder in parts.items() for entry in _entries(str(folder), f"{part}/", skipped, strict))
    )
    return Tree(f"{name}-{content_id(entries)}", dict(parts), entries, about or {}, clean=not skipped)


def content_id(entries: Iterable[Entry]) -> str:
    """12 hex digits over sorted entries."""
    digest = hashlib.sha256()
    for path, mode, sha in entries:
        digest.update(f"{path}\0{mode:o}\0{sha}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]


def counts(name: str) -> bool:
    """Whether a file or folder of this name is part of a build's content."""
    return name not in ("__pycache__", "RECORD") and not name.endswith(".pyc")


def sha256(path: Path) -> str:
    """sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def _must_be_of_its_form(told: Any) -> None:
    """Raises ValueError, KeyError, TypeError or AttributeError for what :func:`write_manifest` never writes."""
    for path, mode, sha in told["files"]:
        if not isinstance(path, str) or not isinstance(sha, str) or not isinstance(mode, int):
            raise TypeError(f"files: {path!r} is no path, {mode!r} no mode, or {sha!r} no sha256")
    about = told.get("about") or {}
    for key in ("made", "source", "wheel", "engines", "versions", "resources", "proof"):
        (about.get(key) or {}).items()
    for ranges in (about.get("engines") or {}).values():
        for each in ranges:
            if not isinstance(each["first"], str) or not isinstance(each["last"], str):
                raise TypeError(f"about.engines: {each!r}")
            for family in (each.get("families") or {}).values():
                family["on"]
    _must_be(about, "made", (int, float), "at")
    _must_be(about, "source", str, "commit", "dirty")
    _must_be(about, "source", dict, "base")
    _must_be(about, "proof", str, "plugin", "content")
    _must_be({"about": about}, "about", list, "patches", "capabilities")
    if wheel := about.get("wheel"):
        ", ".join([wheel["name"], wheel["version"], *wheel["tags"]])
    ", ".join(about.get("patches") or ())
    for binaries in (about.get("resources") or {}).values():
        for figures in binaries.values():
            max([0, *(value for name, value in figures.items() if name in ("registers", "shared", "spills"))])
    if not isinstance(told["id"], str):
        raise TypeError(f"id: {told['id']!r}")


def _must_be(about: Mapping[str, Any], part: str, kind: type | tuple[type, ...], *keys: str) -> None:
    """Raises TypeError for a value that is there and of another kind."""
    for key in keys:
        value = (about.get(part) or {}).get(key)
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{part}.{key}: {value!r}")


def _differs(wanted: tuple[int, str] | None, found: tuple[int, str] | None) -> str:
    if wanted == found:
        return ""
    if wanted is None:
        return "unknown"
    if found is None:
        return "missing"
    return "altered" if wanted[1] != found[1] else "mode"


def _entries(folder: str, prefix: str, skipped: list[str], strict: bool) -> Iterator[Entry]:
    for item in os.scandir(folder):
        if not counts(item.name):
            skipped.append(item.path)
        elif item.is_dir(follow_symlinks=False):
            yield from _entries(item.path, f"{prefix}{item.name}/", skipped, strict)
        elif item.is_file(follow_symlinks=False):
            mode = 0o755 if item.stat().st_mode & stat.S_IXUSR else 0o644
            yield f"{prefix}{item.name}", mode, sha256(Path(item.path))
        elif not strict:
            yield f"{prefix}{item.name}", *NO_FILE
        else:
            raise PlaybookError(f"the build holds {item.path}, which is no plain file", next="copy what it points to")
