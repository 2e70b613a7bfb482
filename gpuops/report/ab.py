"""A comparison as text: what would be launched, and what was found. The record is read as it is stored, so that a report needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.measure.paired import CONFIDENCE, FEWEST, pairs_needed
from gpuops.report.style import Paint, columns, wrapped

Record = Mapping[str, Any]
Json = dict[str, Any]

_WORDS = {"improved": "green", "regressed": "red", "equivalent": "cyan", "inconclusive": "yellow", "screen": "dim"}

NOTE = (
    f"change of B in the good direction, with its {CONFIDENCE:.0%} interval over pairs of launches; the first line is the primary figure, "
    "the others explain"
)


def planned(record: Record, known: Sequence[Record]) -> Json:
    """A comparison before its first launch, in figures: what is to be launched, and the noise that is known of the host."""
    launches = 2 * record["pairs"] - len(record["launches"])
    told = {key: record[key] for key in ("id", "a", "b", "equal", "margin", "pairs", "home", "only")}
    return {**told, "launches": launches, "cells": cell_names(record), "noise": _noise(record, known)}


def plan_lines(record: Record, known: Sequence[Record], apart: Sequence[str], paint: Paint) -> list[str]:
    """The same in words. ``apart``: what differs besides the build."""
    plan = planned(record, known)
    a, b = _side(record["a"]), _side(record["b"])
    head = (
        f"{paint.bold(record['id'])}: {a} against itself, for the noise of this host"
        if record["equal"]
        else f"{paint.bold(record['id'])}: A {a}, B {b}"
    )
    order = " ".join("ABBA"[at % 4] for at in range(2 * record["pairs"]))
    told = [
        head,
        f"  launches    {plan['launches']} of {2 * record['pairs']}: {order}; each is an outage of the service",
        f"  cells       {', '.join(plan['cells']) or 'those of the releases'}",
        f"  margin      {record['margin']:.1%}",
        f"  afterwards  release {record['home']} serves, and its probes are put",
    ]
    for each in plan["noise"]:
        needed = "more than 200 pairs find" if each["needed"] is None else f"{each['needed']} pairs find"
        told.append(
            f"  noise       {each['cell']}: SD {each['sd']:.1%} by {each['comparison']}: {needed} a change of {record['margin']:.1%}"
        )
    if not plan["noise"] and not record["equal"]:
        told.append("  noise       not known: gpuops ab known-good known-good shows it")
    if record["pairs"] < FEWEST:
        told.append(paint.yellow(f"  note        below {FEWEST} pairs it is a screen, and no verdict"))
    return told + [paint.yellow(f"  note        A and B differ in more than the build: {each}") for each in apart]


def lines(record: Record, paint: Paint) -> list[str]:
    """What the comparison shows: a line a figure, and what became of the host."""
    done = len(record["launches"]) // 2
    sides = f"{_side(record['a'])} twice" if record["equal"] else f"A {_side(record['a'])}, B {_side(record['b'])}"
    told = [
        f"{paint.bold(record['id'])}: {sides}; {done} of {record['pairs']} pairs, margin {record['margin']:.1%} ({record['state']})"
    ]
    rows = [_row(each, paint) for each in record["results"]]
    if rows:
        head, *table = columns([["cell", "figure", "A", "B", "change", "verdict"], *rows])
        told += [paint.bold(f"  {head}"), *(f"  {row}" for row in table), *(paint.dim(line) for line in wrapped(NOTE, "  "))]
    for each in record.get("zeros") or ():
        values = "; ".join(f"{side} {', '.join(f'{value:.3g}' for value in each[side.lower()])}" for side in "AB")
        told.append(paint.yellow(f"  {each['figure']} at {each['cell']} has no ratio: {values}"))
    told += [f"  {line}" for line in conclusion(record)]
    if record["spoiled"]:
        told.append(
            f"  {len(record['spoiled'])} launches were spoiled by the host and do not count: {record['spoiled'][-1]['faults'][0]}"
        )
    if record["back"]:
        told.append(f"  release {record['back']['release']} serves, its probes say: {record['back']['verdict']}")
    return told


def conclusion(record: Record) -> list[str]:
    """What follows, in sentences."""
    if record["noise"]:
        told = [f"{each['cell']['name']} SD {each['sd']:.2%}" for each in record["noise"]]
        said = [f"noise of a pair on this host: {', '.join(told)} ({record['noise'][0]['pairs']} pairs)"]
        odd = [each for each in record["results"] if (each["verdict"] or {}).get("word") in ("improved", "regressed")]
        return said + ["equals differ: something on this host changes with time or order; look for it before you compare"] * bool(
            odd
        )
    verdicts = [(each, each["verdict"]) for each in record["results"] if each["verdict"]]
    if not verdicts:
        return ["no verdict: fewer than two whole pairs"]
    first, verdict = verdicts[0]
    name = f"{first['figure']} at {first['cell']}"
    if verdict["word"] == "screen":
        return [f"a screen of {verdict['pairs']} pairs, no verdict on {name}: gpuops ab --resume {record['id']} --pairs {FEWEST}"]
    if verdict["word"] != "inconclusive":
        return [
            f"B has {verdict['word']} {name}"
            if verdict["word"] in ("improved", "regressed")
            else f"A and B are equivalent in {name}"
        ]
    if verdict["more"] is None:
        return [
            f"inconclusive in {name}: the noise (SD {verdict['sd']:.1%}) is too large for this margin, more pairs than 200 would be needed"
        ]
    total = verdict["pairs"] + verdict["more"]
    return [
        f"inconclusive in {name}: about {verdict['more']} more pairs are needed: gpuops ab --resume {record['id']} --pairs {total}"
    ]


def cell_names(record: Record) -> list[str]:
    """The cells that are measured, in their order; [] where the releases' own are taken and nothing was measured yet."""
    if record["only"]:
        return list(record["only"])
    if record["cells"] is not None:
        return [cell["name"] for cell in record["cells"]]
    return [block["cell"]["name"] for block in record["launches"][0]["blocks"]] if record["launches"] else []


def interval(verdict: Mapping[str, Any] | None, change: float) -> str:
    """``+2.1% (+1.2% to +3.0%)``; without a spread the change alone."""
    if verdict is None:
        return f"{change:+.1%}"
    return f"{verdict['mean']:+.1%} ({verdict['low']:+.1%} to {verdict['high']:+.1%})"


def _row(result: Mapping[str, Any], paint: Paint) -> list[str]:
    verdict = result["verdict"]
    word = verdict["word"] if verdict else "one pair"
    more = f", +{verdict['more']} pairs" if verdict and verdict["word"] == "inconclusive" and verdict["more"] else ""
    shown = f"{paint.styled(_WORDS.get(word, 'dim'), word)}{more}"
    return [result["cell"], result["figure"], _mean(result["a"]), _mean(result["b"]), interval(verdict, result["change"]), shown]


def _mean(values: Sequence[float]) -> str:
    """The geometric mean: what the mean of log ratios compares."""
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return f"{mean:.0f}" if mean >= 1000 else f"{mean:.1f}" if mean >= 10 else f"{mean:.2f}"


def _side(side: Mapping[str, Any]) -> str:
    return (
        side["word"]
        if side["release"] is None or str(side["release"]) == side["word"]
        else f"{side['word']} (release {side['release']})"
    )


def _noise(record: Record, known: Sequence[Record]) -> list[Json]:
    """The latest known noise of each cell of the comparison."""
    wanted = set(cell_names(record))
    latest: dict[str, Json] = {}
    for each in known:
        for one in each["noise"] or ():
            name = one["cell"]["name"]
            if name in wanted or not wanted:
                needed = pairs_needed(one["sd"], record["margin"])
                latest[name] = {
                    "cell": name,
                    "sd": one["sd"],
                    "pairs": one["pairs"],
                    "comparison": each["id"],
                    "needed": max(needed, FEWEST) if needed else None,
                }
    return list(latest.values())
