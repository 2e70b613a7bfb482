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
    """A hashed folder.

    Args:
        id: ``<folder name>-<12 hex digits>``.
        entries: its files, sorted by path.
        clean: whether the folder holds nothing else, so that it can be sent as it is.
    """

    source: Path
    id: str
    entries: tuple[Entry, ...]
    clean: bool


def read_tree(folder: Path) -> Tree:
    """Hash a folder. Byte-code and RECORD files do not count; links and special files are refused.

    Raises:
        PlaybookError: the folder is empty or holds something that is no plain file.
    """
    skipped: list[str] = []
    entries = tuple(sorted(_entries(str(folder), "", skipped)))
    if not entries:
        raise PlaybookError(f"the build {folder} is empty", next="name the folder that goes on PYTHONPATH in build.tree")
    digest = hashlib.sha256()
    for path, mode, sha in entries:
        digest.update(f"{path}\0{mode:o}\0{sha}\n".encode("utf-8", "surrogateescape"))
    return Tree(folder, f"{folder.name}-{digest.hexdigest()[:12]}", entries, clean=not skipped)


def counts(name: str) -> bool:
    """Whether a file or folder of this name is part of a build's content."""
    return name not in ("__pycache__", "RECORD") and not name.endswith(".pyc")


def _entries(folder: str, prefix: str, skipped: list[str]) -> Iterator[Entry]:
    for item in os.scandir(folder):
        if not counts(item.name):
            skipped.append(item.path)
        elif item.is_dir(follow_symlinks=False):
            yield from _entries(item.path, f"{prefix}{item.name}/", skipped)
        elif item.is_file(follow_symlinks=False):
            mode = 0o755 if item.stat().st_mode & stat.S_IXUSR else 0o644
            yield f"{prefix}{item.name}", mode, _sha256(item.path)
        else:
            raise PlaybookError(f"the build holds {item.path}, which is no plain file", next="copy what it points to")


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb", buffering=0) as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()
