"""Trial files and results for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuops.trials import load
from gpuops.trials.load import LoadedTrial

Json = dict[str, Any]

PLAYBOOK = """\
service: svc
host: local
runtime: {path: /opt/venv}
model: {path: /models/m}
engine: {version: 0.5.23}
server: {flags: {tp: 1}, env: {A: "1"}}
bench: {cells: [{name: c1, concurrency: 1}, {name: users, rate: 2}]}
"""


def trial_of(folder: Path, text: str, playbook: str = PLAYBOOK, name: str = "t") -> LoadedTrial:
    """A trial file beside its base."""
    (folder / "base.yaml").write_text(playbook)
    path = folder / f"{name}.yaml"
    path.write_text(f"question: q?\nhypothesis: h\nbase: base.yaml\n{text}")
    return load.load(path)


def block(cell: str, tok_s: float, *, valid: bool = True) -> Json:
    told = {"name": cell, "concurrency": 1, "input_tokens": 8, "output_tokens": 8, "requests": 4, "cold": True}
    figures = {"output_tok_s": tok_s, "input_tok_s": 1.0} if valid else None
    return {"cell": told, "client": "c", "valid": valid, "faults": [] if valid else ["the host was busy"], "figures": figures}


def result(step: str, verdict: str = "passed", **more: Any) -> Json:
    fingerprint = {
        "host": {"hostname": "box", "python": "3.12"},
        "card": "H200",
        "driver": "580",
        "kernel": "6",
        "runtime": {},
        "model": {},
    }
    why = (
        {} if verdict == "passed" else {"kind": "died", "class": "gpu_oom", "reason": "it died", "evidence": "CUDA out of memory"}
    )
    return {
        "step": step,
        "verdict": verdict,
        "release": 3,
        "seconds": 9.0,
        "ready_s": 5.0,
        "fingerprint": fingerprint,
        **why,
        **more,
    }
