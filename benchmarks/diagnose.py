"""How well failures are told from their logs: ``make bench-diagnose``.

Samples and near misses of every row of the table, whole recorded logs, and healthy logs cut at many places; and what reading a log costs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, report
from gpuops.diagnosing import of_log

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
LOGS = FIXTURES / "logs"

# The recorded failures, with the class and the line (from 1) that tells it.
RECORDED = {
    "graph_capture_hidden_size_mismatch": ("shape_mismatch", 147),
    "graph_capture_missing_tilelang": ("module_missing", 93),
    "torch_compile_stream_capture_isolation": ("graph_capture_isolation", 195),
    "torch_compile_inductor_subproc_fp64": ("triton_compile", 159),
    "cpu_bad_flag": ("wrong_arguments", 478),
    "cpu_missing_model": ("model_missing", 16),
    "cpu_port_taken": ("port_in_use", 60),
    "cpu_scheduler_killed": ("rank_died", 90),
}
CUTS = 20
COST_BYTES = 4 << 20


def main() -> int:
    return report(_figures())


def _figures() -> Iterator[Figure]:
    table: dict[str, dict[str, list[str]]] = json.loads((FIXTURES / "signatures.json").read_text(encoding="utf-8"))
    samples = [(key.partition("#")[0], text) for key, entry in table.items() for text in entry["samples"]]
    missed = [f"{name}: {text[:60]}" for name, text in samples if name not in _classes(text)]
    yield _count("signature samples missed", missed, len(samples))
    near = [(key.partition("#")[0], text) for key, entry in table.items() for text in entry["near"]]
    taken = [f"{name}: {text[:60]}" for name, text in near if name in _classes(text)]
    yield _count("near misses taken for the failure", taken, len(near))
    told = {log: of_log((LOGS / f"{log}.log").read_bytes()) for log in RECORDED}
    wrong = [log for log, (name, line) in RECORDED.items() if (told[log]["class"], told[log]["number"]) != (name, line)]
    yield _count("recorded failures told wrong", wrong, len(RECORDED))
    healthy = [path for path in sorted(LOGS.glob("*.log")) if path.stem not in RECORDED]
    alarms, looks = [], 0
    for path in healthy:
        data = path.read_bytes()
        for cut in range(1, CUTS + 1):
            looks += 1
            if of_log(data[: len(data) * cut // CUTS])["class"] is not None:
                alarms.append(f"{path.stem} at {cut}/{CUTS}")
    yield _count(f"false alarms on {len(healthy)} healthy logs, each cut at {CUTS} places", alarms, looks)
    yield _cost()


def _count(name: str, wrong: list[str], of: int) -> Figure:
    return Figure(name, len(wrong), 0, "", f"of {of}" + (f": {'; '.join(wrong[:5])}" if wrong else ""))


def _cost() -> Figure:
    data = (LOGS / "healthy_dsv4_sm120_paths_h200.log").read_bytes()
    times = COST_BYTES // len(data)
    began = time.process_time()
    of_log(data * times)
    took = time.process_time() - began
    size = len(data) * times / 1e6
    return Figure("CPU time to read a megabyte of log", took / size, 2.0, " s", f"{size:.1f} MB in {took:.1f} s")


def _classes(text: str) -> set[str]:
    told: dict[str, Any] = of_log(f"{text}\n".encode())
    named = {told["class"], *(each["class"] for each in [*told["consequences"], *told["hints"]])}
    return {name for name in named if name}


if __name__ == "__main__":
    sys.exit(main())
