"""What a swap costs: part of ``make bench-builds``.

``gpuops swap`` over a real sshd, under a runtime whose ``sglang.launch_server`` is the imitation of the engine (``tests/agent/programs/engine.py``),
which ends at once on TERM and starts in a second: what is left of the outage is gpuops' own. The real kernels are compiled ahead of time where
their environment (``.venv-kernels``) has been made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos_host import make_parts
from benchmarks.figures import Figure
from gpuops.builds.make import make
from gpuops.sandbox import SandboxInfo

HERE = Path(__file__).resolve().parent.parent
GPUOPS = str(Path(sys.executable).with_name("gpuops"))
KERNELS_PYTHON = HERE / ".venv-kernels" / "bin" / "python"

SERVICE, ROUNDS = "bench-swap", 3
CARD = "12.0"

# What needs no card, and so has no business after the stop.
AHEAD = {"checked", "imported", "compiled", "seeded", "warmed", "staged"}
AHEAD_PHASES = {"install", "download", "convert", "seed", "import", "compile", "warm"}

# A kernel build as the agent sees one: its plugin's proof is written by the imitation, its compiler fills the folder.
AOT = """
import argparse, json, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--capability")
parser.add_argument("--cache", type=pathlib.Path)
options = parser.parse_args()
new = [path for path in (options.cache / f"kernel{number}" for number in range(32)) if not path.exists()]
for path in new:
    path.mkdir(parents=True)
    (path / "binary").touch()
print(json.dumps({"capability": options.capability, "kernels": 32, "compiled": len(new), "cached": 32 - len(new), "seconds": 0}))
"""

Json = dict[str, Any]


@dataclass(frozen=True)
class Played:
    """A rollout as its client saw it."""

    events: list[Json]

    @property
    def outcome(self) -> Json:
        return self.events[-1]

    def first(self, name: str) -> Json:
        return next(event for event in self.events if event.get("event") == name)

    def after_the_stop(self) -> list[Json]:
        at = next(number for number, event in enumerate(self.events) if event.get("event") == "stopping")
        return self.events[at:]


def figures(info: SandboxInfo, scratch: Path) -> Iterator[Figure]:
    """Every figure about swaps, as it is measured."""
    scratch.mkdir()
    desk = _Desk(info, scratch)
    builds = [desk.build(name) for name in ("one", "two")]
    first = desk.run("up", str(desk.playbook)).first("cache")["misses"]
    try:
        # The first round makes both builds known to the host; then they take turns.
        played = [desk.run("swap", builds[number % 2], "--yes") for number in range(ROUNDS + 1)]
    finally:
        desk.run("down")
    yield _outage(played)
    late = [event for each in played for event in each.after_the_stop() if _is_ahead(event)]
    yield Figure("what needs no card and ran after the stop", len(late), 0, "", f"events of {len(played)} swaps")
    misses = played[-1].first("cache")["misses"]
    detail = f"files that the start added to its cache; the service's first start added {first}"
    yield Figure("second start of a build on the same card, cache misses", misses, 0, "", detail)
    yield from _real_kernels(scratch / "kernels")


def _outage(played: list[Played]) -> Figure:
    """From TERM to the new server's exec. The imitation ends at once, so all of it counts as ours, its own end included."""
    own = [each.first("server")["t"] - each.first("stopping")["t"] for each in played]
    whole = [each.outcome["outage_s"] for each in played]
    detail = f"TERM to exec, worst of {len(played)}; outages were {min(whole):.1f} to {max(whole):.1f} s"
    return Figure("swap outage beyond the engine's own stop and start", max(own), 3.0, " s", detail)


def _is_ahead(event: Json) -> bool:
    return event.get("event") in AHEAD or (event.get("event") == "phase" and event["phase"] in AHEAD_PHASES)


def _real_kernels(scratch: Path) -> Iterator[Figure]:
    """Compile the project's own kernels ahead of time, twice: how many the second time."""
    if not KERNELS_PYTHON.exists():
        print("left out: the real kernels, since there is no .venv-kernels (make test-kernels makes it)", file=sys.stderr)
        return
    made = make(scratch / "builds", HERE / "kernels")
    env = {**os.environ, "PYTHONPATH": str(made.path / "site"), "CUDA_VISIBLE_DEVICES": ""}
    argv = [str(KERNELS_PYTHON), "-m", made.tree.about["compile"], "--capability", CARD, "--cache", str(scratch / "cache")]
    first, second = (_last_line(argv, env) for _ in range(2))
    detail = f"for {CARD}: {first['compiled']} of {first['kernels']} the first time in {first['seconds']} s, then {second['seconds']} s"
    yield Figure("real kernels compiled ahead a second time", second["compiled"], 0, "", detail)


def _last_line(argv: list[str], env: dict[str, str]) -> Json:
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed: {ended.stderr.strip()[-400:]}")
    told: Json = json.loads(ended.stdout.splitlines()[-1])
    return told


class _Desk:
    """A playbook for the sandbox's host with the imitation engine, and builds beside it."""

    def __init__(self, info: SandboxInfo, folder: Path) -> None:
        self._folder = folder
        self._builds = folder / "builds"
        parts = make_parts(folder / "parts")
        self.playbook = folder / "swap.yaml"
        self.playbook.write_text(
            f"service: {SERVICE}\n"
            f"host: {{sandbox: {info.folder}}}\n"
            f"runtime: {{path: {parts.runtime}}}\n"
            f"model: {{path: {parts.model}}}\n"
            "engine: {name: sglang, version: 0.5.23}\n"
            f"server: {{flags: {{compile: 32, prove: {{content: bench}}}}, env: {{LAB: {folder}}}}}\n"
            "probes: [{name: capital, ask: What is the capital of France?, expect: {contains: Paris}}]\n"
        )

    def build(self, name: str) -> str:
        """Make a build whose wheel is a tiny package; returns its id."""
        source = self._folder / f"source-{name}"
        package = source / f"pack_{name}"
        package.mkdir(parents=True)
        (source / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
            f'[project]\nname = "pack-{name}"\nversion = "1.0"\n'
            f'[tool.gpuops.build]\nplugin = "pack_{name}.plugin"\ncompile = "pack_{name}.aot"\n'
        )
        (package / "__init__.py").write_text(f"NAME = {name!r}\n")
        (package / "aot.py").write_text(AOT)
        (package / "plugin.py").write_text("import sys\nif '--content' in sys.argv:\n    print('bench')\n")
        return make(self._builds, source).tree.id

    def run(self, *words: str) -> Played:
        """A gpuops verb that has to succeed, as its event stream."""
        env = {**os.environ, "GPUOPS_BUILDS": str(self._builds), "XDG_STATE_HOME": str(self._folder / "state")}
        argv = [GPUOPS, *words, *([] if words[0] == "up" else ["-p", str(self.playbook)]), "--json"]
        ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if ended.returncode != 0:
            sys.exit(
                f"gpuops {' '.join(words)} failed with status {ended.returncode}: {ended.stdout[-800:]} {ended.stderr[-400:]}"
            )
        return Played([json.loads(line) for line in ended.stdout.splitlines()])
