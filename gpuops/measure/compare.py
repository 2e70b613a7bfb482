"""A measured cell against an earlier one of the same kind: ratios, and nothing that pretends to be a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Figures that are compared: where they stand, and whether more is better.
COMPARED: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("tok/s", ("output_tok_s",), True),
    ("TPOT", ("tpot_ms", "p50"), False),
    ("TTFT", ("ttft_ms", "p50"), False),
)

# Those of an open loop, whose throughput is what was asked.
COMPARED_OPEN = (("E2E", ("e2e_ms", "p50"), False), ("goodput", ("goodput", "req_s"), True), *COMPARED[1:])

Block = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One figure now, over what it was: ``ratio`` 1.02 is 2 % more. ``better``: the change is in the good direction."""

    name: str
    ratio: float
    better: bool


def changes(block: Block, reference: Block) -> list[Change]:
    """How a block's figures differ from those of its reference; a figure that either lacks is left out."""
    found = []
    for name, path, more_is_better in COMPARED_OPEN if block["cell"].get("rate") else COMPARED:
        now, before = figure(block, path), figure(reference, path)
        if now and before:
            ratio = now / before
            found.append(Change(name, ratio, (ratio > 1) == more_is_better))
    return found


def figure(block: Block, path: Sequence[str]) -> float | None:
    """A figure of a block by its place; None when it has none."""
    value: Any = block["figures"]
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if value is not None else None
