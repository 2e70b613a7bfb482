"""Profiles for people: where a step's time goes, and what changed between two."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.engines.profiling import UNCLASSIFIED, Categories
from gpuops.profiling.compare import Change, Comparison
from gpuops.profiling.ranks import IDLE, explain, slowest
from gpuops.profiling.summary import AGREE, COMMUNICATION, RankProfile, Row, short
from gpuops.report.style import PLAIN, Paint, columns
from gpuops.report.words import plural

# Kernels that are shown of a profile.
TOP = 20


def lines(ranks: Sequence[RankProfile], of: str, categories: Categories, paint: Paint = PLAIN) -> list[str]:
    """The slowest rank's step, and beside it the others'."""
    rank = slowest(ranks)
    what = "operators on the CPU" if rank.cpu else rank.device or "an unnamed card"
    told = [paint.bold(f"{of}: {_steps(rank)}, {what}, {rank.rank}"), paint.dim(_ends(rank))]
    told += _step(rank, categories, paint)
    gaps = rank.gaps
    if gaps.count:
        spread = f"{gaps.count:.0f} gaps a step, median {gaps.p50:.1f} us, p90 {gaps.p90:.1f} us, longest {gaps.most:.1f} us"
        told += ["", f"between {'operators' if rank.cpu else 'kernels'}: {spread}", paint.dim(f"  {gaps.longest}")]
    told += ["", *_kernels(rank.kernels[:TOP], rank, paint)]
    return told + (_ranks(ranks, categories, paint) if len(ranks) > 1 else [])


def difference(
    found: Comparison,
    names: tuple[str, str],
    categories: Categories,
    paint: Paint = PLAIN,
    concurrency: tuple[int | None, int | None] = (None, None),
) -> list[str]:
    """What changed from A to B, in microseconds a step; ``concurrency``: the prompts that decoded at once, where that is known."""
    head = ["", "A us", "B us", "change", "A launches", "B launches"]
    rows = [_changed(change, change.name) for change in found.totals]
    rows += [_changed(change, categories.titles.get(change.name, change.name)) for change in found.categories]
    kernels = [_changed(change, short(change.name)) for change in found.kernels if change.delta]
    told = []
    for side, name, rank, at_once in zip("AB", names, found.sides, concurrency, strict=True):
        load = "" if at_once is None else f", {at_once} at once"
        told.append(paint.bold(f"{side} {name} ({rank.rank}): {_steps(rank)}{load}"))
    table = _aligned([head, *rows])
    split = len(found.totals) + 1
    told += [paint.dim(table[0]), *table[1:split], "", *table[split:]]
    if kernels:
        listed = _aligned([["what changed most", *head[1:]], *kernels])
        told += ["", paint.dim(listed[0]), *listed[1:]]
    return told


def _steps(rank: RankProfile) -> str:
    """How many steps are summed."""
    about = "" if rank.agree >= AGREE else "about "
    return about + (f"{plural(rank.whole, 'whole step')} of {rank.steps}" if rank.whole else f"{rank.steps} steps with cut ends")


def _ends(rank: RankProfile) -> str:
    if rank.whole:
        return f"left out: the ends of the trace, in which steps are cut: {rank.ends / 1e3:.1f} ms"
    return "not left out: the ends of the trace, in which steps may be cut: no whole ones could be told apart"


def _of(rank: RankProfile) -> str:
    """The same in a cell."""
    about = "" if rank.agree >= AGREE else "about "
    return about + (f"{rank.whole} of {rank.steps}" if rank.whole else f"{rank.steps}, cut")


def _step(rank: RankProfile, categories: Categories, paint: Paint) -> list[str]:
    head = ["", "us/step", "share", "launches"]
    rows = [
        [categories.titles.get(row.name, row.name), f"{row.us:.1f}", _share(row.us, rank.summed), f"{row.launches:.1f}"]
        for row in sorted(rank.categories, key=lambda row: (row.name == UNCLASSIFIED, -row.us))
    ]
    total = [
        "all of it",
        f"{rank.summed:.1f}",
        "100.0%",
        f"{rank.launches:.1f}" + (f" + {rank.copies:.1f} copies" if rank.copies else ""),
    ]
    streams = f"{rank.streams} {'threads' if rank.cpu else 'streams'} at a time"
    rest = [
        ["overlap", f"{rank.overlap:.1f}", "", streams],
        ["busy", f"{rank.busy:.1f}", _share(rank.busy, rank.span), "of the step"],
        ["idle", f"{rank.idle:.1f}", _share(rank.idle, rank.span), "of the step"],
        ["step", f"{rank.span:.1f}", "", ""],
    ]
    table = _aligned([head, *rows, total, *rest])
    cut = len(rows) + 1
    return [paint.dim(table[0]), *table[1:cut], paint.bold(table[cut]), *table[cut + 1 :]]


def _kernels(rows: Sequence[Row], rank: RankProfile, paint: Paint) -> list[str]:
    head = ["busiest", "us/step", "share", "launches", "category"]
    table = [[short(row.name), f"{row.us:.1f}", _share(row.us, rank.summed), f"{row.launches:.1f}", row.category] for row in rows]
    told = _aligned([head, *table])
    return [paint.dim(told[0]), *told[1:]]


def _share(part: float, whole: float) -> str:
    # Of a trace whose clock was too coarse for its work nothing can be said.
    return f"{part / whole:.1%}" if whole else ""


def _ranks(ranks: Sequence[RankProfile], categories: Categories, paint: Paint) -> list[str]:
    head = ["rank", "steps", "step us", "busy", "communication", "idle", "own work"]
    rows = [
        [each.rank, _of(each), *(f"{us:.1f}" for us in (each.span, each.busy, each.us(COMMUNICATION), each.idle, each.own))]
        for each in ranks
    ]
    table = _aligned([head, *rows])
    early = [f"{each.rank} {each.left_out / 1e3:.1f} ms" for each in ranks if each.left_out]
    note = (
        [paint.dim(f"left out: the first collective's wait for the other ranks' profilers: {', '.join(early)}")] if early else []
    )
    return ["", paint.dim(table[0]), *table[1:], *note, _who_is_last(ranks, categories)]


def _who_is_last(ranks: Sequence[RankProfile], categories: Categories) -> str:
    found = explain(ranks)
    if found is None:
        return f"{slowest(ranks).rank} has the most work; no rank communicates"
    waits = f"{found.waits:.1f} us a step in communication, the others {found.others:.1f}"
    if not found.stands_out:
        return f"no rank is late: {found.rank} waits least, {waits}"
    names = {**categories.titles, IDLE: "idle (its host was late)"}
    more = ", ".join(f"{names.get(reason.category, reason.category)} +{reason.us:.1f} us" for reason in found.reasons)
    return f"{found.rank} is the slowest, the others wait for it: it waits {waits}; it spends more on {more or 'nothing that stands out'}"


def _changed(change: Change, name: str) -> list[str]:
    us = [_number(value) for value in change.us]
    delta = f"{change.delta:+.1f}" if change.us != (None, None) else ""
    return [name, *us, delta, *(_number(value) for value in change.launches)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns with the numbers to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows
    ]
    return [line.rstrip() for line in columns(padded)]
