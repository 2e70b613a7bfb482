"""Reading a trace of PyTorch's profiler (Chrome's trace format): the GPU's work as plain columns.

A trace of a few decode steps on eight ranks has hundreds of megabytes. msgspec decodes only the fields that are named here: a trace of 200 MB takes a
few seconds and a few times its size of memory (``make bench-profile``).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpuops.errors import Exit, GpuopsError

KERNEL, COPY, OPERATOR = "kernel", "copy", "operator"

# Categories of events as PyTorch writes them (libkineto, ActivityType.cpp).
_KERNELS = ("kernel",)
_COPIES = ("gpu_memcpy", "gpu_memset")
_OPERATORS = ("cpu_op",)

_RANK = re.compile(r"-((?:TP|DP|PP|EP)-\d+(?:-(?:TP|DP|PP|EP)-\d+)*)")


class Work(NamedTuple):
    """One kernel, copy or operator: its name, its kind, when it began and ended (microseconds), and its stream (or thread)."""

    name: str
    kind: str
    start: float
    end: float
    stream: str

    @property
    def us(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """The work in one rank's trace, by its start.

    Attributes:
        device: the card's name; empty when the trace does not tell.
        cpu: the trace holds no GPU work: these are the outermost operators on the CPU.
    """

    rank: str
    device: str
    cpu: bool
    work: tuple[Work, ...]


class _Event(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None
    tid: Any = None


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: Any = msgspec.field(name="deviceProperties", default=None)


_DECODER = msgspec.json.Decoder(_File | list[_Event])


def read(path: Path) -> Trace:
    """The trace in a file, compressed or not.

    Raises:
        GpuopsError: it cannot be read, is no trace, or holds no work.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        decoded = _DECODER.decode(data)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise _unreadable(path, str(error)) from error
    file = decoded if isinstance(decoded, _File) else _File(decoded)
    named = _RANK.search(path.name)
    rank = named[1] if named else path.name.partition(".")[0]
    timed = [event for event in file.events if event.ph == "X" and _tells(event)]
    gpu = [*_of(timed, _KERNELS, KERNEL), *_of(timed, _COPIES, COPY)]
    if gpu:
        return Trace(rank, _device(file.devices), False, tuple(sorted(gpu, key=lambda each: each.start)))
    cpu = _outermost(_of(timed, _OPERATORS, OPERATOR))
    if cpu:
        return Trace(rank, "cpu", True, tuple(cpu))
    raise _unreadable(
        path,
        f"{len(file.events)} events, and no kernel, copy or operator among them",
        "gpuops profile --cpu records operators, where there is no card",
    )


def _tells(event: _Event) -> bool:
    """Whether an event says what worked, where, when and for how long."""
    return (
        isinstance(event.ts, (int, float))
        and isinstance(event.dur, (int, float))
        and isinstance(event.name, str)
        and isinstance(event.tid, (int, str))
    )


def _of(events: Iterable[_Event], categories: tuple[str, ...], kind: str) -> Iterable[Work]:
    # The same few hundred names and streams over and over: one object each.
    names: dict[str, str] = {}
    streams: dict[Any, str] = {}
    for event in events:
        if event.cat in categories:
            stream = streams.get(event.tid) or streams.setdefault(event.tid, str(event.tid))
            yield Work(names.setdefault(event.name, event.name), kind, event.ts, event.ts + event.dur, stream)


def _outermost(operators: Iterable[Work]) -> list[Work]:
    """Operators that no other one of their thread has called: ``aten::linear`` without the ``aten::addmm`` in it."""
    found: list[Work] = []
    ends: dict[str, float] = {}
    for work in sorted(operators, key=lambda each: (each.start, -each.us)):
        if work.start >= ends.get(work.stream, float("-inf")):
            ends[work.stream] = work.end
            found.append(work)
    return found


def _device(devices: Any) -> str:
    first = devices[0] if isinstance(devices, list) and devices else {}
    return str(first.get("name") or "") if isinstance(first, dict) else ""


def _unreadable(path: Path, why: str, next: str = "gpuops profile show FILE.trace.json.gz") -> GpuopsError:
    return GpuopsError(
        f"{path} is no trace of PyTorch's profiler",
        evidence=why,
        next=next,
        code=Exit.USAGE,
        kind="trace",
    )
