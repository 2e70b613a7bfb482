"""The sources of a wheel: where they come from (commit, uncommitted changes), and a copy of them that is the same on every machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.errors import GpuopsError


@dataclass(frozen=True)
class Origin:
    """Where sources come from.

    Args:
        commit: the commit that is checked out; None outside of a git repository.
        dirty: 12 hex digits over what differs from it within the folder, files that git does not know included; None when nothing does.
    """

    commit: str | None
    dirty: str | None

    def to_json(self) -> dict[str, Any]:
        return {"commit": self.commit, "dirty": self.dirty}


def origin(folder: Path) -> Origin:
    """Ask git about a folder. One that a repository ignores is of no commit of it."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or not _known(folder):
        return Origin(None, None)
    digest = hashlib.sha256(_git(folder, "diff", "HEAD", "--binary", "--no-ext-diff", "--", ".") or b"")
    new = _names(_git(folder, "ls-files", "--others", "--exclude-standard", "-z") or b"")
    for name in new:
        digest.update(os.fsencode(name) + b"\0" + (folder / name).read_bytes())
    clean = digest.digest() == hashlib.sha256(b"").digest()
    return Origin(commit.decode().strip(), None if clean else digest.hexdigest()[:12])


def copy(folder: Path, target: Path) -> None:
    """Copy the sources: what git knows or would know (everything but byte-code outside of a repository), modes 0644 or 0755.

    A wheel is built from this copy, so that nothing that lies about in the folder gets into it, and nothing of the build gets into the folder.
    A link to a file of the same repository, or of the folder where there is none, becomes that file.

    Raises:
        GpuopsError: there is nothing to build in the folder; something in it is no file of its own.
    """
    if not (folder / "pyproject.toml").is_file():
        raise GpuopsError(
            f"{folder} cannot be built",
            evidence="it has no pyproject.toml",
            next="gpuops builds make --from FOLDER, or --from FILE.whl, or --patches FOLDER alone",
            kind="source",
        )
    top = _git(folder, "rev-parse", "--show-toplevel")
    home = Path(os.fsdecode(top).removesuffix("\n") if top else folder).resolve()
    for name in _known(folder) or _all(folder):
        source, path = folder / name, target / name
        if not os.path.lexists(source):
            # In the index, and removed from the folder.
            continue
        _must_be_own_file(source, home)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        path.chmod(0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644)


def _must_be_own_file(path: Path, home: Path) -> None:
    """Raises GpuopsError for what would be left out in silence, or be another file on another machine."""
    if path.is_file():
        if path.resolve().is_relative_to(home):
            return
        why, cure = f"it is a link to {path.resolve()}, which another machine need not have", "copy the file to its place"
    elif path.is_symlink():
        why = f"it is a link to {path.readlink()}, {'a folder' if path.is_dir() else 'which is not there'}"
        cure = "copy what it points to, or remove the link"
    else:
        why, cure = "it is a repository of its own, or no file", "copy its files to their place, or let .gitignore name it"
    raise GpuopsError(f"{path} cannot be built", evidence=why, next=cure, kind="source")


def _known(folder: Path) -> list[str]:
    """What git knows, or would know, of a folder; nothing outside of a repository, and of a folder that one ignores."""
    return _names(_git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z") or b"")


def _all(folder: Path) -> list[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return sorted(str(path) for path in files if "__pycache__" not in path.parts and ".git" not in path.parts)


def _names(listed: bytes) -> list[str]:
    return sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)


def _git(folder: Path, *words: str) -> bytes | None:
    """What git says; None when there is no git, or no repository.

    Raises:
        GpuopsError: git does not trust the repository's owner. Without it, files that it ignores would get into the build.
    """
    argv, env = ["git", "-C", str(folder), *words], {**os.environ, "LC_ALL": "C"}
    try:
        ended = subprocess.run(argv, capture_output=True, check=False, stdin=subprocess.DEVNULL, env=env)
    except OSError:
        return None
    if b"dubious ownership" in ended.stderr:
        said = ended.stderr.decode(errors="replace").splitlines()[0]
        raise GpuopsError(
            f"git does not say what belongs to {folder}",
            evidence=said,
            next=f"git config --global --add safe.directory {said.rpartition(' at ')[2]}",
            kind="source",
        )
    return ended.stdout if ended.returncode == 0 else None
