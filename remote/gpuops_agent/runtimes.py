"""Runtimes: Python environments on the host, made once from a lock file, or the user's own, which is never modified."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import tool
from .files import read_json, write_json
from .paths import Root
from .wire import HOST_UNFIT, AgentError

if TYPE_CHECKING:
    from .prepare import Work

# Where PyTorch publishes its CPU builds: used only when the configured index would give a CUDA build (several GB) for a `torch_backend: cpu`.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# What JIT compilers read of packages, and the time that it gets: 1980, the oldest that a wheel can tell.
_SOURCES = (".h", ".hpp", ".hh", ".cuh", ".inl", ".inc", ".c", ".cc", ".cpp", ".cu")
_LONG_AGO = 315_532_800

# An unpacked environment is about this many times its downloads (1 650 MB from about 560 MB for SGLang on CPU).
UNPACKED_FACTOR = 4


@dataclass(frozen=True)
class Runtime:
    """An environment in place: its id, folder, interpreter, and what is installed in it."""

    id: str
    path: Path
    python: Path
    fingerprint: Dict[str, Any]

    def to_json(self) -> Dict[str, Any]:
        return {"id": self.id, "path": str(self.path), "python": str(self.python)}


def ensure(root: Root, spec: Dict[str, Any], work: "Work") -> Runtime:
    """The runtime of the order, made when it is missing.

    Raises:
        AgentError: no such folder; no Python or no venv module on the host; not enough disk; an installation that failed.
    """
    return _of_path(Path(spec["path"]).expanduser()) if spec["kind"] == "path" else _of_lock(root, spec, work)


def distributions(path: Path) -> Dict[str, str]:
    """Installed distributions by name, read from their metadata folders; nothing is run."""
    found = {}
    for info in path.glob("lib/python3*/site-packages/*.dist-info"):
        name, _, version = info.name[: -len(".dist-info")].rpartition("-")
        found[name] = version
    return dict(sorted(found.items()))


def interpreter(wanted: Any) -> str:
    """The Python that a runtime is made with. Raises AgentError when the host does not have it."""
    name = wanted or "python3"
    found = shutil.which(name)
    if found is None:
        raise AgentError(
            f"the host has no {name} for the runtime",
            evidence=f"PATH: {os.environ.get('PATH', '')}",
            next=f"install {name} on the host, or set runtime.python",
            code=HOST_UNFIT,
            kind="no_python",
        )
    return found


def _of_path(path: Path) -> Runtime:
    python = path / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise AgentError(
            f"the runtime {path} is no Python environment",
            evidence=f"{python} cannot be executed",
            next="set runtime.path to a virtual environment on the host",
            code=HOST_UNFIT,
            kind="runtime",
        )
    return Runtime(f"path:{path}", path, python, {"distributions": distributions(path), "python": os.path.realpath(python)})


def _of_lock(root: Root, spec: Dict[str, Any], work: "Work") -> Runtime:
    path = root.runtimes / spec["id"]
    stamp = path / "runtime.json"
    known = read_json(stamp)
    if known is None:
        work.emit("phase", phase="install", progress=0.0, detail=f"runtime {spec['id']}")
        known = _make(path, spec, work)
        write_json(stamp, known)
    return Runtime(spec["id"], path, path / "bin" / "python", known)


def _make(path: Path, spec: Dict[str, Any], work: "Work") -> Dict[str, Any]:
    # No stamp: what lies here was cut. An environment is not movable, so it is made in place, and the stamp comes last.
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    _enough_disk(path, spec)
    python = interpreter(spec.get("python"))
    lock = path / "lock.txt"
    lock.write_text(spec["lock"], encoding="utf-8")
    requirements = _requirements(spec["lock"])
    work.emit("note", text=f"installing {len(requirements)} packages, {_megabytes(spec)} to download at most")
    began = time.time()
    # A bundle holds what pip needs; uv would look for pip itself in an index.
    uv = None if work.wheels else shutil.which("uv")
    if uv is not None:
        _with_uv(uv, path, python, lock, spec, work, len(requirements))
    else:
        _with_pip(path, python, lock, spec, work, requirements)
        _make_sources_old(_site(path))
    site = _site(path)
    if spec.get("system_packages"):
        _see_parent(site, python, work)
    for name, text in spec["files"].items():
        (site / name).write_text(text, encoding="utf-8")
    return {
        "id": spec["id"],
        "tool": "uv" if uv else "pip",
        "python": os.path.realpath(path / "bin" / "python"),
        "distributions": _visible(path, work) if spec.get("system_packages") else distributions(path),
        "seconds": round(time.time() - began, 1),
    }


def _with_uv(uv: str, path: Path, python: str, lock: Path, spec: Dict[str, Any], work: "Work", total: int) -> None:
    backend = ["--torch-backend", spec["torch_backend"]] if spec.get("torch_backend") else []
    # --seed: builds use the runtime's own pip.
    _run([uv, "venv", "--seed", "--allow-existing", *_system(spec), "--python", python, str(path)], "making the runtime", work)
    _run(
        [uv, "pip", "install", "--python", str(path / "bin" / "python"), "--no-deps", *backend, "-r", str(lock)],
        "installing the runtime",
        work,
        _Progress(work, total, re.compile(r"^ \+ (\S+)")),
    )


def _with_pip(path: Path, python: str, lock: Path, spec: Dict[str, Any], work: "Work", requirements: List[str]) -> None:
    parent = _look_at(python, work)
    bare = [] if parent["ensurepip"] else ["--without-pip"]
    _run([python, "-m", "venv", *_system(spec), *bare, str(path)], "making the runtime", work)
    if bare:
        _lend_pip(parent["pip"], path, python)
    pip = [str(path / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    if spec.get("torch_backend") == "cpu" and not work.wheels:
        _torch_for_cpu(pip, requirements, work)
    # --no-deps: the lock is the whole closure, and some of its packages name dependencies that must not come (CUDA wheels).
    # --ignore-installed: what the lock pins is installed here, also where the same version lies among the system's packages.
    own = ["--ignore-installed"] if _system(spec) else []
    _run(
        [*pip, "install", "--no-deps", *own, "--progress-bar", "off", *work.package_source(), "-r", str(lock)],
        "installing the runtime",
        work,
        _Progress(work, len(requirements), re.compile(r"^(?:Collecting|Requirement already satisfied:) (\S+)")),
    )


def _make_sources_old(site: Path) -> None:
    """Give what compilers read a time of long ago. pip stamps files with the present, and ninja would compile again what a JIT cache that came from
    another host (cache_load.py) has of the very same sources. (uv links files of its own cache, which are not ours to change.)"""
    for parent, _, names in os.walk(site):
        for name in names:
            if name.endswith(_SOURCES):
                os.utime(os.path.join(parent, name), (_LONG_AGO, _LONG_AGO), follow_symlinks=False)


def _look_at(python: str, work: "Work") -> Dict[str, Any]:
    """What the interpreter has: ``ensurepip``, the folder that its ``pip`` lies in or None, its packages' folders where it is an environment."""
    program = (
        "import importlib.util as u, json, os, sys, sysconfig; pip = u.find_spec('pip');"
        "own = sorted({sysconfig.get_path(name) for name in ('purelib', 'platlib')});"
        "print(json.dumps({'ensurepip': u.find_spec('ensurepip') is not None,"
        " 'pip': os.path.dirname(os.path.dirname(pip.origin)) if pip and pip.origin else None,"
        " 'packages': own if sys.prefix != sys.base_prefix else []}))"
    )
    # A distribution's Python may print warnings of its own first.
    lines = _run([python, "-c", program], "looking at the host's Python", work)
    found: Dict[str, Any] = json.loads(lines[-1])
    return found


def _lend_pip(folder: Optional[str], path: Path, python: str) -> None:
    """Give an environment the interpreter's own pip: Debian's Python has no ensurepip without its package python3-venv. pip is plain Python."""
    if folder is None:
        raise AgentError(
            f"{python} can make no environment with pip",
            evidence="it has neither ensurepip nor pip",
            next="install the package python3-venv on the host, or set runtime.python to another Python",
            code=HOST_UNFIT,
            kind="no_python",
        )
    for each in (Path(folder) / "pip", *Path(folder).glob("pip-*.dist-info")):
        shutil.copytree(each, _site(path) / each.name)


def _see_parent(site: Path, python: str, work: "Work") -> None:
    """Let the runtime see the packages of an interpreter that is an environment itself: ``--system-site-packages`` means only those of
    the Python behind it. Theirs come after the runtime's own."""
    folders = _look_at(python, work)["packages"]
    if folders:
        lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
        (site / "gpuops_parent.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _site(path: Path) -> Path:
    return next(path.glob("lib/python3*/site-packages"))


def _visible(path: Path, work: "Work") -> Dict[str, str]:
    """Distributions by name as the environment's own Python finds them, the system's too; of two with one name the first on its path."""
    program = (
        "import importlib.metadata as m, json; found = {};"
        "[found.setdefault(d.metadata['Name'].replace('-', '_'), d.version) for d in m.distributions() if d.metadata['Name']];"
        "print(json.dumps(found))"
    )
    lines = _run([str(path / "bin" / "python"), "-I", "-c", program], "listing the packages", work)
    found: Dict[str, str] = json.loads(lines[-1])
    return dict(sorted(found.items()))


def _system(spec: Dict[str, Any]) -> List[str]:
    return ["--system-site-packages"] if spec.get("system_packages") else []


def _torch_for_cpu(pip: List[str], requirements: List[str], work: "Work") -> None:
    """Install torch from PyTorch's CPU index when the configured index would give a CUDA build; pip has no switch for that."""
    torch = next((text for text in requirements if re.match(r"torch\s*==", text)), None)
    if torch is None:
        return
    lines = _run([*pip, "install", "--dry-run", "--quiet", "--no-deps", "--report", "-", torch], "looking for torch", work)
    report = json.loads("\n".join(lines[next(i for i, text in enumerate(lines) if text.startswith("{")) :]))
    needs = report["install"][0]["metadata"].get("requires_dist", []) if report["install"] else []
    if any(re.match(r"(nvidia|cuda)[-_]", need) and "extra ==" not in need for need in needs):
        work.emit("note", text=f"taking {torch} from PyTorch's CPU index: the configured one has only CUDA builds")
        _run(
            [*pip, "install", "--no-deps", "--progress-bar", "off", "--index-url", TORCH_CPU_INDEX, torch],
            "installing torch",
            work,
        )


class _Progress:
    """Counts packages as the tool names them."""

    def __init__(self, work: "Work", total: int, pattern: "re.Pattern[str]") -> None:
        self._work, self._total, self._pattern, self._seen = work, total, pattern, 0

    def __call__(self, text: str) -> None:
        match = self._pattern.match(text)
        if text.startswith("Installing collected packages"):
            self._work.emit("phase", phase="install", progress=1.0, detail="unpacking")
        elif match:
            self._seen += 1
            self._work.emit("phase", phase="install", progress=min(1.0, self._seen / max(1, self._total)), detail=match.group(1))


def _run(argv: List[str], what: str, work: "Work", on_line: Any = lambda text: None) -> List[str]:
    return tool.run(argv, what=what, log=work.log, cancelled=work.cancelled, deadline=work.deadline, on_line=on_line)


def _requirements(lock: str) -> List[str]:
    lines = (text.split(" #")[0].strip() for text in lock.splitlines())
    return [text for text in lines if text and not text.startswith(("#", "-"))]


def _enough_disk(path: Path, spec: Dict[str, Any]) -> None:
    needed = int(spec.get("download_bytes") or 0) * UNPACKED_FACTOR
    free = shutil.disk_usage(path).free
    if free < needed:
        raise AgentError(
            f"the host has not enough disk for the runtime: {needed >> 20} MB needed, {free >> 20} MB free",
            evidence=f"{path}",
            next="free space on the host, or set host.root to a larger disk",
            code=HOST_UNFIT,
            kind="disk_full",
        )


def _megabytes(spec: Dict[str, Any]) -> str:
    size = spec.get("download_bytes")
    return f"{size / 1e6:.0f} MB" if size else "an unknown size"
