"""A host for one seeded rollout: a ROOT of its own behind a real sshd, with a known-good release that serves."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from gpuops_agent import locks, proc
from gpuops_agent.paths import Root, Service
from gpuops_agent.proc import Identity

from benchmarks.chaos_draw import Case
from benchmarks.chaos_link import Link
from gpuops.agent.client import Agent
from gpuops.playbook import load
from gpuops.rollout.desired import order
from gpuops.sandbox import Sandbox, SandboxInfo
from gpuops.transport.local import LocalTransport

HERE = Path(__file__).resolve().parent.parent
GPUOPS = str(Path(sys.executable).with_name("gpuops"))
ENGINE = HERE / "tests" / "agent" / "programs" / "engine.py"
ALIAS = "gpuops-chaos"
SERVICE = "demo"

# Short, since a lost controller shall be undone quickly; long enough that four rollouts on two cores keep their leases.
LEASE_S = 4.0
DEADLINES = {"prepare_s": 60, "stop_s": 2, "start_s": 40, "stall_s": 6, "generate_s": 3, "probe_s": 3, "lease_s": LEASE_S}
PROBES = [
    {"name": "capital", "ask": "What is the capital of France?", "expect": {"contains": "Paris"}},
    {"name": "again", "prompt": "The capital of France is", "expect": {"contains": "Paris"}, "gate": "wanted"},
]
# The agent wants 256 MB free before it begins (gpuops_agent.preflight), and keeps 4 back.
DISK_MB = 288

Json = dict[str, Any]


@dataclass(frozen=True)
class Parts:
    """What all hosts of a run share.

    Args:
        folder: holds them, and ``root``, where the agent lies as on a host that has been used before.
        python: what the agent runs on.
        runtime: with the imitation engine as ``sglang.launch_server``.
        deadlines: of every playbook, in seconds.
        patience: how many times as long as with the imitation everything may take.
    """

    folder: Path
    python: str
    runtime: Path
    model: Path
    deadlines: Json
    patience: float = 1.0

    @property
    def agent(self) -> Path:
        return self.folder / "root" / "agent"

    def server(self, name: str, case: Case) -> Json:
        """The playbook's ``server`` for the ``good`` release, the ``candidate``, or the ``other`` one of a second controller."""
        candidate = case.candidate if name == "candidate" else "good"
        flavour = {"good": case.good, "candidate": case.flavour}.get(name, "plain")
        word, _, detail = candidate.partition(" ")
        flags: Json = {} if word == "good" else {word: detail or True}
        return {"flags": {"tp": 2, **flags, **({} if flavour == "plain" else {flavour: True}), "flavour": name}, "env": {}}

    def may_be_good(self, argv: Sequence[str], case: Case) -> bool:
        """Whether a release of these arguments can be the right one to serve."""
        return "candidate" not in argv or case.may_be_promoted


def make_parts(folder: Path) -> Parts:
    """Make them in ``folder``, with the imitation engine."""
    python = own_python()
    parts = Parts(folder, python, folder / "runtime", folder / "model", DEADLINES)
    site = parts.runtime / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang" / "__init__.py").touch()
    (site / "sglang" / "launch_server.py").write_text(f"import runpy\n\nrunpy.run_path({str(ENGINE)!r}, run_name='__main__')\n")
    (parts.runtime / "bin").mkdir()
    (parts.runtime / "bin" / "python").symlink_to(python)
    (parts.runtime / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\n")
    parts.model.mkdir()
    (parts.model / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (parts.model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    put_agent(parts)
    return parts


def own_python() -> str:
    """This Python without its virtual environment."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).absolute())


def put_agent(parts: Parts) -> None:
    """The agent of this checkout, unpacked and compiled: a host takes it over for nothing."""
    Agent(LocalTransport(), str(parts.folder / "root"), parts.python).call("hello")
    compileall.compile_dir(str(parts.agent), quiet=2)


@dataclass(frozen=True)
class Ran:
    """A gpuops command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        """The last JSON line; empty when there is none."""
        for line in reversed(self.out.splitlines()):
            with contextlib.suppress(ValueError):
                value: Json = json.loads(line)
                return value
        return {}


class Host:
    """One ROOT, the link to it, and the laptop's playbooks.

    Args:
        folder: holds all of it; every process that works for this ROOT has its name in its arguments or environment.
        case: the first one; :meth:`take_up` another.
    """

    def __init__(self, folder: Path, parts: Parts, sshd: SandboxInfo, case: Case) -> None:
        self.folder = folder
        self.parts = parts
        self.sshd = sshd
        self.link = Link(sshd.port)
        self.path = folder / "root"
        self.path.mkdir(parents=True)
        self.mounted = case.fault == "disk_full"
        if self.mounted:
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700", "gpuops-chaos", str(self.path))
        shutil.copytree(parts.agent, self.path / "agent", copy_function=_link_or_copy)
        self.service: Service = Root(self.path).service(SERVICE)
        self._clients: list[subprocess.Popen[str]] = []
        (folder / "ssh_config").write_text(_ssh_config(sshd, self.link.port))
        self.take_up(case)

    def take_up(self, case: Case) -> None:
        """Write a case's playbooks."""
        self.case = case
        for name in ("good", "candidate", "other"):
            self._playbook(name)

    # The laptop.

    def _playbook(self, name: str) -> None:
        host = {"address": ALIAS, "ssh_config": "ssh_config", "root": str(self.path), "python": self.parts.python}
        server = self.parts.server(name, self.case)
        document = {
            "service": SERVICE,
            "host": {**host, "transport": self.case.transport},
            "runtime": {"path": str(self.parts.runtime)},
            "model": {"path": str(self.parts.model)},
            "engine": {"name": "sglang", "version": "0.5.23"},
            "server": {**server, "env": {**server["env"], "LAB": str(self.folder)}},
            "probes": PROBES,
            "deadlines": self.parts.deadlines,
        }
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(document))

    def start_known_good(self) -> Json:
        """Roll the first release out, as an earlier call would have; returns its outcome."""
        wanted = {**order(load(str(self.folder / "good.yaml"))), "on_controller_lost": "finish"}
        return Agent(LocalTransport(), str(self.path), self.parts.python).call("run", order=wanted)

    def gpuops(self, verb: str, playbook: str = "candidate") -> subprocess.Popen[str]:
        """A controller: the command line as a process of its own. Its output goes to files, so that nobody has to drain it."""
        number = len(self._clients)
        with (self.folder / f"client-{number}.out").open("w") as out, (self.folder / f"client-{number}.err").open("w") as err:
            argv = [GPUOPS, verb, "-p", str(self.folder / f"{playbook}.yaml"), "--json"]
            environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "NO_COLOR": "1"}
            client = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, env=environment, start_new_session=True
            )
        self._clients.append(client)
        return client

    def ended(self, client: subprocess.Popen[str], patience: float) -> Ran:
        """Wait for a controller. Raises subprocess.TimeoutExpired."""
        client.wait(timeout=patience)
        number = self._clients.index(client)
        return Ran(
            client.returncode,
            (self.folder / f"client-{number}.out").read_text(),
            (self.folder / f"client-{number}.err").read_text(),
        )

    # The host.

    def operations(self) -> list[str]:
        """Ids, oldest first."""
        try:
            folders = [folder for folder in self.service.operations.iterdir() if (folder / "order.json").exists()]
        except OSError:
            return []
        return [folder.name for folder in sorted(folders, key=lambda folder: (folder / "order.json").stat().st_mtime)]

    def events(self, op: str) -> list[Json]:
        """What an operation has told so far."""
        try:
            raw = (self.service.operation(op) / "events.jsonl").read_bytes()
        except OSError:
            return []
        return [json.loads(line) for line in raw.split(b"\n")[:-1] if line]

    def outcome(self, op: str) -> Json | None:
        return read_json(self.service.operation(op) / "outcome.json")

    def may_be_good(self, release: int) -> bool:
        """Whether a release can be the right one to serve: the first, another controller's, or a candidate without a fault."""
        words = (read_json(self.service.release(release) / "release.json") or {}).get("argv", [])
        return self.parts.may_be_good(words, self.case)

    def runner(self, op: str) -> Identity | None:
        return _identity(read_json(self.service.operation(op) / "runner.json"))

    def busy(self) -> bool:
        """Whether anybody is working on the service: a runner that lives, or the lock's owner."""
        runners = [runner for op in self.operations() if (runner := self.runner(op)) is not None]
        return any(proc.alive(runner) for runner in runners) or locks.owner(self.service) is not None

    def server(self) -> Identity | None:
        """The server of the PID file, when it lives."""
        server = _identity(read_json(self.service.server_file))
        return server if server is not None and proc.alive(server) else None

    def supervisor(self) -> Identity | None:
        supervisor = _identity(read_json(self.service.supervisor_lock))
        return supervisor if supervisor is not None and proc.alive(supervisor) else None

    def engines(self) -> list[int]:
        """The servers of this ROOT that live, whatever any file says: the launchers, not their ranks."""
        return [pid for pid, words, _ in self.processes() if "sglang.launch_server" in words]

    def processes(self) -> list[tuple[int, list[str], str]]:
        """Every process that works for this ROOT on the host: pid, arguments, and the run that it belongs to."""
        found = []
        for stat in proc.processes():
            environ, words = _read(stat.pid, "environ"), proc.cmdline(stat.pid)
            on_laptop = not words or Path(words[0]).name.startswith("ssh") or GPUOPS in words
            marked = f"LAB={self.folder}\0".encode() in environ or any(str(self.path) in word for word in words)
            if stat.living and marked and not on_laptop and stat.pid != os.getpid():
                run = next((text[11:] for text in environ.split(b"\0") if text.startswith(b"GPUOPS_RUN=")), b"")
                found.append((stat.pid, words, run.decode()))
        return found

    # The end.

    def close(self, *, keep: bool) -> None:
        """End everything that belongs to this host; ``keep`` leaves its files for a person to look at."""
        self.link.close()
        for client in self._clients:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(client.pid, signal.SIGKILL)
            client.wait()
        for _ in range(3):  # what was forked meanwhile
            for pid, _, _ in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.mounted:
            if keep:
                shutil.copytree(self.service.path, self.folder / "kept", symlinks=True, ignore=_unless_small)
            _run("umount", "--lazy", str(self.path))
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def sshd(folder: Path) -> Iterator[SandboxInfo]:
    """A real sshd on loopback, for a host at a time."""
    sandbox = Sandbox(folder)
    try:
        yield sandbox.start()
    finally:
        sandbox.stop()


def read_json(path: Path) -> Json | None:
    """The object in a file, which is left as it is; None when it is missing or garbled."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _identity(value: Json | None) -> Identity | None:
    try:
        return Identity.from_json(value) if value else None
    except ValueError:
        return None


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _ssh_config(info: SandboxInfo, port: int) -> str:
    return f"""Host {ALIAS}
    HostName 127.0.0.1
    Port {port}
    User {info.user}
    HostKeyAlias [127.0.0.1]:{info.port}
    IdentityFile "{info.folder}/client_key"
    IdentitiesOnly yes
    UserKnownHostsFile "{info.folder}/known_hosts"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    ConnectTimeout 3
"""


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)


def _unless_small(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_file() and (Path(folder) / name).stat().st_size > 1 << 20]


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
