"""A service on this machine that `gpuops ab` can work with: the command line as a user runs it, and a server that can be measured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuops.builds.manifest import hashed, write_manifest

GPUOPS = str(Path(sys.executable).with_name("gpuops"))
PROGRAM = Path(__file__).parent / "programs" / "streaming.py"
CELLS = [{"name": "c2", "concurrency": 2, "input": 8, "output": 16, "requests": 8}]

# Generous: it only ends a command that would never end.
PATIENCE_S = 300.0

Json = dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        """The last JSON line of stdout."""
        value: Json = json.loads(self.out.splitlines()[-1])
        return value


class AbLab:
    """A playbook on this machine, whose release serves after :meth:`up`; and builds that differ in their pace.

    Args:
        gap_ms: between two tokens of the server.
    """

    def __init__(self, folder: Path, *, gap_ms: float = 2.0, cells: list[Json] | None = None, **sections: Any) -> None:
        self.folder = folder
        self.root = folder / "root"
        self._begun: list[subprocess.Popen[str]] = []
        self.builds = folder / "builds"
        self.builds.mkdir(parents=True)
        self._make_runtime()
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text('{"vocab_size": 32000}')
        header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (folder / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        self.playbook: Json = {
            "service": "demo",
            "host": {"address": "local", "root": str(self.root), "python": sys.executable},
            "runtime": {"path": str(folder / "runtime")},
            "model": {"path": str(folder / "model")},
            "engine": {"name": "sglang", "version": "0.5.23"},
            "server": {"flags": {"gap-ms": gap_ms}},
            "probes": [{"name": "text", "prompt": "Tell of the river", "expect": {"regex": "[a-z]{2}"}, "max_tokens": 8}],
            "bench": {"cells": cells or CELLS},
            "deadlines": {"start_s": 30, "stall_s": 20, "stop_s": 5},
            **sections,
        }
        self.write()

    def write(self) -> None:
        (self.folder / "demo.yaml").write_text(yaml.safe_dump(self.playbook))

    @property
    def service(self) -> Path:
        return self.root / "services" / "demo"

    def build(self, name: str, factor: float) -> str:
        """A build under which the server is so many times as slow; returns its id."""
        staging = self.builds / f".{name}"
        (staging / "site").mkdir(parents=True)
        (staging / "site" / "pace.py").write_text(f"FACTOR = {factor}\n")
        tree = hashed(name, {"site": staging / "site"}, {})
        write_manifest(staging, tree)
        staging.rename(self.builds / tree.id)
        return tree.id

    def run(self, *words: str) -> Ran:
        ended = subprocess.run(
            self.argv(*words), capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=self.environment()
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """A command that runs meanwhile, with its standard output in a pipe."""
        begun = subprocess.Popen(
            self.argv(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
            start_new_session=True,
        )
        self._begun.append(begun)
        return begun

    def argv(self, *words: str) -> list[str]:
        return [GPUOPS, words[0], "-p", str(self.folder / "demo.yaml"), *words[1:]]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "GPUOPS_BUILDS": str(self.builds), "NO_COLOR": "1"}

    def up(self) -> None:
        ran = self.run("up", "--json")
        assert ran.code == 0, ran

    def status(self) -> Json:
        entry: Json = self.run("status", "--json").json["services"][0]
        return entry

    def comparison(self) -> Json:
        """The record of the latest comparison, as it lies on the host; empty before there is one."""
        records = [json.loads(path.read_text()) for path in (self.service / "ab").glob("ab-*.json")]
        return max(records, key=lambda record: float(record["began"]), default={})

    def clean_up(self) -> None:
        for process in self._begun:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if self.service.exists():
            ran = self.run("down", "--lock-wait", "60")
            assert ran.code == 0, ran
        shutil.rmtree(self.root, ignore_errors=True)

    def _make_runtime(self) -> None:
        """An environment whose ``sglang.launch_server`` is our program."""
        python = str(Path(getattr(sys, "_base_executable", sys.executable)).absolute())
        runtime = self.folder / "runtime"
        site = runtime / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        (site / "sglang").mkdir(parents=True)
        (site / "sglang" / "__init__.py").touch()
        (site / "sglang" / "launch_server.py").write_text(
            f"import runpy\n\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
        )
        (runtime / "bin").mkdir()
        (runtime / "bin" / "python").symlink_to(python)
        (runtime / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\n")
