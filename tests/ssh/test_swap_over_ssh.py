"""`gpuops swap` as a user runs it, over a real sshd: the imitation engine, builds made of small wheels, and their ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuops.sandbox import ALIAS, SandboxInfo

GPUOPS = str(Path(sys.executable).with_name("gpuops"))
ENGINE = Path(__file__).parents[1] / "agent" / "programs" / "engine.py"

PLAYBOOK = """\
service: demo
host: {{address: {alias}, ssh_config: {config}, root: {root}, python: {python}}}
runtime: {{path: {folder}/runtime}}
model: {{path: {folder}/model}}
engine: {{name: sglang, version: 0.5.23}}
server: {{flags: {{prove: {{content: c0ffee}}}}, env: {{LAB: {folder}}}}}
probes: [{{name: capital, ask: What is the capital of France?, expect: {{contains: Paris}}}}]
deadlines: {{stop_s: 5, start_s: 60, stall_s: 30, generate_s: 20, probe_s: 20, lease_s: 30}}
"""


@dataclass(frozen=True)
class Desk:
    """A laptop's folder: a playbook, and builds."""

    folder: Path

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "NO_COLOR": "1"}
        argv = [GPUOPS, *words]
        return subprocess.run(
            argv, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300, env=env, stdin=subprocess.DEVNULL
        )

    def events(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, "--json").stdout.splitlines()]

    def build(self, name: str, content: str = "c0ffee") -> str:
        """Make a build by the verb; its plugin tells ``content``. Returns its id."""
        package = self.folder / f"source-{name}" / "pack"
        package.mkdir(parents=True)
        (package.parent / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
            f'[project]\nname = "{name}"\nversion = "1.0"\n[tool.hatch.build.targets.wheel]\npackages = ["pack"]\n'
            '[tool.gpuops.build]\nplugin = "pack.plugin"\n'
        )
        (package / "__init__.py").write_text(f"NAME = {name!r}\n")
        (package / "plugin.py").write_text(f"import sys\nif '--content' in sys.argv:\n    print({content!r})\n")
        made = self.run("builds", "make", "--from", str(package.parent), "--json")
        assert made.returncode == 0, made.stderr + made.stdout
        return str(json.loads(made.stdout)["id"])


@pytest.fixture
def desk(sandbox: SandboxInfo, tmp_path: Path) -> Iterator[Desk]:
    """A service that runs stock."""
    site = tmp_path / "runtime" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang" / "__init__.py").touch()
    (site / "sglang" / "launch_server.py").write_text(f"import runpy\nrunpy.run_path({str(ENGINE)!r}, run_name='__main__')\n")
    (tmp_path / "runtime" / "bin").mkdir()
    python = Path(getattr(sys, "_base_executable", sys.executable)).absolute()
    (tmp_path / "runtime" / "bin" / "python").symlink_to(python)
    (tmp_path / "runtime" / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    host = {"alias": ALIAS, "config": sandbox.ssh_config, "python": sandbox.python}
    (tmp_path / "gpuops.yaml").write_text(PLAYBOOK.format(**host, root=tmp_path / "root", folder=tmp_path))
    made = Desk(tmp_path)
    started = made.run("up")
    assert started.returncode == 0, started.stderr
    yield made
    assert made.run("down").returncode == 0


def test_a_right_pack_is_promoted_and_one_that_does_not_prove_itself_gives_way(desk: Desk) -> None:
    right, wrong = desk.build("right"), desk.build("wrong", content="another")
    events = desk.events("swap", "right")
    names = [event.get("event") for event in events]
    assert names[0] == "plan" and names.index("checked") < names.index("imported") < names.index("stopping") < names.index(
        "proof"
    )
    outcome = events[-1]
    assert (outcome["outcome"], outcome["proof"]["text"]) == ("promoted", "1 of 1 ranks, swiglu active")

    shown = desk.run("status").stdout
    assert f"kernels     {right}: 1 of 1 ranks, swiglu active" in shown and "cache       " in shown

    failed = desk.run("swap", "wrong")
    assert failed.returncode == 10, failed.stderr
    assert f"the kernel pack {wrong} did not prove itself" in failed.stderr
    assert "rank tp0: it runs content c0ffee, the build has another" in failed.stderr
    assert right in desk.run("status").stdout

    back = desk.run("plan")
    assert f"release 2 runs the build {right}, put in by gpuops swap: this goes back to the playbook's, no build" in back.stdout
    dry = desk.events("swap", wrong, "--dry-run")[0]
    assert dry["outage"]["rollouts"] >= 1 and dry["outage"]["seconds"] > 0


def test_more_than_a_build_is_no_swap(desk: Desk) -> None:
    desk.build("right")
    refused = desk.run("swap", "right", "--set", "server.flags.flavour=b")
    assert refused.returncode == 13 and "server.flags.flavour: (none) -> b" in refused.stderr
    assert "release     1 (good), known-good" in desk.run("status").stdout
