"""Whole rollouts on this machine: the real agent through the local transport, real processes, and an imitation of the engine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import installed
from gpuops_agent import files, locks, proc, records
from gpuops_agent.paths import Root
from gpuops_agent.proc import Identity
from process_lab import eventually, own_port

from gpuops.agent.client import Agent
from gpuops.engines import facts
from gpuops.errors import GpuopsError
from gpuops.rollout.desired import digest
from gpuops.transport.local import LocalTransport

ENGINE = Path(__file__).parent / "programs" / "engine.py"

Json = dict[str, Any]

CAPITAL: Json = {
    "name": "capital",
    "ask": "What is the capital of France?",
    "expect": {"contains": "Paris"},
    "max_tokens": 16,
    "gate": "required",
}
AGAIN: Json = {**CAPITAL, "name": "again", "prompt": "The capital of France is", "gate": "wanted"}
del AGAIN["ask"]

DEADLINES: Json = {"prepare_s": 60, "stop_s": 5, "start_s": 30, "stall_s": 20, "generate_s": 10, "probe_s": 10}


@dataclass(frozen=True)
class Played:
    """An operation as a follower saw it."""

    outcome: Json
    events: list[Json]

    @property
    def name(self) -> str:
        return str(self.outcome["outcome"])

    @property
    def code(self) -> int:
        return int(self.outcome["code"])

    def all(self, event: str) -> list[Json]:
        return [each for each in self.events if each["event"] == event]

    def names(self, *wanted: str) -> list[str]:
        """The names of the events, in order; only the wanted ones."""
        return [each["event"] for each in self.events if each["event"] in wanted]

    def states(self) -> list[tuple[int, str]]:
        return [(each["release"], each["state"]) for each in self.all("state")]


class Lab:
    """One service in a ROOT of its own."""

    def __init__(self, folder: Path, agent_folder: Path) -> None:
        self.folder = folder
        self.path = folder / "root"
        self.root = Root(self.path)
        self.service = self.root.service("demo")
        self.faults = folder / "faults"
        self.zipapp = installed.link(agent_folder, self.path)
        self.runtime = folder / "runtime"
        (self.runtime / "bin").mkdir(parents=True)
        (self.runtime / "bin" / "python").symlink_to(sys.executable)
        self.model = folder / "model"
        make_model(self.model)
        self.agent = Agent(LocalTransport(), str(self.path), sys.executable)

    # Orders.

    def order(
        self,
        *faults: str,
        op: str | None = None,
        probes: list[Json] | None = None,
        env: dict[str, str] | None = None,
        secret_names: tuple[str, ...] = (),
        auth: str | None = None,
        port: int | str = "auto",
        spec: str | None = None,
        model: Json | None = None,
        **deadlines: float,
    ) -> Json:
        """An `up` for the imitation engine with these faults. Equal contents make an equal spec, as in gpuops.rollout.desired."""
        if port == "auto" and not self.service.port_file.exists():
            # As if it had been picked before.
            self.service.path.mkdir(parents=True, exist_ok=True)
            files.write_json(self.service.port_file, {"port": own_port()})
        argv = ["@{python}", "-ISB", str(ENGINE), "--model-path", "@{model}", "--host", "127.0.0.1", "--port", "@{port}", *faults]
        variables = {"LAB": str(self.folder), **(env or {})}
        return {
            "version": 1,
            "kind": "up",
            "service": "demo",
            "op": op or operation(),
            "by": "test@here",
            "reason": None,
            "spec": spec or digest([argv, variables, port]),
            "prepare": {
                "runtime": {"kind": "path", "path": str(self.runtime)},
                "model": model or {"kind": "path", "path": str(self.model)},
                "build": None,
            },
            "candidate": {
                "argv": argv,
                "env": variables,
                "secrets": sorted(secret_names),
                "auth": auth,
                "port": port,
                "bind": "127.0.0.1",
                "served_model_name": None,
                "summary": {"engine": "sglang 0.5.23", "model": "tiny", "build": None, "flags": {}},
                "playbook": {},
            },
            "engine": facts("sglang", "0.5.23").as_order(schedulers=1),
            "probes": [CAPITAL, AGAIN] if probes is None else probes,
            "deadlines": {**DEADLINES, **deadlines},
        }

    def simple(self, kind: str, *, op: str | None = None, release: int | None = None, force: bool = False) -> Json:
        head = {"version": 1, "kind": kind, "service": "demo", "op": op or operation(), "by": "test@here", "reason": None}
        return {**head, "spec": None, "release": release, "force": force, "deadlines": DEADLINES}

    # Playing them.

    def play(self, order: Json, on_event: Callable[[Json], None] = lambda event: None) -> Played:
        events: list[Json] = []

        def hear(event: Any) -> None:
            events.append(dict(event))
            on_event(dict(event))

        return Played(self.agent.call("run", on_event=hear, order=order), events)

    def up(self, *faults: str, **kwargs: Any) -> Played:
        return self.play(self.order(*faults, **kwargs))

    def good(self, *faults: str, **kwargs: Any) -> Played:
        """An `up` that has to succeed."""
        played = self.up(*faults, **kwargs)
        assert played.name == "promoted", played.outcome
        return played

    def down(self) -> Played:
        return self.play(self.simple("down"))

    def restart(self) -> Played:
        return self.play(self.simple("restart"))

    def restore(self, release: int | None = None, *, force: bool = False) -> Played:
        return self.play(self.simple("restore", release=release, force=force))

    def follow(self, op: str | None = None, offset: int = 0) -> Played:
        events: list[Json] = []
        outcome = self.agent.call("follow", on_event=lambda each: events.append(dict(each)), service="demo", op=op, offset=offset)
        return Played(outcome, events)

    def begin(self, order: Json) -> Running:
        return Running(self, order)

    def client(self, verb: str, **args: Any) -> subprocess.Popen[bytes]:
        """A client as a process of its own, that can be killed."""
        process = subprocess.Popen(
            [sys.executable, "-IS", str(self.zipapp), verb], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps({"protocol": 1, "args": args}).encode() + b"\n")
        return process

    # Looking.

    def status(self, **args: Any) -> Json:
        entry: Json = self.agent.call("status", service="demo", **args)["services"][0]
        return entry

    def history(self) -> Json:
        return self.agent.call("history", service="demo")

    def logs(self, **args: Any) -> tuple[str, Json]:
        texts: list[str] = []
        result = self.agent.call("logs", on_event=lambda event: texts.append(event["text"]), service="demo", **args)
        return "".join(texts), result

    def state(self, release: int) -> Json:
        value: Json = json.loads((self.service.release(release) / "state.json").read_text())
        return value

    def journal(self) -> list[Json]:
        return [json.loads(line) for line in self.service.journal.read_text().splitlines()]

    def link(self, name: str) -> int | None:
        path = self.service.path / name
        return int(path.resolve().name) if path.is_symlink() else None

    def engines(self) -> list[int]:
        """The pids of the imitation's processes that live."""
        marker = f"LAB={self.folder}".encode()
        return [stat.pid for stat in self.ours() if marker in _read(stat.pid, "environ") and ENGINE.name in proc.title(stat.pid)]

    def rank(self, name: str) -> int:
        """The pid of a rank ("TP1"), once the supervisor holds it."""

        def found() -> int | None:
            ranks = (
                who.pid for who, title in records.run_processes(self.service) if title.startswith(f"sglang::scheduler_{name} ")
            )
            return next(ranks, None)

        return eventually(found, f"{name} is known") or 0

    def runner(self, op: str) -> Identity:
        return Identity.from_json(json.loads((self.service.operation(op) / "runner.json").read_text()))

    def kill_all_watchers(self, op: str) -> None:
        """Kill the runner, and before it all who would finish its work: its deputy and the supervisor."""
        runner = self.runner(op)
        # Stopped first: it would start the next server, with a supervisor of its own.
        os.kill(runner.pid, signal.SIGSTOP)
        for each in proc.descendants(runner.pid):
            os.kill(each.pid, signal.SIGKILL)
        supervisor = records.supervisor_identity(self.service)
        if supervisor is not None:
            os.kill(supervisor.pid, signal.SIGKILL)
        os.kill(runner.pid, signal.SIGKILL)

    def ours(self) -> list[proc.Stat]:
        marker = str(self.folder).encode()
        found = (stat for stat in proc.processes() if stat.living and stat.pid != os.getpid())
        return [stat for stat in found if marker in _read(stat.pid, "environ") + _read(stat.pid, "cmdline")]

    def clean_up(self) -> list[str]:
        """Take everything down as a user would; what is left after that is named, and ended."""
        self.faults.unlink(missing_ok=True)
        eventually(self._taken_down, "the service is taken down")
        with contextlib.suppress(AssertionError):
            # A verb that has answered, and a runner that has told its outcome, are on their way out.
            eventually(lambda: not self.ours(), "nothing of ours lives")
        left = [f"{stat.pid} {proc.title(stat.pid)}" for stat in self.ours()]
        for stat in self.ours():
            os.kill(stat.pid, signal.SIGKILL)
        return left

    def _taken_down(self) -> bool:
        """Take the service down; False when somebody was at work, as a supervisor is that undoes a rollout whose runner has died."""
        if locks.owner(self.service) is not None:
            return False
        try:
            if records.server_alive(self.service) or records.supervisor_alive(self.service):
                self.down()
        except GpuopsError as error:
            if error.kind != "locked":
                raise
            return False
        return True


class Running:
    """An operation that is followed in a thread, so that a test can act meanwhile."""

    def __init__(self, lab: Lab, order: Json) -> None:
        self.op: str = order["op"]
        self.events: list[Json] = []
        self._lab = lab
        self._ended: list[Played | GpuopsError] = []
        threading.Thread(target=self._play, args=(order,), daemon=True).start()

    def _play(self, order: Json) -> None:
        try:
            self._ended.append(self._lab.play(order, self.events.append))
        except GpuopsError as error:
            self._ended.append(error)

    def until(self, event: str, **fields: Any) -> Json:
        """Wait for an event with these fields."""

        def found() -> Json | None:
            wanted = {"event": event, **fields}
            return next((each for each in list(self.events) if wanted.items() <= each.items()), None)

        value = eventually(found, f"{event} {fields}; heard: {self.events[-3:]}")
        assert value is not None
        return value

    def cancel(self) -> None:
        assert self._lab.agent.call("cancel", service="demo", op=self.op) == {"cancelled": True}

    def end(self) -> Played:
        """Wait for the outcome. Raises GpuopsError when there is none."""
        ended = eventually(lambda: self._ended, "the operation has ended")[0]
        if isinstance(ended, GpuopsError):
            raise ended
        return ended


def operation() -> str:
    return f"op-{secrets.token_hex(4)}"


def make_model(folder: Path) -> Path:
    """The smallest model that counts as complete: a configuration and one tensor of one number."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors())
    return folder


def safetensors(numbers: int = 1) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4 * numbers)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
