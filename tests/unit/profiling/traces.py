"""Traces made by hand, event by event, as PyTorch's profiler writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def kernel(name: str, start: float, us: float, stream: int = 7, cat: str = "kernel") -> Json:
    """One event, with the arguments that a real one has."""
    args = {
        "External id": 9,
        "device": 0,
        "context": 1,
        "stream": stream,
        "correlation": 77,
        "grid": [1, 1, 1],
        "block": [128, 1, 1],
    }
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": 5e12 + start, "dur": us, "args": args}


def operator(name: str, start: float, us: float, thread: int = 100) -> Json:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 42,
        "tid": thread,
        "ts": 1e9 + start,
        "dur": us,
        "args": {"Ev Idx": 1},
    }


def write(path: Path, events: list[Json]) -> Path:
    """A trace, compressed when its name says so, between what else stands in one."""
    metadata = [
        {"ph": "M", "name": "process_name", "pid": "Spans", "tid": "x", "ts": 1.0, "args": {"name": "python"}},
        {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace", "ts": 2.0},
        {"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 3.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1, "tid": 0, "ts": 1.0, "dur": 900.0},
    ]
    content = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": [*metadata, *events]}
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def step(at: float) -> list[Json]:
    """A decode step by hand. Stream 7: 0-10 GEMM, 12-20 attention, 20-26 all-reduce, 30-31 a copy. Stream 9: 8-14 mHC.

    Busy 0-26 and 30-31: 27 us. Summed 10 + 8 + 6 + 1 + 6 = 31, so 4 of them overlap (8-10 and 12-14).
    """
    return [
        kernel("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", at, 10),
        kernel("pre_finish", at + 8, 6, stream=9),
        kernel("mla_decode_split", at + 12, 8),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", at + 20, 6),
        kernel("Memcpy DtoD (Device -> Device)", at + 30, 1, cat="gpu_memcpy"),
    ]
