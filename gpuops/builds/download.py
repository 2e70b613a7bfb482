"""Downloading the wheels of a lock for a host that may be another machine than this one."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuops.errors import GpuopsError

# Where PyTorch publishes its CPU builds; the agent knows the same address for hosts with a network (gpuops_agent/runtimes.py).
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# PEP 600 begins with glibc 2.5; the names that are older than the PEP are of that time.
_OLDEST_GLIBC = 5
_OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}


@dataclass(frozen=True)
class HostPlatform:
    """What wheels must fit: Python (major, minor), the machine as `uname -m` says it, glibc."""

    python: tuple[int, int]
    machine: str
    glibc: tuple[int, int]

    def pip_options(self) -> list[str]:
        """Options by which pip chooses wheels for it instead of for this machine."""
        version = f"{self.python[0]}{self.python[1]}"
        return [
            *("--python-version", f"{self.python[0]}.{self.python[1]}", "--implementation", "cp", "--abi", f"cp{version}"),
            *(word for name in self._platforms() for word in ("--platform", name)),
        ]

    def _platforms(self) -> list[str]:
        names = []
        for minor in range(self.glibc[1], _OLDEST_GLIBC - 1, -1):
            names.append(f"manylinux_2_{minor}_{self.machine}")
            names += [f"{_OLD_NAMES[minor]}_{self.machine}"] if minor in _OLD_NAMES else []
        return [*names, f"linux_{self.machine}"]


def requirements(lock: str) -> list[str]:
    """The pinned packages of a lock, without comments and options."""
    lines = (line.split(" #")[0].strip() for line in lock.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def download(
    wanted: Sequence[str],
    target: Path,
    platform: HostPlatform,
    torch_backend: str | None,
    note: Callable[[str], None],
    own: Path | None = None,
) -> None:
    """Download the wheels of pinned packages, each without its dependencies, into ``target``.

    Args:
        own: a folder of wheels that are taken instead of the index's of the same name and version.
    Raises:
        GpuopsError: pip is missing, there is no network, or a package has no wheel for this platform.
    """
    target.mkdir(parents=True, exist_ok=True)
    taken = [each for each in wanted if own is not None and _wheels_of(each, own)]
    if taken:
        note(f"taking {len(taken)} packages from {own}")
        _pip("download", taken, ["--isolated", "--no-index", "--find-links", str(own), "--dest", str(target)], platform)
    rest = [each for each in wanted if each not in taken]
    if not rest:
        return
    note(f"downloading {len(rest)} packages for Python {platform.python[0]}.{platform.python[1]} on {platform.machine}")
    torch = next((each for each in rest if re.match(r"torch\s*==", each)), None)
    if torch and torch_backend == "cpu" and _needs_cuda(torch, platform):
        note(f"taking {torch} from PyTorch's CPU index: the configured one has only CUDA builds")
        rest.remove(torch)
        _pip("download", [torch], ["--dest", str(target), "--index-url", TORCH_CPU_INDEX], platform)
    _pip("download", rest, ["--dest", str(target)], platform)


def _wheels_of(requirement: str, folder: Path) -> list[Path]:
    """The wheels in a folder that are of a pinned package, whatever their platform."""
    name, _, version = re.split(r"[;\s]", requirement)[0].partition("==")
    wanted = (_normal(name.partition("[")[0]), version)
    # A wheel's name is NAME-VERSION(-BUILD)?-PYTHON-ABI-PLATFORM.whl, without dashes in the parts.
    return [path for path in folder.glob("*.whl") if (_normal(path.name.split("-")[0]), path.name.split("-")[1]) == wanted]


def _normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _needs_cuda(torch: str, platform: HostPlatform) -> bool:
    """Whether the wheel that the configured index gives asks for CUDA packages."""
    with tempfile.TemporaryDirectory(prefix="gpuops-pip-") as nowhere:
        said = _pip(
            "install", [torch], ["--dry-run", "--ignore-installed", "--quiet", "--report", "-", "--target", nowhere], platform
        )
    installed = json.loads(said[said.index("{") :])["install"]
    needs = installed[0]["metadata"].get("requires_dist", []) if installed else []
    return any(re.match(r"(nvidia|cuda)[-_]", need) and "extra ==" not in need for need in needs)


def _pip(verb: str, wanted: list[str], options: list[str], platform: HostPlatform) -> str:
    if not importlib.util.find_spec("pip"):
        raise GpuopsError(
            "wheels are downloaded by pip, which is missing",
            evidence=f"{sys.executable} has no pip",
            next="python -m ensurepip",
            kind="download",
        )
    argv = [sys.executable, "-m", "pip", verb, "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input"]
    bar = ["--progress-bar", "off"]
    ended = subprocess.run(
        [*argv, *bar, *platform.pip_options(), *options, *wanted],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.strip().splitlines()
        raise GpuopsError(
            "the wheels could not be downloaded",
            evidence=" | ".join(errors[-2:]),
            next="check the network, and that the lock's packages have wheels for this host",
            kind="download",
        )
    return ended.stdout
