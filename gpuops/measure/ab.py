"""An A/B comparison: two contents of one service, launched in turns and measured; what comes next, what was measured, and what it shows. Pure.

The unit is a launch: what a start changes by chance stays until the next one. Launches alternate in blocks of A B B A, so that a drift of the host
(temperature, other tenants) meets both alike; the pairs are the first two and the last two of a block. Each pair gives one value a cell and figure;
:mod:`gpuops.measure.paired` says what they show. Margin and cells are declared before the first launch and stand in the record.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpuops.measure.compare import COMPARED, COMPARED_OPEN, figure
from gpuops.measure.paired import Verdict, judge, log_ratios

VERSION = 1

Name = Literal["A", "B"]
Json = dict[str, Any]

RUNNING, DONE, INTERRUPTED, FAILED = "running", "done", "interrupted", "failed"


@dataclass(frozen=True)
class Side:
    """One of the two contents: ``word`` as it was named, and the release that it became with its first launch (or was from the beginning)."""

    word: str
    release: int | None = None


@dataclass(frozen=True)
class Launch:
    """One launch that was measured: ``launch`` tells it from every other start, ``at`` is seconds since the epoch, the blocks are valid ones."""

    side: Name
    release: int
    launch: str
    at: float
    client: str
    blocks: tuple[Json, ...]


@dataclass(frozen=True)
class Comparison:
    """The record of a comparison.

    Attributes:
        equal: A and B are the same content: the comparison shows the noise of the host.
        cells: the playbook's cells, as the agent takes them; None: those of the releases. ``only``: names of them, all when empty.
        margin: the change that matters, as a fraction.
        pairs: how many pairs are wanted.
        home: the release that serves before and after: the known-good one.
        token: whose turn it is to write the record; another process that goes on with the comparison takes it.
        spoiled: launches that the host spoiled, and why; they are measured again and count for nothing.
        back: how it ended for the host: the release that serves, and what its probes said.
    """

    id: str
    service: str
    by: str
    began: float
    a: Side
    b: Side
    equal: bool
    margin: float
    pairs: int
    home: int
    token: str
    cells: tuple[Json, ...] | None = None
    only: tuple[str, ...] = ()
    deadline_s: float = 1800.0
    state: str = RUNNING
    reason: str = ""
    launches: tuple[Launch, ...] = ()
    spoiled: tuple[Json, ...] = field(default=())
    back: Json | None = None

    @property
    def next_side(self) -> Name | None:
        """What is to be launched now; None when every pair is there."""
        done = len(self.launches)
        return None if done >= 2 * self.pairs else turn(done)

    def side(self, name: Name) -> Side:
        return self.a if name == "A" else self.b

    def became(self, name: Name, release: int) -> "Comparison":
        """The same with a side's release known; that of both when they are equal."""
        a = replace(self.a, release=release) if name == "A" or self.equal else self.a
        b = replace(self.b, release=release) if name == "B" or self.equal else self.b
        # Two words may turn out to mean the same release.
        return replace(self, a=a, b=b, equal=self.equal or (a.release is not None and a.release == b.release))

    def with_launch(self, launch: Launch) -> "Comparison":
        return replace(self, launches=(*self.launches, launch))

    def to_json(self) -> Json:
        """The record as it is stored; what it shows is in it too, for whoever only reads."""
        plain = {**vars(self), "a": vars(self.a), "b": vars(self.b), "launches": [vars(each) for each in self.launches]}
        shown = {"results": [each.to_json() for each in results(self)], "zeros": zeros(self), "noise": noise(self)}
        return {"version": VERSION, **plain, **shown}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Comparison":
        """Raises ValueError for a record of another version."""
        if record.get("version") != VERSION:
            raise ValueError(f"a record of version {record.get('version')!r}, and not {VERSION}")
        known = {key: value for key, value in record.items() if key in cls.__dataclass_fields__}
        launches = tuple(Launch(**{**each, "blocks": tuple(each["blocks"])}) for each in record["launches"])
        cells = None if record["cells"] is None else tuple(record["cells"])
        return cls(
            **{
                **known,
                "a": Side(**record["a"]),
                "b": Side(**record["b"]),
                "launches": launches,
                "cells": cells,
                "only": tuple(record["only"]),
                "spoiled": tuple(record["spoiled"]),
            }
        )


@dataclass(frozen=True)
class Result:
    """One figure at one cell: its values over the pairs, and the verdict; None below two pairs, which have no spread."""

    cell: str
    figure: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    more_is_better: bool
    verdict: Verdict | None

    @property
    def change(self) -> float:
        """B against A in the good direction, as a fraction: 0.02 is 2 % better."""
        return math.expm1(statistics.fmean(log_ratios(self.a, self.b, more_is_better=self.more_is_better)))

    def to_json(self) -> Json:
        verdict = self.verdict.as_dict() if self.verdict else None
        return {**vars(self), "verdict": verdict, "change": self.change}


def turn(at: int) -> Name:
    """The side of launch ``at`` (from 0): A B B A, A B B A, ..."""
    return "A" if at % 4 in (0, 3) else "B"


def results(comparison: Comparison) -> list[Result]:
    """Every figure at every cell, over the pairs that are whole; the first is the primary one. [] before the first pair."""
    return [
        _result(cell, name, a, b, more_is_better, comparison.margin)
        for cell, name, a, b, more_is_better in _figures(comparison)
        if min(*a, *b) > 0
    ]


def zeros(comparison: Comparison) -> list[Json]:
    """Figures with a 0 among their values, which has no ratio: goodput where no request met its limits. ``{cell, figure, a, b}``."""
    return [{"cell": cell, "figure": name, "a": a, "b": b} for cell, name, a, b, _ in _figures(comparison) if min(*a, *b) <= 0]


def noise(comparison: Comparison) -> list[Json] | None:
    """What a comparison of equals shows of the host: the spread (SD) of the pairs' log ratios of the speed, a cell. None for any other."""
    couples = _couples(comparison)
    if not comparison.equal or len(couples) < 2:
        return None
    told = []
    for index, block in enumerate(couples[0][0].blocks):
        _, path, _ = figures_of(block)[0]
        values = [math.log(_known(two.blocks[index], path) / _known(one.blocks[index], path)) for one, two in couples]
        told.append(
            {
                "cell": block["cell"],
                "client": couples[0][0].client,
                "sd": statistics.stdev(values),
                "mean": statistics.fmean(values),
                "pairs": len(values),
            }
        )
    return told


def figures_of(block: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...], bool]]:
    """The figures that are compared at a block's cell, the speed first: name, place, and whether more is better."""
    (_, _, _), *times = COMPARED
    if block["cell"].get("rate"):
        return list(COMPARED_OPEN)
    if block["cell"]["output_tokens"] > 1:
        return list(COMPARED)
    # A cell that only measures the prefill has no time between tokens.
    return [("prompt tok/s", ("input_tok_s",), True), *(each for each in times if each[0] != "TPOT")]


def _figures(comparison: Comparison) -> Iterator[tuple[str, str, list[float], list[float], bool]]:
    """Every figure that all whole pairs have: cell, name, the values of A and of B, and whether more is better."""
    couples = _couples(comparison)
    for index, block in enumerate(couples[0][0].blocks if couples else ()):
        for name, path, more_is_better in figures_of(block):
            launches = [launch for side in zip(*couples, strict=True) for launch in side]
            values = [value for launch in launches if (value := figure(launch.blocks[index], path)) is not None]
            if len(values) == len(launches):
                yield block["cell"]["name"], name, values[: len(couples)], values[len(couples) :], more_is_better


def _couples(comparison: Comparison) -> list[tuple[Launch, Launch]]:
    """The whole pairs, A first."""
    found = []
    for first, second in zip(comparison.launches[::2], comparison.launches[1::2], strict=False):
        found.append((first, second) if first.side == "A" else (second, first))
    return found


def _result(cell: str, figure: str, a: list[float], b: list[float], more_is_better: bool, margin: float) -> Result:
    values = log_ratios(a, b, more_is_better=more_is_better)
    verdict = judge(values, margin) if len(values) > 1 else None
    return Result(cell, figure, tuple(a), tuple(b), more_is_better, verdict)


def _known(block: Mapping[str, Any], path: Sequence[str]) -> float:
    value = figure(block, path)
    assert value is not None, "a valid block has a speed"
    return value
