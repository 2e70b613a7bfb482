"""Making a build: a wheel unpacked, patches beside it, a manifest over both, and a name by their content."""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuops import __version__
from gpuops.builds import about, patches, source, wheel
from gpuops.builds.manifest import Tree, hashed, read_build, write_manifest
from gpuops.builds.store import STAGING, writing
from gpuops.errors import GpuopsError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,48}\Z")


@dataclass(frozen=True)
class Made:
    """A build that is there now: its folder and content, and whether it is new."""

    path: Path
    tree: Tree
    new: bool


def make(
    builds: Path,
    origin: Path | None,
    *,
    name: str | None = None,
    patch_folder: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Made:
    """Make ``builds/<name>-<id>/`` of a wheel and patches; either may be missing, not both.

    Args:
        origin: a folder with a pyproject.toml, or a wheel.
        name: the build's name; the distribution's when absent.
        patch_folder: holds ``<engine>-<version>/*.patch``.
        note: told what takes a while.
    Raises:
        GpuopsError: the wheel cannot be built, or is for another platform or Python; a patch is none; there is nothing to make; the folder
            cannot be written.
    """
    if origin is None and patch_folder is None:
        raise GpuopsError(
            "there is nothing to make a build of", next="gpuops builds make --from FOLDER, or --patches FOLDER", kind="source"
        )
    for path in (origin, patch_folder):
        if path is not None and not path.exists():
            raise GpuopsError(
                f"there is no {path}", evidence=f"looked in {Path.cwd()}", next="gpuops builds make --from FOLDER", kind="source"
            )
    with writing(builds, "--dir DIR"):
        return _make(builds, origin, name, patch_folder, note)


def _make(builds: Path, origin: Path | None, name: str | None, patch_folder: Path | None, note: Callable[[str], None]) -> Made:
    builds.mkdir(parents=True, exist_ok=True)
    # Beside its final place: the last step is a rename.
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=builds))
    try:
        (staging / "site").mkdir()
        facts, usual_name = _wheel(origin, staging / "site", note) if origin is not None else ({}, None)
        engines = patches.take(patch_folder, staging / "patches") if patch_folder is not None else ()
        _no_double(staging, engines)
        chosen = _checked(name or usual_name or (patch_folder.name if patch_folder else ""))
        parts = {part: staging / part for part in ("site", "patches") if (staging / part).is_dir()}
        tree = hashed(chosen, parts, {"name": chosen, **facts, "patches": list(engines), "made": _made()})
        return _named(builds, staging, tree)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _wheel(origin: Path, site: Path, note: Callable[[str], None]) -> tuple[dict[str, Any], str]:
    """Unpack a wheel, built first when ``origin`` is a source folder; returns what is known of it, and its distribution's name."""
    sources: Path | None
    with tempfile.TemporaryDirectory(prefix="gpuops-wheel-") as scratch:
        if origin.is_dir():
            note(f"building the wheel of {origin}")
            sources = Path(scratch) / (origin.resolve().name or "source")
            where = _copied(origin, sources)
            file = wheel.build(sources, Path(scratch) / "wheels", note)
        else:
            sources, where, file = None, {"wheel": origin.name}, origin
        facts = wheel.read(file)
        wheel.unpack(file, site)
        project = {} if sources is None else {**about.of_project(sources), **about.of_kernels(sources, site)}
    told = {"wheel": facts.to_json(), "source": where, **project, **about.of_site(site)}
    return told, re.sub(r"[-_.]+", "-", facts.name).lower()


def _copied(origin: Path, target: Path) -> dict[str, Any]:
    """Copy a source folder, that of its base first; returns where it comes from."""
    base = about.base_of(origin)
    if base is None:
        source.copy(origin, target)
        return source.origin(origin).to_json()
    source.copy(base, target)
    source.copy(origin, target)
    return {**source.origin(origin).to_json(), "base": source.origin(base).to_json()}


def _no_double(staging: Path, engines: tuple[str, ...]) -> None:
    """Raises GpuopsError when a patch is for a package that the build brings itself: only one of the two could be imported."""
    for engine in engines:
        for file in sorted((staging / "patches" / engine).iterdir()):
            package = patches.touched(file)[0].split("/")[0]
            if (staging / "site" / package).exists():
                raise GpuopsError(
                    f"{engine}/{file.name} patches {package}, which the wheel brings itself",
                    evidence=f"site/{package}",
                    next="apply the patch to the wheel's sources, or leave the wheel out",
                    kind="patch",
                )


def _named(builds: Path, staging: Path, tree: Tree) -> Made:
    path = builds / tree.id
    if path.exists():
        return Made(path, read_build(path), new=False)
    write_manifest(staging, tree)
    for part in tree.parts.values():
        for file in part.rglob("*"):
            if file.is_file():
                file.chmod(file.stat().st_mode & ~0o222)
    # mkdtemp makes it private.
    staging.chmod(0o755)
    try:
        staging.rename(path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        # Somebody else made the same meanwhile.
        return Made(path, read_build(path), new=False)
    return Made(path, replace(tree, parts={part: path / part for part in tree.parts}), new=True)


def _made() -> dict[str, Any]:
    return {"at": round(time.time()), "gpuops": __version__}


def _checked(name: str) -> str:
    if not _NAME.match(name):
        raise GpuopsError(
            f"{name!r} is no name for a build",
            evidence="lower-case letters, digits, '.', '_' and '-'",
            next="--name NAME",
            kind="usage",
        )
    return name
