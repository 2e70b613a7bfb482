"""A comparison's record and the evidence of its releases, as the host gives them; speeds are drawn by a seed."""

from __future__ import annotations

import random
from typing import Any

from gpuops.measure.ab import Comparison, Launch, Side

CELLS = [
    {"name": "c1", "concurrency": 1, "input": 1024, "output": 256, "requests": 16, "cold": True},
    {"name": "c16", "concurrency": 16, "input": 1024, "output": 256, "requests": 64, "cold": True},
    {"name": "c64", "concurrency": 64, "input": 1024, "output": 256, "requests": 256, "cold": True},
    {"name": "prefill-8k", "concurrency": 1, "input": 8192, "output": 1, "requests": 8, "cold": True},
]
SPEEDS = {"c1": 30.0, "c16": 300.0, "c64": 700.0, "prefill-8k": 4000.0}

Json = dict[str, Any]


def comparison(pairs: int = 5, gain: float = 0.08, *, cards: bool = True) -> tuple[Json, Json]:
    """``(record, evidence)`` of a comparison in which B is faster by ``gain``, with a noise of 1 % a launch."""
    draw = random.Random(7)
    made = Comparison(
        id="ab-20260105-101500-3f9c81aa",
        service="deepseek",
        by="ann@laptop",
        began=1767608100.0,
        a=Side("known-good", 3),
        b=Side("gpuops-kernels-3f9c81aa02d4", 4),
        equal=False,
        margin=0.02,
        pairs=pairs,
        home=3,
        token="t",
        cells=tuple(CELLS),
        state="done",
        back={"release": 3, "restored": True, "verdict": "right", "at": 1767611700.0},
    )
    blocks: dict[int, list[Json]] = {3: [], 4: []}
    while (side := made.next_side) is not None:
        release, at = made.side(side).release or 0, len(made.launches)
        factor = (1 + gain if side == "B" else 1) * draw.gauss(1, 0.01)
        measured = [block(cell, SPEEDS[cell["name"]] * factor, f"{at}-1", draw, cards=cards) for cell in CELLS]
        blocks[release] += measured
        kept = tuple({key: each[key] for key in ("cell", "at", "seed", "figures")} for each in measured)
        made = made.with_launch(Launch(side, release, f"{at}-1", 1767608100.0 + at, "sglang.benchmark.rust_client", kept))
    evidence = {
        "service": "deepseek",
        "current": 3,
        "known_good": 3,
        "releases": [release_told(3, None, blocks[3]), release_told(4, "gpuops-kernels-3f9c81aa02d4", blocks[4])],
    }
    return made.to_json(), evidence


def block(cell: Json, speed: float, launch: str, draw: random.Random, *, cards: bool = True) -> Json:
    """A valid block with its requests and its telemetry."""
    told = {
        **{key: cell[key] for key in ("name", "concurrency", "requests", "cold")},
        "input_tokens": cell["input"],
        "output_tokens": cell["output"],
    }
    tpot = 1e3 * cell["concurrency"] / speed
    requests = [
        [draw.gauss(80, 5), tpot * draw.gauss(1, 0.03), 80 + cell["output"] * tpot * draw.gauss(1, 0.03), cell["output"]]
        for _ in range(20)
    ]
    decode = cell["output"] > 1
    figures = {
        "ttft_ms": spread(80.0),
        "itl_ms": spread(tpot) if decode else None,
        "tpot_ms": spread(tpot) if decode else None,
        "e2e_ms": spread(80 + cell["output"] * tpot),
        "output_tok_s": speed if decode else 1.0,
        "input_tok_s": 4 * speed if decode else speed,
        "user_tok_s": 1e3 / tpot if decode else None,
    }
    card = {
        "index": 0,
        "sm_mhz": 1950.0,
        "memory_mhz": 14000.0,
        "celsius": 60.0 + 3 * draw.random(),
        "watts": 300.0,
        "used_mib": 1e5,
        "reasons": [],
    }
    samples = [
        {
            "at": 100.0 + second,
            "running": float(cell["concurrency"]),
            "queued": 0.0,
            "generated": speed * second,
            "load": 1.5,
            "cards": [card] if cards else [],
        }
        for second in range(6)
    ]
    return {
        "cell": told, "at": 1767608100.0, "seed": 1, "client": "sglang.benchmark.rust_client", "valid": True, "rejected": False, "faults": [],
        "figures": figures, "requests": requests, "telemetry": samples, "launch": launch,
    }  # fmt: skip


def release_told(number: int, build: str | None, blocks: list[Json]) -> Json:
    rungs = [
        {
            "rung": 1,
            "name": "identity",
            "gate": "required",
            "verdict": "right",
            "answer": "as expected",
            "expectation": "model m",
        },
        {
            "rung": 4,
            "name": "needles",
            "gate": "wanted",
            "verdict": "wrong",
            "answer": "8 of 9 found",
            "expectation": "at least 100%",
        },
    ]
    probe = {
        "name": "capital",
        "gate": "required",
        "passed": True,
        "answer": "Paris <b>|</b>",
        "question": "?",
        "expectation": "Paris",
    }
    host = {"hostname": "gpu-box", "python": "3.11.2"}
    return {
        "release": number,
        "state": {"state": "good", "reason": "", "at": 1.0},
        "summary": {"engine": "sglang 0.5.23", "model": "DeepSeek-V4-Flash", "build": build, "flags": {"tp": 8}},
        "build": {"id": build} if build else None,
        "runtime": "rt-0123456789ab",
        "model": {"path": "/models/DeepSeek-V4-Flash"},
        "engine": {"name": "sglang", "version": "0.5.23"},
        "fingerprint": {"host": host, "card": "RTX PRO 6000 Blackwell", "kernel": "6.8.0", "runtime": {}, "model": {}, "build": None},
        "gates": {"asked": 1, "probes": [probe], "passed": True},
        "ladder": [{"launch": "1-1", "level": 8, "verdict": "right", "at": 1.0, "rungs": rungs}],
        "blocks": blocks,
    }  # fmt: skip


def spread(value: float) -> Json:
    return {"p50": value, "p95": 1.1 * value, "p99": 1.2 * value}
