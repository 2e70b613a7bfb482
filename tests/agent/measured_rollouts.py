"""Rollouts of a server that can be measured: orders for it, its cells, and the noise of the host as a comparison would have shown it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollouts import Lab

from gpuops.engines.measuring import load_words

PROGRAM = Path(__file__).parent / "programs" / "streaming.py"
CELL = {"name": "c2", "concurrency": 2, "input": 8, "output": 16, "requests": 8, "cold": True}

Json = dict[str, Any]

PROBE: Json = {
    "name": "text",
    "prompt": "Tell of the river",
    "expect": {"regex": "[a-z]{2}"},
    "max_tokens": 8,
    "gate": "required",
}


def order(lab: Lab, *words: str, performance: Json | None = None, **kwargs: Any) -> Json:
    """An `up` of the server with these words."""
    (lab.model / "config.json").write_text('{"vocab_size": 32000}')
    made = lab.order(*words, probes=[PROBE], **kwargs)
    argv = made["candidate"]["argv"]
    argv[2] = str(PROGRAM)
    return {**made, "performance": performance}


def gate(gate: str = "required", *, allowed: float = 0.1) -> Json:
    return {"gate": gate, "cells": [CELL], "not_slower_than": allowed, "deadline_s": 60.0, "load": load_words()}


def bench(lab: Lab) -> Json:
    """Measure the running server."""
    args = {"load": load_words(), "cells": [CELL], "default_cells": [CELL], "deadline_s": 60.0}
    return lab.agent.call("bench", service="demo", by="test@here", **args)


def record(**changes: Any) -> Json:
    """A comparison's record, as the controller writes it."""
    return {"id": "ab-1", "by": "t@here", "began": 1.0, "token": "t", "home": 1, "launches": [], "noise": None, **changes}


def calibrate(lab: Lab, sd: float, pairs: int = 6) -> None:
    """Keep a comparison of equals that has shown this noise."""
    block = json.loads((lab.service.release(1) / "measurements.jsonl").read_text().splitlines()[-1])
    noise = [{"cell": block["cell"], "client": block["client"], "sd": sd, "mean": 0.0, "pairs": pairs}]
    lab.agent.call("ab.save", service="demo", record=record(noise=noise), take=True)
