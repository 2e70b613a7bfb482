"""The folder that holds the builds of this machine: ``--dir``, else ``$GPUOPS_BUILDS``, else ``builds/`` in the present folder."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.builds.manifest import is_build, read_manifest
from gpuops.errors import Exit, GpuopsError

VARIABLE = "GPUOPS_BUILDS"
USUAL = Path("builds")

# What a build is called while it is made, and while it is removed.
STAGING, TRASH = ".making-", ".trash-"

# Nothing is made or removed for so long; seconds.
_ABANDONED_AFTER = 3600


@dataclass(frozen=True)
class Stored:
    """A build in the folder, as its manifest tells; nothing of it has been checked."""

    path: Path
    manifest: dict[str, Any]

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def name(self) -> str:
        """Its name, without the hash."""
        return self.path.name.rpartition("-")[0]

    @property
    def about(self) -> dict[str, Any]:
        return dict(self.manifest.get("about") or {})

    @property
    def made_at(self) -> float:
        return float((self.about.get("made") or {}).get("at") or 0.0)


def folder(chosen: Path | None) -> Path:
    """The folder, by the option, the environment or the present folder."""
    return chosen or Path(os.environ.get(VARIABLE) or USUAL)


def listed(builds: Path) -> list[Stored]:
    """Every build, newest first. Folders that are none, or whose manifest cannot be read (:func:`unreadable`), are left out."""
    found = []
    for path in _folders(builds):
        with contextlib.suppress(GpuopsError):
            found.append(Stored(path, read_manifest(path)))
    return sorted(found, key=lambda each: (each.made_at, each.id), reverse=True)


def unreadable(builds: Path) -> list[GpuopsError]:
    """Why builds of the folder are left out of the list."""
    errors = []
    for path in _folders(builds):
        try:
            read_manifest(path)
        except GpuopsError as error:
            errors.append(error)
    return errors


def find(builds: Path, word: str) -> Path:
    """A build's folder by its path, its id, its name where only one has it, the beginning of its id, or the beginning of its hash.

    Raises:
        GpuopsError: there is none, or several.
    """
    for path in (Path(word), builds / word):
        if "/" in str(path) and is_build(path):
            return path
    known = listed(builds)
    named = [each for each in known if word in (each.id, each.name)]
    hits = named or [each for each in known if word and (each.id.startswith(word) or each.id.rpartition("-")[2].startswith(word))]
    if len(hits) == 1:
        return hits[0].path
    raise GpuopsError(
        f"{word} names {len(hits)} builds" if hits else f"there is no build {word}",
        evidence=", ".join(each.id for each in (hits or known)[:5]) or f"{builds} holds none",
        next="gpuops builds list" if known else "gpuops builds make",
        code=Exit.USAGE,
        kind="build",
    )


@dataclass(frozen=True)
class Verdict:
    """Whether a build goes, and why."""

    build: Stored
    goes: bool
    why: str


def decide(known: Collection[Stored], keep: int, needed: dict[str, str]) -> list[Verdict]:
    """Judge every build.

    Args:
        keep: how many of a name stay, the newest.
        needed: builds that stay in any case, with the reason.
    """
    verdicts, seen = [], dict[str, int]()
    for each in sorted(known, key=lambda one: (one.made_at, one.id), reverse=True):
        seen[each.name] = seen.get(each.name, 0) + 1
        newest = f"among the newest {keep} of its name" if seen[each.name] <= keep else ""
        why = needed.get(each.id) or newest
        verdicts.append(Verdict(each, not why, why or f"older than the newest {keep} of its name, and nothing needs it"))
    return verdicts


def remove(build: Stored) -> None:
    """Delete a build: renamed first, so that nobody takes half of one for a whole. Of a link, the link.

    Raises:
        GpuopsError: it cannot be deleted.
    """
    trash = build.path.with_name(f"{TRASH}{build.id}-{os.urandom(4).hex()}")
    with writing(build.path.parent, "the user whose builds these are"):
        build.path.rename(trash)
        if trash.is_symlink():
            trash.unlink()
        else:
            shutil.rmtree(trash)


def sweep(builds: Path, now: float) -> None:
    """Remove what a `make` or a `prune` that was killed has left. ``now`` is the wall clock in seconds."""
    for path in [path for prefix in (STAGING, TRASH) for path in builds.glob(f"{prefix}*")]:
        if now - path.lstat().st_mtime > _ABANDONED_AFTER:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def writing(folder: Path, cure: str) -> Iterator[None]:
    """What the disk refuses, as an error that a person can act on; ``cure`` is what else could be chosen."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise GpuopsError(
            f"the disk of {folder} is full" if full else f"a file for {folder} could not be read or written",
            evidence=str(error),
            next=f"free space (df -h {folder.absolute().parent}), or choose {cure}" if full else f"choose {cure}",
            kind="disk_full" if full else "io_error",
        ) from error


def size(build: Stored) -> int:
    """Bytes on disk."""
    return sum(path.stat().st_blocks * 512 for path in build.path.rglob("*") if path.is_file())


def _folders(builds: Path) -> list[Path]:
    """What looks like a build."""
    try:
        return sorted(path for path in builds.iterdir() if not path.name.startswith(".") and is_build(path))
    except OSError:
        return []
