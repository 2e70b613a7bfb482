"""What gpuops itself costs: ``make bench-control``.

Everything runs against a sandbox of its own (a real sshd on loopback): start-up of the command line, a status round trip, a push of many files, and a
rollout of the embedded default. The first run makes the runtime, which takes some minutes; it is kept in ``.sandbox-bench``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.figures import Figure, alternate, cpu_seconds, median, report, wall_seconds
from gpuops.agent.client import Agent
from gpuops.builds.manifest import read_tree
from gpuops.builds.push import push
from gpuops.sandbox import ALIAS, Sandbox, SandboxInfo, prerequisites
from gpuops.transport import Address, open_transport

HERE = Path(__file__).resolve().parent.parent
GPUOPS = str(Path(sys.executable).with_name("gpuops"))

HELP_ROUNDS, STATUS_ROUNDS, PUSH_ROUNDS, START_ROUNDS = 15, 15, 7, 2
PUSH_FILES, PUSH_BYTES = 3000, 36 << 20

BARE = """
import typer
app = typer.Typer()
for name in {names!r}:
    def verb(word: str = typer.Argument("x"), flag: bool = typer.Option(False, "--flag")) -> None:
        "Do one thing."
    app.command(name)(verb)
app()
"""


def main() -> int:
    prerequisites.ensure(lambda text: print(text, file=sys.stderr))
    sandbox = Sandbox(HERE / ".sandbox-bench")
    info = sandbox.start()
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as scratch:
        playbook = _playbook(Path(scratch), info)
        try:
            _run("up", str(playbook))
            return report(_figures(info, playbook, Path(scratch)))
        finally:
            _run("down", "-p", str(playbook))
            sandbox.stop()


def _figures(info: SandboxInfo, playbook: Path, scratch: Path) -> Iterator[Figure]:
    yield _help(scratch)
    yield from _status(info, playbook)
    yield from _push(info, scratch)
    yield from _start(playbook)


def _help(scratch: Path) -> Figure:
    names = _verbs()
    bare = scratch / "bare.py"
    bare.write_text(BARE.format(names=names))
    ours, theirs = alternate(
        lambda: cpu_seconds([GPUOPS, "--help"]), lambda: cpu_seconds([sys.executable, str(bare), "--help"]), HELP_ROUNDS
    )
    ratio = median(ours) / median(theirs)
    detail = f"CPU {median(ours) * 1e3:.0f} ms against {median(theirs) * 1e3:.0f} ms of a bare Typer app with {len(names)} verbs"
    return Figure("gpuops --help", ratio, 1.25, "x", detail)


def _status(info: SandboxInfo, playbook: Path) -> Iterator[Figure]:
    plain = ["ssh", "-F", str(info.ssh_config), ALIAS, "true"]
    for transport, goal in (("openssh", 2.0), ("fabric", 2.5)):
        argv = [GPUOPS, "status", "-p", str(playbook), "--transport", transport]

        def ours(argv: list[str] = argv) -> float:
            return wall_seconds(argv)

        mine, theirs = alternate(ours, lambda: wall_seconds(plain), STATUS_ROUNDS)
        detail = f"{median(mine) * 1e3:.0f} ms against {median(theirs) * 1e3:.0f} ms of ssh host true"
        yield Figure(f"gpuops status ({transport})", median(mine) / median(theirs), goal, "x", detail)


def _push(info: SandboxInfo, scratch: Path) -> list[Figure]:
    source = scratch / "tree"
    source.mkdir()
    for number in range(PUSH_FILES):
        folder = source / f"d{number % 50}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_bytes(os.urandom(PUSH_BYTES // PUSH_FILES))
    builds = info.root / "builds"
    rsync = ["rsync", "-rlpt", "-e", f"ssh -F {info.ssh_config}", f"{source}/"]

    def ours() -> float:
        _remove(builds)
        began = time.perf_counter()
        with open_transport(Address(ALIAS, ssh_config=info.ssh_config), "auto") as transport:
            push(Agent(transport, str(info.root), str(info.python)), read_tree(source))
        return time.perf_counter() - began

    def theirs() -> float:
        target = info.folder / "plain"
        shutil.rmtree(target, ignore_errors=True)
        return wall_seconds([*rsync, f"{ALIAS}:{target}/"])

    mine, plain = alternate(ours, theirs, PUSH_ROUNDS)
    detail = f"{median(mine):.2f} s against {median(plain):.2f} s of plain rsync, {PUSH_FILES} files, {PUSH_BYTES >> 20} MB"
    figures = [Figure("push, beyond plain rsync", median(mine) - median(plain), 1.0, " s", detail)]
    with open_transport(Address(ALIAS, ssh_config=info.ssh_config), "auto") as transport:
        counting = _CountingAgent(transport, str(info.root), str(info.python))
        again = push(counting, read_tree(source))
    sent = 0 if again is None else again.bytes_sent
    figures.append(Figure("push again, round trips", counting.calls, 1, "", f"{sent} bytes of file data sent"))
    figures.append(Figure("push again, file data", sent, 0, " bytes", "nothing has changed"))
    return figures


class _CountingAgent(Agent):
    calls = 0

    def call(self, verb: str, **args: Any) -> dict[str, Any]:
        self.calls += 1
        return super().call(verb, **args)


def _start(playbook: Path) -> list[Figure]:
    lags, added, asked = [], [], []
    for _ in range(START_ROUNDS):
        _run("down", "-p", str(playbook))
        lag, own, probes = _one_start(playbook)
        lags.append(lag)
        added.append(own)
        asked.append(probes)
    detail = f"worst of {START_ROUNDS} starts, seen by a client that asks every 20 ms"
    return [
        Figure("first answered generation to reported ready", max(lags), 1.0, " s", detail),
        Figure(
            "gpuops' own part of a start",
            max(added),
            3.0,
            " s",
            f"journal outside exec to first answer; probes took {max(asked):.2f} s of it",
        ),
    ]


def _one_start(playbook: Path) -> tuple[float, float, float]:
    """Start the service once; returns (lag, journal time outside exec to first answer, the probes' part of that), in seconds."""
    process = subprocess.Popen([GPUOPS, "up", str(playbook), "--json"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    times: dict[str, float] = {}
    observer: _Observer | None = None
    probes = 0.0
    event: dict[str, Any] = {}
    for line in process.stdout:
        event = json.loads(line)
        name = event.get("event")
        times.setdefault(str(name), event.get("t", 0.0))
        if name == "server":
            observer = _Observer(event["port"])
        if name == "probe":
            probes += event["seconds"]
    if process.wait() != 0 or observer is None:
        sys.exit(f"gpuops up ended with status {process.returncode}")
    lag = times["ready"] - observer.first_answer()
    return max(0.0, lag), event["seconds"] - (times["answered"] - times["server"]), probes


class _Observer:
    """Asks the server for one token, again and again, and notes when the first answer came."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._at = 0.0
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def first_answer(self) -> float:
        self._thread.join(timeout=60)
        return self._at

    def _ask(self) -> None:
        body = {"text": "The", "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            try:
                answer = httpx.post(f"http://127.0.0.1:{self._port}/generate", json=body, timeout=60)
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            if answer.status_code == 200:
                self._at = time.time()
                return


def _playbook(scratch: Path, info: SandboxInfo) -> Path:
    path = scratch / "bench.yaml"
    path.write_text(f"extends: {HERE}/playbooks/local.yaml\nhost: {{sandbox: {info.folder}}}\n")
    return path


def _verbs() -> list[str]:
    from gpuops.cli.table import VERBS

    return [verb.name for verb in VERBS]


def _remove(builds: Path) -> None:
    subprocess.run(["chmod", "-R", "u+w", str(builds)], check=False, capture_output=True)
    shutil.rmtree(builds, ignore_errors=True)


def _run(*words: str) -> None:
    ended = subprocess.run([GPUOPS, *words], stdout=subprocess.DEVNULL, check=False)
    if ended.returncode != 0:
        sys.exit(f"gpuops {' '.join(words)} failed with status {ended.returncode}")


if __name__ == "__main__":
    sys.exit(main())
