"""Timing on a card: CUDA graph replays over rotating inputs, medians, contestants alternating within one run."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

Call = Callable[[], object]
Input = TypeVar("Input")

_WARMUPS = 3
_ROUNDS = 15
_CALLS_IN_A_GRAPH = 20
_COPY_BYTES = 4 << 30
_MATRIX = 8192
# Sets of inputs in turn touch so many times what the L2 holds, unless they would be more sets than this, or leave less of the card's memory free.
_TIMES_L2 = 2
_MOST_SETS = 200
_FREE_SHARE = 0.25
_REASON = 120
_VERDICTS = {True: "met", False: "MISSED", None: "not judged"}


@dataclass(frozen=True)
class Ceilings:
    """What this card was measured to do, minutes ago and not in a data sheet.

    Args:
        bytes_per_s: an elementwise kernel over 4 GiB, bytes read plus bytes written.
        flops_per_s: an 8192^3 bf16 matrix product on random data.
    """

    bytes_per_s: float
    flops_per_s: float

    def floor_us(self, bytes: float, flops: float) -> float:
        """The least time that moving ``bytes`` and doing ``flops`` can take, in microseconds."""
        return max(bytes / self.bytes_per_s, flops / self.flops_per_s) * 1e6


@dataclass(frozen=True)
class Figure:
    """One line of the report.

    Args:
        case: what was timed.
        ours_us: median time of a call in microseconds.
        goal: the goal in words, ``<= 14 us``; empty where the figure is only told.
        met: whether it was met; None where it could not be judged.
        peers: median times of the contestants of the same run, by name, in microseconds.
        floor_us: the roofline's time for the same bytes and operations; 0 when it was not counted.
        note: what else has to be said, such as a measured error.
    """

    case: str
    ours_us: float
    goal: str
    met: bool | None
    peers: Mapping[str, float]
    floor_us: float = 0.0
    note: str = ""

    def and_right(self, measure: str, error: float, bound: float) -> Figure:
        """This figure with the error of the result in its note; what is wrong meets no goal, however fast it is. NaN is wrong."""
        right = error < bound
        said = f"{measure} {error:.1e}" + ("" if right else f": WRONG, the bound is {bound:.0e}")
        note = "; ".join(filter(None, (said, self.note)))
        return dataclasses.replace(self, met=self.met if right or not self.goal else False, note=note)

    def line(self) -> str:
        """The figure as one line: time, ratios to the peers, share of the roofline, goal, verdict."""
        ratios = "".join(f"  {name} {us:,.1f} us ({us / self.ours_us:.2f}x)" for name, us in self.peers.items())
        share = f"  {self.floor_us / self.ours_us:.0%} of the roofline" if self.floor_us else ""
        verdict = f"  goal {self.goal}: {_VERDICTS[self.met]}" if self.goal else ""
        note = f"  {self.note}" if self.note else ""
        return f"{self.case:<58} {self.ours_us:9.2f} us{ratios}{share}{verdict}{note}"


def rotating(device: torch.device, make: Callable[[int], Input], touched: Callable[[Input], int]) -> list[Input]:
    """Inputs for calls in turn, so many that none is in the L2 any more when its turn comes: in an engine, the layers in between evict what a layer
    read one step ago. Two at least, and at most 200 or what the card has room for: :func:`warmth` says when they were too few.

    Args:
        make: one set of inputs, from a seed.
        touched: bytes that one call on them moves: of the contestant that moves the fewest.
    """
    made = [make(0)]
    wanted = min(_MOST_SETS, max(2, math.ceil(_TIMES_L2 * l2_bytes(device) / touched(made[0]))))
    while len(made) < wanted and (len(made) < 2 or _has_room(device)):
        made.append(make(len(made)))
    return made


def warmth(device: torch.device, sets: int, touched: int) -> str:
    """A note when so many sets of inputs in turn stay in the L2, wholly or in part: the time is then not one of reading memory. Empty otherwise."""
    held = l2_bytes(device)
    if sets * touched >= _TIMES_L2 * held:
        return ""
    return f"L2-warm: {sets} sets of inputs touch {sets * touched / 1e6:.1f} MB, the L2 holds {held / 1e6:.0f} MB"


def l2_bytes(device: torch.device) -> int:
    """What a card's L2 holds; 0 without a card."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


def _has_room(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, total = torch.cuda.mem_get_info(device)
    return free > _FREE_SHARE * total


def medians(contestants: Mapping[str, Sequence[Call]]) -> dict[str, float]:
    """Median microseconds of one call for each contestant.

    Args:
        contestants: for each, calls that do the same work on different inputs (rotating among them keeps one input set from living in L2).

    The calls of a contestant are captured into one graph; the graphs are replayed alternately. A contestant that cannot be captured raises what
    its capture raises.
    """
    return _replayed({name: _captured(calls) for name, calls in contestants.items()})


def against(ours: Sequence[Call], peers: Mapping[str, Callable[[], Sequence[Call]]]) -> tuple[dict[str, float], list[str]]:
    """Medians of our calls, as ``ours``, and of those peers that run on this machine; and for every other one, why it does not.

    Args:
        peers: by name, what makes a peer's calls. Whatever it raises, or its first call, or its capture, is the reason.
    """
    graphs, missing = {"ours": _captured(ours)}, []
    for name, make in peers.items():
        try:
            graphs[name] = _captured(make())
        except Exception as error:
            reason = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
            missing.append(f"peer not available: {name} ({reason[:_REASON]})")
    return _replayed(graphs), missing


def median_us(calls: Sequence[Call]) -> float:
    """Median microseconds of one call: :func:`medians` for a single contestant."""
    return medians({"it": calls})["it"]


def ceilings(device: torch.device) -> Ceilings:
    """Measure the two ceilings of a card; takes about a second and 8 GiB of its memory."""
    source = torch.randint(0, 1 << 30, (_COPY_BYTES // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    # By a kernel: a copy becomes a memcpy node of the graph, which moved only 2.7 TB/s on an H200.
    copy_us = median_us([lambda: torch.bitwise_not(source, out=target)])
    a = torch.randn(_MATRIX, _MATRIX, device=device, dtype=torch.bfloat16)
    b = torch.randn(_MATRIX, _MATRIX, device=device, dtype=torch.bfloat16)
    product = torch.empty_like(a)
    matrix_us = median_us([lambda: torch.mm(a, b, out=product)])
    return Ceilings(2 * _COPY_BYTES / copy_us * 1e6, 2 * _MATRIX**3 / matrix_us * 1e6)


@dataclass(frozen=True)
class _Captured:
    """A graph of ``count`` calls; the calls hold the inputs that it reads."""

    graph: torch.cuda.CUDAGraph
    count: int
    calls: Sequence[Call]


def _replayed(graphs: Mapping[str, _Captured]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(_ROUNDS):
        for name, captured in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            captured.graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3 / captured.count)
    return {name: statistics.median(each) for name, each in times.items()}


def _captured(calls: Sequence[Call]) -> _Captured:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARMUPS):
            for call in calls:
                call()
    torch.cuda.synchronize()
    rounds = max(1, _CALLS_IN_A_GRAPH // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    torch.cuda.synchronize()
    return _Captured(graph, rounds * len(calls), calls)
