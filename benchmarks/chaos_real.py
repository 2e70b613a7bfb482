"""The same with the real engine, SGLang on CPU: one host for all seeds, since every start of it takes a while.

What one rollout leaves serving is the known-good release of the next.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chaos_draw import Case, draw_real
from benchmarks.chaos_host import GPUOPS, HERE, Host, Parts, own_python, put_agent, sshd
from benchmarks.chaos_trial import Result, trial
from gpuops.sandbox import Sandbox

LOCAL = HERE / "playbooks" / "local.yaml"
SANDBOX = HERE / ".sandbox-bench"

# A lost controller is undone after this; on two cores that three starting processes fill, a controller takes seconds to renew.
LEASE_S = 20.0
DEADLINES = {"prepare_s": 300, "stop_s": 30, "start_s": 300, "stall_s": 120, "generate_s": 60, "probe_s": 60, "lease_s": LEASE_S}
PATIENCE = 8.0

Json = dict[str, Any]


@dataclass(frozen=True)
class RealParts(Parts):
    """The runtime and the model of the playbook ``local.yaml``, as gpuops has made them on a host."""

    def server(self, name: str, case: Case) -> Json:
        wanted: Json = yaml.safe_load(LOCAL.read_text(encoding="utf-8"))["server"]
        # Different contents, and so a rollout, with every seed.
        flags: Json = {} if name == "good" else {"max-running-requests": 16 + case.seed}
        if name == "candidate" and case.candidate == "garbage":
            flags["load-format"] = "dummy"
        # One thread: on cores that others use too, two of them spend their time waiting for each other.
        return {**wanted, "flags": {**wanted["flags"], **flags}, "env": {**wanted["env"], "OMP_NUM_THREADS": "1"}}

    def may_be_good(self, argv: Sequence[str], case: Case) -> bool:
        return "dummy" not in argv


class RealHost(Host):
    """A host that is used for one case after the other."""

    def start_known_good(self) -> Json:
        return {"outcome": "unchanged"} if self.server() is not None else super().start_known_good()


def parts_of(release: Json, folder: Path) -> Parts:
    """The parts with the runtime and the model of a release's document."""
    runtime, model = Path(release["runtime"]["path"]), Path(release["model"]["path"])
    parts = RealParts(folder, own_python(), runtime, model, DEADLINES, PATIENCE)
    put_agent(parts)
    return parts


def run(seeds: Sequence[int], folder: Path, parts: Parts, *, keep: bool = False) -> Iterator[Result]:
    """Play seeds below ``folder``, and yield their results as they end."""
    with sshd(folder / "sshd") as info:
        host = RealHost(folder / "host", parts, info, draw_real(seeds[0]))
        wrong = False
        try:
            for seed in seeds:
                host.take_up(draw_real(seed))
                result = trial(host)
                wrong = wrong or bool(result.faults)
                yield result
        finally:
            host.close(keep=keep or wrong)


@contextlib.contextmanager
def made_parts(folder: Path) -> Iterator[Parts]:
    """The parts from a sandbox that is kept in ``.sandbox-bench``; the first run makes the runtime, which takes some minutes."""
    sandbox = Sandbox(SANDBOX)
    info = sandbox.start()
    try:
        playbook = folder / "local.yaml"
        playbook.parent.mkdir(parents=True, exist_ok=True)
        playbook.write_text(f"extends: {LOCAL}\nhost: {{sandbox: {info.folder}}}\n")
        try:
            subprocess.run([GPUOPS, "up", "-p", str(playbook)], stdout=sys.stderr, check=True)
        finally:
            subprocess.run([GPUOPS, "down", "-p", str(playbook)], stdout=sys.stderr, check=False)
        releases = info.folder / "root" / "services" / "smollm2"
        release = json.loads((releases / "good" / "release.json").read_text(encoding="utf-8"))
        yield parts_of(release, folder / "parts")
    finally:
        sandbox.stop()
