"""From sources to an unpacked wheel, the same bytes on every machine."""

from __future__ import annotations

import email.parser
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.builds.manifest import sha256
from gpuops.errors import GpuopsError

# What backends stamp into archives instead of the time of the build (https://reproducible-builds.org/specs/source-date-epoch/); hatchling's own
# default, 2020-02-02.
SOURCE_DATE_EPOCH = "1580601600"

# Where a host runs: every other platform's wheels are of no use.
_LINUX = ("any", "linux", "manylinux")

_UNREACHABLE = ("No matching distribution found", "Could not find a version", "Temporary failure", "Connection", "NameResolution")


@dataclass(frozen=True)
class Wheel:
    """A wheel: its distribution, and what it can be installed on (compatibility tags, and the Python version's bounds)."""

    name: str
    version: str
    tags: tuple[str, ...]
    requires_python: str | None
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tags": list(self.tags)}


def build(source: Path, target: Path, note: Callable[[str], None]) -> Path:
    """Build the wheel of a source folder into ``target``, by the project's own backend in an environment of its own.

    Without a network, a backend that is installed beside gpuops is used.

    Args:
        source: a folder that the build may write into.
    Raises:
        GpuopsError: the backend failed, or there is no tool to run it.
    """
    env = {**os.environ, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "PYTHONHASHSEED": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    argv = _argv(source, target)
    done = _run(argv, env)
    if done.returncode != 0 and any(word in done.stdout for word in _UNREACHABLE) and "pip" in argv:
        note("the build backend cannot be downloaded: using the one that is installed here")
        done = _run([*argv, "--no-build-isolation"], env)
    if done.returncode != 0:
        raise GpuopsError(
            f"the wheel of {source.name} could not be built",
            evidence=" | ".join(done.stdout.strip().splitlines()[-4:]),
            next="python -m pip wheel --no-deps FOLDER shows all that the backend says",
            kind="wheel_build",
        )
    return next(target.glob("*.whl"))


def read(path: Path) -> Wheel:
    """What a wheel says of itself.

    Raises:
        GpuopsError: it is no wheel, or one that no host can use (another platform, another Python).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            info = _info(archive)
            tags = tuple(sorted(_headers(archive, f"{info}/WHEEL")["Tag"]))
            metadata = _headers(archive, f"{info}/METADATA")
        name, version = metadata["Name"][0], metadata["Version"][0]
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, StopIteration, UnicodeDecodeError) as error:
        raise GpuopsError(
            f"{path} is no wheel", evidence=repr(error), next="gpuops builds make --from FOLDER or FILE.whl", kind="wheel"
        ) from error
    if not any(_usable(tag) for tag in tags):
        raise GpuopsError(
            f"the wheel {path.name} is for another platform or Python",
            evidence=f"its tags: {', '.join(tags)}; a host runs Linux and CPython 3",
            next="build it for Linux, or from its sources",
            kind="wheel",
        )
    return Wheel(name, version, tags, metadata.get("Requires-Python", [None])[0], sha256(path))


def unpack(path: Path, site: Path) -> None:
    """Unpack a wheel for PYTHONPATH: modes 0644 or 0755, without what its builder, and not its sources, put there.

    Raises:
        GpuopsError: it holds what an installer would put elsewhere, or leads out of the folder; it is altered.
    """
    try:
        _unpack(path, site)
    except (zipfile.BadZipFile, zlib.error, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise GpuopsError(
            f"the wheel {path.name} is altered",
            evidence=str(error),
            next="download it again, or build it from its sources",
            kind="wheel",
        ) from error
    for info in site.glob("*.dist-info"):
        (info / "RECORD").unlink(missing_ok=True)
        # The builder's name and version: the same sources give the same build with another one.
        lines = (info / "WHEEL").read_text(encoding="utf-8").splitlines()
        (info / "WHEEL").write_text("".join(f"{line}\n" for line in lines if not line.startswith("Generator:")), encoding="utf-8")


def _unpack(path: Path, site: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for item in sorted(archive.infolist(), key=lambda each: each.filename):
            if item.is_dir():
                continue
            target = site / _place(item.filename, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(item) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if (item.external_attr >> 16) & stat.S_IXUSR else 0o644)


def _argv(source: Path, target: Path) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--progress-bar",
            "off",
            "-w",
            str(target),
            str(source),
        ]
    if uv := shutil.which("uv"):
        return [uv, "build", "--wheel", "--out-dir", str(target), str(source)]
    raise GpuopsError(
        "there is nothing to build a wheel with",
        evidence=f"{sys.executable} has no pip, and PATH has no uv",
        next="python -m ensurepip, or build the wheel yourself and gpuops builds make --from FILE.whl",
        kind="wheel_build",
    )


def _run(argv: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    # umask: a backend that takes modes from the file system must not see the user's.
    return subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        umask=0o022,
    )


def _info(archive: zipfile.ZipFile) -> str:
    return next(name.split("/")[0] for name in sorted(archive.namelist()) if re.match(r"[^/]+\.dist-info/WHEEL\Z", name))


def _headers(archive: zipfile.ZipFile, name: str) -> dict[str, list[str]]:
    message = email.parser.HeaderParser().parsestr(archive.read(name).decode("utf-8"))
    found: dict[str, list[str]] = {}
    for key, value in message.items():
        found.setdefault(key, []).append(str(value))
    return found


def _usable(tag: str) -> bool:
    python, _, platform = (tag.split("-") + ["", ""])[:3]
    return any(re.match(r"(py|cp)3", each) for each in python.split(".")) and any(
        each.startswith(_LINUX) for each in platform.split(".")
    )


def _place(name: str, path: Path) -> str:
    """Where a member belongs (the binary distribution format: https://packaging.python.org/specifications/binary-distribution-format/)."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise GpuopsError(
            f"the wheel {path.name} holds {name}",
            evidence="it leads out of the folder",
            next="build it from its sources",
            kind="wheel",
        )
    if parts[0].endswith(".data"):
        if parts[1] not in ("purelib", "platlib"):
            raise GpuopsError(
                f"the wheel {path.name} holds {name}",
                evidence="a build is a folder on PYTHONPATH: scripts, headers and data files have no place in it",
                next="put it into the package",
                kind="wheel",
            )
        return "/".join(parts[2:])
    return name
