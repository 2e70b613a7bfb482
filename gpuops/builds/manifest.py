"""A folder as a build: every file with its mode and sha256, and the id over them.

The agent computes the same on the host (``gpuops_agent/builds.py``); a test holds the two together.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuops.errors import PlaybookError

Entry = tuple[str, int, str]
"""(relative path, 0o755 or 0o644, sha256 in hex)."""


@dataclass(frozen=True)
class Tree:
    """A hashed folder: its id ``<folder name>-<12 hex digits>`` and its files, sorted by path."""

    source: Path
    id: str
    entries: tuple[Entry, ...]


def read_tree(folder: Path) -> Tree:
    """Hash a folder. Byte-code and RECORD files do not count; links and special files are refused.

    Raises:
        PlaybookError: the folder is empty or holds something that is no plain file.
    """
    entries = tuple(sorted(_entries(folder, "")))
    if not entries:
        raise PlaybookError(f"the build {folder} is empty", next="name the folder that goes on PYTHONPATH in build.tree")
    digest = hashlib.sha256()
    for path, mode, sha in entries:
        digest.update(f"{path}\0{mode:o}\0{sha}\n".encode("utf-8", "surrogateescape"))
    return Tree(folder, f"{folder.name}-{digest.hexdigest()[:12]}", entries)


def counts(name: str) -> bool:
    """Whether a file or folder of this name is part of a build's content."""
    return name not in ("__pycache__", "RECORD") and not name.endswith(".pyc")


def _entries(folder: Path, prefix: str) -> Iterator[Entry]:
    for item in os.scandir(folder):
        if not counts(item.name):
            continue
        if item.is_symlink() or not (item.is_file() or item.is_dir()):
            raise PlaybookError(f"the build holds {item.path}, which is no plain file", next="copy what it points to")
        if item.is_dir():
            yield from _entries(Path(item.path), f"{prefix}{item.name}/")
        else:
            mode = 0o755 if item.stat().st_mode & stat.S_IXUSR else 0o644
            yield f"{prefix}{item.name}", mode, hashlib.sha256(Path(item.path).read_bytes()).hexdigest()
