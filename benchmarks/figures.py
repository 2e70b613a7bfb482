"""What every benchmark shares: timing two things alternately, and printing figures beside their goals."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured figure: its value, the most that is allowed, and how it came about."""

    name: str
    value: float
    goal: float
    unit: str
    detail: str

    @property
    def met(self) -> bool:
        return self.value <= self.goal


def report(figures: Iterable[Figure]) -> int:
    """Print the figures as they are measured; returns the exit status: 0 when all goals are met."""
    met = []
    for figure in figures:
        mark = "met" if figure.met else "MISSED"
        goal = f"goal <= {figure.goal:g}{figure.unit}"
        print(f"{mark:6}  {figure.name}: {figure.value:.2f}{figure.unit} ({goal}; {figure.detail})", flush=True)
        met.append(figure.met)
    print(f"figures met: {sum(met)} of {len(met)}")
    return 0 if all(met) else 1


def alternate(first: Callable[[], float], second: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """Measure two things in turn, ABBA, so that a slow minute of the machine hits both. One unmeasured round goes before."""
    first()
    second()
    one: list[float] = []
    two: list[float] = []
    for number in range(rounds):
        order = ((first, one), (second, two)) if number % 2 == 0 else ((second, two), (first, one))
        for measure, results in order:
            results.append(measure())
    return one, two


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def cpu_seconds(argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    """User and system CPU time of a command, its children included, in seconds."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def wall_seconds(argv: Sequence[str], stdin: bytes = b"", env: dict[str, str] | None = None) -> float:
    """Wall time of a command, in seconds."""
    began = time.perf_counter()
    ended = subprocess.run(argv, input=stdin, capture_output=True, env=env, check=False)
    took = time.perf_counter() - began
    if ended.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed with status {ended.returncode}: {ended.stderr.decode(errors='replace')}")
    return took
