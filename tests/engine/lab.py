"""gpuops as a user runs it, against the embedded default: the real SGLang on CPU behind a real sshd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
GPUOPS = str(Path(sys.executable).with_name("gpuops"))
SERVICE = "smollm2"

# Generous: a start takes 20 s on an idle machine and minutes on a busy one. It only ends tests that would never end.
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Ran:
    """A gpuops command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last JSON line of stdout."""
        value: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return value

    @property
    def events(self) -> list[dict[str, Any]]:
        """The event lines of a streaming verb."""
        return [value for value in map(json.loads, self.out.splitlines()) if "event" in value]

    def phases(self) -> list[str]:
        """The phases in the order in which they were entered, each once."""
        return list(dict.fromkeys(event["phase"] for event in self.events if event["event"] == "phase"))


@dataclass(frozen=True)
class Lab:
    """A sandbox, and playbooks that point at it."""

    sandbox: Path
    playbooks: Path
    state: Path
    name: str = SERVICE

    def playbook(self, name: str) -> Path:
        """One of the project's playbooks, on this sandbox and for this service."""
        path = self.playbooks / name
        path.write_text(
            f"extends: {REPOSITORY}/playbooks/{name}\nservice: {self.name}\nhost: {{sandbox: {self.sandbox}}}\n"
            # One thread: on cores that others use too, two of them spend their time waiting for each other.
            'server: {env: {OMP_NUM_THREADS: "1"}}\n'
        )
        return path

    @property
    def root(self) -> Path:
        """gpuops' folder on the host."""
        return self.sandbox / "root"

    @property
    def service(self) -> Path:
        return self.root / "services" / self.name

    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.state), "NO_COLOR": "1"}

    def run(self, *words: str, playbook: str = "local.yaml") -> Ran:
        """Run a verb to its end."""
        argv = [GPUOPS, words[0], "-p", str(self.playbook(playbook)), *words[1:]]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=self.environment())
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    def up(self, *words: str, playbook: str = "local.yaml") -> Ran:
        return self.run("up", "--json", *words, playbook=playbook)

    def up_watched(
        self, seen: Callable[[dict[str, Any], subprocess.Popen[str]], None], *words: str, playbook: str = "local.yaml"
    ) -> Ran:
        """`up`, with every event shown to ``seen`` as it comes."""
        argv = [GPUOPS, "up", "--json", "-p", str(self.playbook(playbook)), *words]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment())
        assert process.stdout is not None and process.stderr is not None
        watchdog = threading.Timer(PATIENCE_S, process.kill)
        watchdog.daemon = True
        watchdog.start()
        lines = []
        for line in process.stdout:
            lines.append(line)
            value = json.loads(line)
            if "event" in value:
                seen(value, process)
        err = process.stderr.read()
        code = process.wait()
        watchdog.cancel()
        return Ran(code, "".join(lines), err)

    def status(self, *words: str) -> dict[str, Any]:
        """The service's entry of `gpuops status`."""
        ran = self.run("status", "--json", *words)
        entries = [entry for entry in ran.json["services"] if entry["service"] == self.name]
        assert len(entries) == 1, ran
        entry: dict[str, Any] = entries[0]
        return entry

    def servers(self) -> list[int]:
        """The living main processes of servers of this sandbox's models."""
        found = []
        models = f"{self.root}/models/".encode()
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if b"sglang.launch_server" in words and any(models in word for word in words) and state != "Z":
                found.append(int(folder.name))
        return found

    def release(self, number: int) -> dict[str, Any]:
        """A release's document."""
        value: dict[str, Any] = json.loads((self.service / "releases" / str(number) / "release.json").read_text())
        return value

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.service / "journal.jsonl").read_text().splitlines()]


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of ``condition``; an AssertionError when it never comes."""
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        pause.wait(0.05)
    raise AssertionError(f"never came: {what}")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def process_titled(entry: dict[str, Any], title: str) -> int:
    """The pid of the server's process with this title, from a status entry."""
    found = [process["pid"] for process in entry["server"]["processes"] if process["title"].startswith(title)]
    assert len(found) == 1, entry["server"]["processes"]
    pid: int = found[0]
    return pid
