"""Real process trees under a real supervisor, run from a real zipapp by the Python that a test asks for."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import installed
from gpuops_agent import net, proc
from gpuops_agent.paths import Root, Service
from gpuops_agent.records import LaunchSpec, ServerRecord
from gpuops_agent.wire import AgentError

PROGRAMS = Path(__file__).parent / "programs"

_WORKERS, _SHARE = 16, 600
RANK = "sglang::scheduler_TP0"

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str = "", seconds: float = 30.0) -> T:
    """Wait until ``look`` returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < deadline, f"this never came true: {what or look}"
        time.sleep(0.02)
    return value


def every_python(test: T) -> T:
    """Mark a test that is run by every supported Python that is installed, instead of by the oldest and our own."""
    test.every_python = True  # type: ignore[attr-defined]
    return test


@functools.cache
def pythons() -> list[str]:
    """The interpreters for the agent, oldest first: those of 3.9 to 3.13 that are installed."""
    found = []
    for minor in range(9, 14):
        name = f"python3.{minor}"
        candidates = [shutil.which(name), *map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"))]
        for candidate in filter(None, candidates):
            if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
                found.append(candidate)
                break
    return found or [sys.executable]


def own_port() -> int:
    """A free port out of this test worker's share: what one worker is about to listen on, no other takes meanwhile.

    The shares lie below the ports that the agent picks by itself.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS
    share = range(10_000 + worker * _SHARE, 10_000 + (worker + 1) * _SHARE)
    return next(port for port in random.sample(share, _SHARE) if net.port_free(port, "127.0.0.1"))


class Host:
    """One service in a ROOT of its own, and the means to look at everything that it starts."""

    def __init__(self, folder: Path, agent_folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        self.root = Root(folder / "root")
        self.service: Service = self.root.service("demo")
        self.zipapp = installed.link(agent_folder, self.root.path, python)
        self.root.secrets.mkdir()
        self.pids = folder / "pids"
        self.pids.mkdir()
        self.port = own_port()

    def spec(self, *args: str, argv: list[str] | None = None, env: dict[str, str] | None = None, release: int = 1) -> LaunchSpec:
        self.service.release(release).mkdir(parents=True, exist_ok=True)
        program = [self.python, "-ISB", str(PROGRAMS / "server.py"), str(self.pids), *args]
        return LaunchSpec(
            service=self.service,
            release=release,
            argv=argv or program,
            # The marker is how leftovers are found, whatever they descend from.
            env={"PATH": os.environ["PATH"], "LAB": str(self.folder), **(env or {})},
            secrets_dir=self.root.secrets,
            port=self.port,
            rank_patterns=[r"^sglang::scheduler"],
            log_file=self.service.server_log(release),
            cwd=self.folder,
        )

    def launch(self, *args: str, **kwargs: Any) -> ServerRecord:
        """Launch, and wait until the server has made its tree."""
        for stale in self.pids.iterdir():
            stale.unlink()
        record = self.launch_spec(self.spec(*args, **kwargs))
        eventually((self.pids / "server").exists, "the server made its tree")
        return record

    def launch_spec(self, spec: LaunchSpec) -> ServerRecord:
        return ServerRecord.from_json(self.drive({"do": "launch", "spec": spec.to_json()}))

    def stop(self, drain_s: float = 20.0, kill_s: float = 10.0) -> dict[str, Any]:
        answer = self.drive({"do": "stop", "root": str(self.root.path), "service": "demo", "drain_s": drain_s, "kill_s": kill_s})
        proof: dict[str, Any] = answer["proof"]
        return proof

    def drive(self, request: dict[str, Any]) -> dict[str, Any]:
        done = subprocess.run(
            [self.python, "-ISB", str(PROGRAMS / "driver.py"), str(self.zipapp)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr.decode()
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise AgentError(**answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def pid(self, role: str) -> int:
        """The pid that a process of the tree wrote down, once it has."""
        return int(eventually(lambda: (self.pids / role).exists() and (self.pids / role).read_text(), role))

    def recorded(self, role: str) -> int:
        """The same, once the supervisor has recorded it too."""
        pid = self.pid(role)
        eventually(lambda: pid in self.recorded_pids(), f"{role} recorded")
        return pid

    def recorded_pids(self) -> set[int]:
        with contextlib.suppress(OSError, ValueError):
            return {each["pid"] for each in json.loads(self.service.processes_file.read_bytes())["processes"]}
        return set()

    def leftovers(self) -> list[proc.Stat]:
        """Living processes that carry our marker in their environment or our folder in their arguments."""
        marker = str(self.folder).encode()
        return [stat for stat in proc.processes() if stat.living and marker in _traces(stat.pid)]

    def clean_up(self) -> list[str]:
        """Stop the service as a user would; what is left after that is named, and ended."""
        self.stop(drain_s=0.0)
        left = [f"{stat.pid} {proc.title(stat.pid)}" for stat in self.leftovers()]
        for stat in self.leftovers():
            os.kill(stat.pid, signal.SIGKILL)
        return left


@contextlib.contextmanager
def bystander(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours, and must live until the end of the block."""
    process = subprocess.Popen(argv or ("sleep", "600"), start_new_session=True)
    try:
        yield process
        assert process.poll() is None, "a foreign process was ended"
    finally:
        process.kill()
        process.wait()


def gone(pid: int) -> bool:
    stat = proc.read_stat(pid)
    return stat is None or not stat.living


def kill(pid: int) -> None:
    """KILL, and wait for the end."""
    identity = proc.identify(pid)
    assert identity is not None
    proc.send(identity, signal.SIGKILL)
    eventually(lambda: gone(pid), f"{pid} ended")


def _traces(pid: int) -> bytes:
    found = b""
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/{name}").read_bytes()
    return found
