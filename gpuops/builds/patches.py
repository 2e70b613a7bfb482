"""The patches of a build: ``<engine>-<version>/*.patch``, unified diffs against the engine's package as it is installed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gpuops.errors import GpuopsError

_FOLDER = re.compile(r"(?P<engine>[a-z0-9_]+)-(?P<version>\d[0-9A-Za-z.]*)\Z")
_FILE = re.compile(r"^\+\+\+ b/(\S+)|^--- a/(\S+)", re.MULTILINE)


def take(source: Path, target: Path) -> tuple[str, ...]:
    """Copy a folder of patches into a build; returns the engines, ``<engine>-<version>``.

    Raises:
        GpuopsError: a folder that names no engine version, a patch that changes nothing, or something else among them.
    """
    folders = sorted(path for path in source.iterdir() if not path.name.startswith(".")) if source.is_dir() else []
    if not folders:
        raise _refused(f"{source} holds no patches", "it is empty, or no folder")
    for folder in folders:
        if not folder.is_dir() or not _FOLDER.match(folder.name):
            raise _refused(f"{folder} is no folder of patches", "expected ENGINE-VERSION, such as sglang-0.5.23")
        files = sorted(folder.iterdir())
        strange = [path for path in files if path.suffix != ".patch" or not path.is_file()]
        if strange or not files:
            raise _refused(f"{folder} holds {strange[0].name if strange else 'no patch'}", "only *.patch files belong there")
        for path in files:
            touched(path)
            (target / folder.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / folder.name / path.name)
            (target / folder.name / path.name).chmod(0o644)
    return tuple(folder.name for folder in folders)


def touched(path: Path) -> tuple[str, ...]:
    """The files that a patch touches, from the folder that holds the engine's package. Raises GpuopsError when there are none."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _refused(f"{path} is no text", str(error)) from error
    found = tuple(sorted({new or old for new, old in _FILE.findall(text)}))
    if not found or "@@ -" not in text:
        raise _refused(
            f"{path} changes nothing", "expected `--- a/PACKAGE/FILE`, `+++ b/PACKAGE/FILE` and hunks (`@@ -1,2 +1,3 @@`)"
        )
    return found


def _refused(what: str, evidence: str) -> GpuopsError:
    next_ = "git diff --no-index makes one; the folder is PATCHES/ENGINE-VERSION/NAME.patch"
    return GpuopsError(what, evidence=evidence, next=next_, kind="patch")
