"""A profile on disk: a folder with the traces of its ranks and `profile.json`, or single trace files."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gpuops.engines.profiling import categories
from gpuops.errors import Exit, GpuopsError
from gpuops.profiling.ranks import explain
from gpuops.profiling.summary import RankProfile, from_json, summarise
from gpuops.profiling.trace import read

NAME = "profile.json"
_TRACES = ("*.trace.json.gz", "*.trace.json")

# Each reader holds a trace several times over in its memory.
READERS = 2


@dataclass(frozen=True)
class Profile:
    """The ranks of a profile, and what is known of how it was made (release, concurrency, host; empty for a bare trace)."""

    about: dict[str, Any]
    ranks: tuple[RankProfile, ...]

    def to_json(self) -> dict[str, Any]:
        last = explain(self.ranks)
        return {
            "about": self.about,
            "ranks": [rank.to_json() for rank in self.ranks],
            "slowest": last.to_json() if last else None,
        }


def summed(paths: list[Path], about: dict[str, Any]) -> Profile:
    """Read the traces; two at a time, since they may be large. ``about.steps`` is what the profiler was asked for, where that is known."""
    steps = about.get("steps")
    if len(paths) == 1:
        return Profile(about, (_one(paths[0], steps),))
    with ProcessPoolExecutor(min(READERS, len(paths)), get_context("spawn")) as pool:
        return Profile(about, tuple(pool.map(_one, paths, [steps] * len(paths))))


def save(profile: Profile, folder: Path) -> Path:
    """Write ``profile.json``; returns its path."""
    path = folder / NAME
    path.write_text(json.dumps(profile.to_json(), indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> Profile:
    """What lies at a path: a profile's folder, its ``profile.json``, a folder of traces, or one trace.

    Raises:
        GpuopsError: there is nothing of the kind.
    """
    file = path / NAME if path.is_dir() else path
    if file.name == NAME and file.is_file():
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            ranks = tuple(from_json(rank) for rank in raw["ranks"])
            _must_be_of_its_form(raw["about"], ranks)
            return Profile(raw["about"], ranks)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _nothing(path, f"{file}: {error!r}") from error
    traces = sorted(found for pattern in _TRACES for found in path.glob(pattern)) if path.is_dir() else [path]
    if not traces or not traces[0].is_file():
        raise _nothing(path, f"no {NAME} and no *.trace.json.gz" if path.is_dir() else "there is no such file")
    return summed(traces, {})


def _must_be_of_its_form(about: Any, ranks: tuple[RankProfile, ...]) -> None:
    """Raises TypeError or ValueError for what :func:`save` never writes."""
    if not isinstance(about, dict):
        raise TypeError(f"about: {about!r}")
    if not ranks:
        raise ValueError("it has no rank")
    for rank in ranks:
        gaps = rank.gaps
        totals = [rank.steps, rank.agree, rank.span, rank.busy, rank.summed, rank.launches, rank.copies]
        totals += [rank.left_out, rank.whole, rank.ends]
        rows = [figure for row in (*rank.categories, *rank.kernels) for figure in (row.us, row.launches)]
        for figure in (*totals, *rows, gaps.count, gaps.p50, gaps.p90, gaps.most):
            if not isinstance(figure, (int, float)):
                raise TypeError(f"{figure!r} is no number")
        for name in (rank.rank, *(row.name for row in (*rank.categories, *rank.kernels))):
            if not isinstance(name, str):
                raise TypeError(f"{name!r} is no name")


def _one(path: Path, steps: int | None) -> RankProfile:
    return summarise(read(path), categories(), steps)


def _nothing(path: Path, why: str) -> GpuopsError:
    return GpuopsError(f"{path} is no profile", evidence=why, next="gpuops profile", code=Exit.USAGE, kind="profile")
