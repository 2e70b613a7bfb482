"""Comparisons for tests: a begun one, and launches of given speeds."""

from __future__ import annotations

from typing import Any

from gpuops.measure.ab import Comparison, Launch, Side


def comparison(*, pairs: int = 5, margin: float = 0.02, equal: bool = False, output_tokens: int = 64) -> Comparison:
    cell = {"name": "c1", "concurrency": 1, "input": 16, "output": output_tokens, "requests": 4, "cold": True}
    return Comparison(
        id="ab-1",
        service="demo",
        by="ann@laptop",
        began=1000.0,
        a=Side("known-good", 3),
        b=Side("known-good" if equal else "none", 3 if equal else None),
        equal=equal,
        margin=margin,
        pairs=pairs,
        home=3,
        token="t-1",
        cells=(cell,),
    )


def launched(begun: Comparison, *speeds: float) -> Comparison:
    """The comparison after further launches of these speeds, in the order of their turns."""
    for speed in speeds:
        at = len(begun.launches)
        side = begun.next_side
        assert side is not None
        release = begun.side(side).release or 4
        cells = begun.cells or ()
        blocks = tuple(block(speed, cell) for cell in cells)
        begun = begun.with_launch(Launch(side, release, f"{at}-1", 1000.0 + at, "client", blocks))
    return begun


def block(speed: float, cell: Any) -> dict[str, Any]:
    """A valid block of the agent, as the record keeps it."""
    told = {**cell, "input_tokens": cell["input"], "output_tokens": cell["output"]}
    figures = {
        "output_tok_s": speed,
        "input_tok_s": 10 * speed,
        "user_tok_s": speed,
        "ttft_ms": spread(1000.0 / speed),
        "tpot_ms": spread(1000.0 / speed) if cell["output"] > 1 else None,
        "itl_ms": None,
        "e2e_ms": spread(64000.0 / speed),
    }
    return {"cell": told, "at": 1000.0, "seed": 1, "figures": figures}


def spread(value: float) -> dict[str, float]:
    return {"p50": value, "p95": 1.2 * value, "p99": 1.3 * value}
