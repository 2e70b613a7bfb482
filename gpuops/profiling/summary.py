"""What a trace says of one decode step: GPU time by category, launches, idle time, and the gaps between kernels. Pure.

Streams overlap, so two sums are told: *busy* is the time during which at least one stream works (the union of all intervals), and a category's time
is the sum of its kernels'. All categories together exceed busy by the *overlap*. What is neither is idle.

A trace begins and ends within a step, and begins with what the profiler itself holds up. Only its whole steps are summed, where they can be told.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from gpuops.engines.profiling import COPIES, UNCLASSIFIED, Categories
from gpuops.profiling.trace import COPY, Trace, Work

# A number of steps divides the launches of so many of all kernels' names; the rest are those of a step that was cut, or of none.
AGREE = 0.85

# A profiler that is asked for N steps may record the one that was under way, and not the last: SGLang 0.5.15 records N - 1.
_OFF = 2

# Whole steps hold equally many launches up to so large a share, and each end of the trace no more than one of them.
_UNEVEN = 0.1

# A first step that takes so much longer than by another kernel's launches begins before what the profiler held up.
_HELD_UP = 1.25

COMMUNICATION = "communication"
"""The category in which a rank also waits for the others."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A category, or one kernel: microseconds and launches a step."""

    name: str
    us: float
    launches: float
    category: str = ""


@dataclass(frozen=True)
class Gaps:
    """The times between the end of one piece of work and the start of the next, while no stream works. Microseconds; ``longest`` says where."""

    count: float
    p50: float
    p90: float
    most: float
    longest: str


@dataclass(frozen=True)
class RankProfile:
    """One rank's step, in microseconds.

    Attributes:
        rank: as the trace's file names it.
        steps: how many the trace holds, by its launches.
        agree: the share of all kernels' names whose launches are a multiple of that; below :data:`AGREE` the steps are a guess.
        span: from the start of a step to that of the next; where no whole steps are known, the trace's first start to its last end by its steps.
        launches: kernels, without copies.
        kernels: by name, the busiest first.
        categories: every category with work, ``unclassified`` among them.
        left_out: microseconds (of the trace, not of a step) that it waited in its first collective for the other ranks' profilers to begin.
        whole: the steps that are summed, from one launch of a kernel that runs once a step to another; 0: all of the trace is, with its cut ends.
        ends: microseconds (of the trace) before and after those, in which steps are cut.
    """

    rank: str
    device: str
    cpu: bool
    steps: int
    agree: float
    span: float
    busy: float
    summed: float
    launches: float
    copies: float
    streams: int
    categories: tuple[Row, ...]
    kernels: tuple[Row, ...]
    gaps: Gaps
    left_out: float = 0.0
    whole: int = 0
    ends: float = 0.0

    @property
    def idle(self) -> float:
        return self.span - self.busy

    @property
    def overlap(self) -> float:
        return self.summed - self.busy

    @property
    def covered(self) -> float:
        """The share of the work's time whose category is known."""
        unknown = sum(row.us for row in self.categories if row.name == UNCLASSIFIED)
        return 1.0 - unknown / self.summed if self.summed else 1.0

    def us(self, category: str) -> float:
        """Microseconds a step of a category."""
        return sum(row.us for row in self.categories if row.name == category)

    @property
    def own(self) -> float:
        """Busy time outside of communication: in that, a rank waits for the others."""
        return self.summed - self.us(COMMUNICATION)

    def to_json(self) -> Json:
        return {**asdict(self), "idle": self.idle, "overlap": self.overlap, "covered": self.covered}


def summarise(trace: Trace, categories: Categories, steps: int | None = None) -> RankProfile:
    """A trace's step.

    Args:
        steps: how many the profiler was asked for; it may have recorded one more or less.
    """
    works, left_out = _begun_together(trace.work, categories)
    number, agree = count_steps(works, steps)
    last = max(work.end for work in works)
    marks = _marks(works, number)
    begin, end = (marks[0].start, marks[1].start) if marks else (works[0].start, last)
    whole = number - 1 if marks else 0
    summed = whole or number
    inside = _cut(works, begin, end) if marks else works
    time: dict[str, float] = defaultdict(float)
    for work in inside:
        time[work.name] += work.us
    # What began before them is launched by a step that is not summed.
    launched = [work for work in works if begin <= work.start < end] if marks else works
    calls = Counter(work.name for work in launched)
    copies = {work.name for work in inside if work.kind == COPY}
    of = {name: COPIES if name in copies else categories.of(name, cpu=trace.cpu) for name in time}
    rows = {name: Row(name, time[name] / summed, calls[name] / summed, of[name]) for name in time}
    return RankProfile(
        rank=trace.rank,
        device=trace.device,
        cpu=trace.cpu,
        steps=number,
        agree=agree,
        span=(end - begin) / summed,
        busy=sum(until - since for since, until in union(inside)) / summed,
        summed=sum(time.values()) / summed,
        launches=sum(work.kind != COPY for work in launched) / summed,
        copies=sum(work.kind == COPY for work in launched) / summed,
        streams=len({work.stream for work in inside}),
        categories=_by_category(rows.values(), categories),
        kernels=tuple(sorted(rows.values(), key=lambda row: -row.us)),
        gaps=_gaps([*inside, marks[1]] if marks else inside, summed),
        left_out=left_out,
        whole=whole,
        ends=last - works[0].start - (end - begin) if marks else 0.0,
    )


def _marks(works: Sequence[Work], number: int) -> tuple[Work, Work] | None:
    """The first and the last launch of the kernel that marks the steps: the first that runs once in each; None where there is no such kernel.

    Equally many launches have to lie between its own, and each end to hold no more: else it runs as often as there are steps by chance. One that ran
    in the cut step at the beginning too, and not in that at the end, has the profiler's own start in its first step, and is not taken.
    """
    found: list[list[Work]] = []
    at: dict[str, list[int]] = defaultdict(list)
    for place, work in enumerate(works):
        if work.kind != COPY:
            at[work.name].append(place)
    for places in at.values():
        if len(places) != number or number < 2:
            continue
        steps = [after - before for before, after in pairwise(places)]
        most = min(steps) + max(1.0, _UNEVEN * min(steps))
        if max(*steps, places[0], len(works) - places[-1]) <= most:
            found.append([works[place] for place in places])
    if not found:
        return None
    least = min(marks[1].start - marks[0].start for marks in found)
    first = next(marks for marks in found if marks[1].start - marks[0].start <= _HELD_UP * least)
    return first[0], first[-1]


def _cut(works: Sequence[Work], begin: float, end: float) -> list[Work]:
    """What runs between two times, of each piece of work the part that does."""
    return [
        work if begin <= work.start and work.end <= end else work._replace(start=max(work.start, begin), end=min(work.end, end))
        for work in works
        if work.start < end and (work.start >= begin or work.end > begin)
    ]


def _begun_together(works: Sequence[Work], categories: Categories) -> tuple[Sequence[Work], float]:
    """The work as if all ranks' profilers had begun at once, and the microseconds by which this one was early.

    They begin one after the other, each between two launches, and the first collective of an early one lasts until the last has begun. It is cut to
    the longest of its later calls, and what began before it moves up to it, though it may end within; what began beside the wait begins at its end.
    """
    first = next((each for each in works if each.kind != COPY and categories.of(each.name) == COMMUNICATION), None)
    if first is None:
        return works, 0.0
    later = [each.us for each in works if each.name == first.name and each is not first]
    early = first.us - max(later, default=first.us)
    if early <= 0.0:
        return works, 0.0

    def moved(each: Work) -> Work:
        if each is first:
            return each._replace(start=each.start + early)
        by = min(early, first.start + early - each.start)
        return each._replace(start=each.start + by, end=each.end + by) if by > 0.0 else each

    return sorted(map(moved, works), key=lambda each: each.start), early


def count_steps(work: Iterable[Work], asked: int | None = None) -> tuple[int, float]:
    """How many equal steps a trace holds, and the share of all kernels' names whose launches are a multiple of it.

    Kernels of a layer run layers x steps times, those of the sampler once a step: the number of steps divides both. It is the one near what was asked
    for that divides most; or, when nobody knows, of those that occur as a kernel's launches. Layers x steps divide fewer, a divisor of the steps
    divides as many: of equals the largest is taken, or the nearest to what was asked for.
    """
    calls = Counter(each.name for each in work if each.kind != COPY)

    def agree(steps: int) -> float:
        return sum(count % steps == 0 for count in calls.values()) / len(calls) if calls else 1.0

    if asked is not None:
        near = [steps for steps in range(asked - _OFF, asked + _OFF + 1) if steps > asked / 2]
        near.sort(key=lambda steps: (-agree(steps), abs(steps - asked), -steps))
        return near[0], agree(near[0])
    best = max((count for count in set(calls.values()) if count > 1), key=lambda count: (agree(count), count), default=1)
    return (best, agree(best)) if agree(best) >= AGREE else (1, 1.0)


def union(work: Sequence[Work]) -> list[tuple[float, float]]:
    """The intervals in which something works, in order and apart. ``work`` is sorted by its start."""
    spans: list[tuple[float, float]] = []
    for each in work:
        if spans and each.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], each.end))
        else:
            spans.append((each.start, each.end))
    return spans


def _by_category(rows: Iterable[Row], categories: Categories) -> tuple[Row, ...]:
    us: dict[str, float] = defaultdict(float)
    launches: dict[str, float] = defaultdict(float)
    for row in rows:
        us[row.category] += row.us
        launches[row.category] += row.launches
    return tuple(Row(name, us[name], launches[name], name) for name in categories.titles if name in us)


def _gaps(work: Sequence[Work], steps: int) -> Gaps:
    found: list[tuple[float, str, str]] = []
    last: Work | None = None
    for each in work:
        if last is not None and each.start > last.end:
            found.append((each.start - last.end, last.name, each.name))
        if last is None or each.end > last.end:
            last = each
    if not found:
        return Gaps(0, 0.0, 0.0, 0.0, "")
    lengths = sorted(gap for gap, _, _ in found)
    longest, before, after = max(found)
    return Gaps(
        len(found) / steps, _rank(lengths, 50), _rank(lengths, 90), longest, f"after {short(before)}, before {short(after)}"
    )


def _rank(ordered: Sequence[float], share: int) -> float:
    """The nearest rank's value of a sorted list."""
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def short(name: str, most: int = 60) -> str:
    """A kernel's name without return type, arguments and most of its template arguments."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    plain = plain.partition("(")[0].strip() or plain
    return plain if len(plain) <= most else f"{plain[: most - 3]}..."


def from_json(raw: Json) -> RankProfile:
    """The inverse of :meth:`RankProfile.to_json`."""
    told = {key: value for key, value in raw.items() if key not in ("idle", "overlap", "covered")}
    rows = {key: tuple(Row(**row) for row in told[key]) for key in ("categories", "kernels")}
    return RankProfile(**{**told, **rows, "gaps": Gaps(**told["gaps"])})
