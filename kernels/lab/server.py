"""Start and stop one of the lab's servers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import tomllib
from cases import CASES, COMMON, FAMILIES, FLAGS, Case

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parent


@dataclass(frozen=True)
class Lab:
    """Where things lie on the card's machine.

    Args:
        root: ``GPUOPS_LAB``, by default ``~/gpuops-lab``; holds the engine's packages (``site``), the pack (``pack``) and a folder a server.
    """

    root: Path

    @classmethod
    def here(cls) -> Lab:
        """The lab of this machine."""
        return cls(Path(os.environ.get("GPUOPS_LAB", Path.home() / "gpuops-lab")))

    @property
    def site(self) -> Path:
        """The engine's packages, when `setup.sh` put them there."""
        return self.root / "site"

    def folder(self, name: str) -> Path:
        """A server's log, proofs and pid."""
        return self.root / "servers" / name


class DiedError(RuntimeError):
    """The server ended while it was starting; the message has the first line that says why."""


def start(lab: Lab, name: str, patience_s: float) -> float:
    """Start a case's server, wait until it answers, and return how long that took, in seconds. It outlives this process.

    Raises:
        DiedError
        TimeoutError: it is still starting after ``patience_s``; it is left alone.
    """
    launch(lab, name)
    return wait(lab, name, patience_s)


def launch(lab: Lab, name: str) -> None:
    """Start a case's server and do not wait for it. Several may run at a time: each gets a port of its own."""
    folder = lab.folder(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = _free_port()
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(HERE / "model")]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--host", "127.0.0.1", "--port", str(port), *FLAGS, *CASES[name].flags],
            env=environment(lab, name),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    (folder / "port").write_text(str(port))
    (folder / "pid").write_text(str(process.pid))


def wait(lab: Lab, name: str, patience_s: float) -> float:
    """Wait until a launched server answers, for at most ``patience_s`` from now; returns the seconds since its launch.

    Raises:
        DiedError
        TimeoutError: it is still starting; it is left alone.
    """
    folder = lab.folder(name)
    launched = (folder / "pid").stat().st_mtime
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if not lives(lab, name):
            raise DiedError(f"{name} ended {time.time() - launched:.0f} s after its launch: {fatal_line(folder / 'server.log')}")
        if _answers(url(lab, name)):
            return time.time() - launched
        time.sleep(1)
    raise TimeoutError(f"{name} is not ready after {patience_s:.0f} s; the end of its log: {tail(folder / 'server.log')}")


def lives(lab: Lab, name: str) -> bool:
    """Whether a case's server was launched, and has not ended or been stopped."""
    file = lab.folder(name) / "pid"
    return file.exists() and _runs(int(file.read_text()))


def url(lab: Lab, name: str) -> str:
    """Where a launched server listens."""
    return f"http://127.0.0.1:{(lab.folder(name) / 'port').read_text()}"


def stop(lab: Lab, name: str) -> None:
    """End a server and all its processes, and wait until they are gone: the next one needs the card's memory."""
    pid = int((lab.folder(name) / "pid").read_text())
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
        for _ in range(100):
            if not _group_lives(pid):
                return
            time.sleep(0.1)
    raise RuntimeError(f"process group {pid} outlived SIGKILL")


def environment(lab: Lab, name: str) -> dict[str, str]:
    """A case's whole environment."""
    case = CASES[name]
    # The lab's plugin before the pack's: entry points are called in this order, and what it wraps has to be wrapped by then.
    paths = [HERE / "plugin", _pack(lab), lab.site, lab.site / "nvidia_cutlass_dsl" / "python_packages"]
    base = {key: value for key, value in os.environ.items() if not key.startswith(("GPUOPS_KERNELS", "SGLANG_", "LAB_"))}
    return {
        **base,
        "PYTHONPATH": ":".join(map(str, paths)),
        "PYTHONUNBUFFERED": "1",
        **COMMON,
        **case.environment,
        "LAB_FOLDER": str(lab.folder(name)),
        **_kernels(lab, name, case),
    }


def fatal_line(log: Path) -> str:
    """The first line of a log that names what went wrong."""
    marks = ("refusing to serve", "Capture cuda graph failed", "Error", "error:", "Exception")
    lines = log.read_text(errors="replace").splitlines()
    found = [line for line in lines if any(mark in line for mark in marks) and "Warning" not in line]
    return found[0][:600] if found else tail(log)


def tail(log: Path) -> str:
    """The end of a log, on one line."""
    return " | ".join(log.read_text(errors="replace").splitlines()[-5:])[-800:]


def _kernels(lab: Lab, name: str, case: Case) -> dict[str, str]:
    if not case.ours:
        return {"GPUOPS_KERNELS": "off"}
    switches = {f"GPUOPS_KERNELS_{family.upper()}": str(int(family in case.ours)) for family in FAMILIES}
    return {"GPUOPS_KERNELS": "strict", "GPUOPS_KERNELS_PROOF": str(lab.folder(name) / "proofs"), **switches}


def _pack(lab: Lab) -> Path:
    """Install the pack as a wheel would, without a build backend: the package, and metadata with the entry point of pyproject.toml.

    Into a folder for each content: servers that run go on reading theirs.
    """
    project = tomllib.loads((KERNELS / "pyproject.toml").read_text())["project"]
    site = lab.root / "pack" / _content(KERNELS / "gpuops_kernels")
    if site.exists():
        return site
    metadata = site / f"gpuops_kernels-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in each.items())
        for group, each in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("".join(points))
    shutil.copytree(KERNELS / "gpuops_kernels", site / "gpuops_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return site


def _content(folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(each for each in folder.rglob("*") if each.is_file() and "__pycache__" not in each.parts):
        total.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:12]


def _free_port() -> int:
    """A free port, drawn, since one that was given out may not be bound yet. Below 55,536: SGLang opens another one 10,000 above it."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _runs(pid: int) -> bool:
    try:
        # A child of this process that has ended is a zombie until somebody waits for it.
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _answers(base: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _group_lives(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        # A zombie holds no memory of the card, and whether somebody reaps it is not up to us.
        if int(pgrp) == group and state != "Z":
            return True
    return False


def main() -> int:
    """``server.py start CASE [SECONDS]`` or ``server.py stop CASE``."""
    verb, name, *rest = sys.argv[1:]
    lab = Lab.here()
    if verb == "stop":
        stop(lab, name)
        return 0
    try:
        seconds = start(lab, name, float(rest[0]) if rest else 500.0)
    except (DiedError, TimeoutError) as error:
        print(error)
        return 1
    print(json.dumps({"case": name, "ready_s": round(seconds, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
