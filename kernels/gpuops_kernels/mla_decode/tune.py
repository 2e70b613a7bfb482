"""Choose the configurations of a card: ``python -m gpuops_kernels.mla_decode.tune``.

For whoever adds a compute capability: candidates compile in parallel, are compared with the reference, and then timed with graph replays, combine
included, at the shapes of the goals, alternating in one run, the shipped one among them. PROGRAMS_PER_SM stands for the number of splits, which
follows from it and the batch. The best lines of a table belong into ``configs/cc<capability>.json`` under ``mla_decode.split`` (a key for each class
of head counts, sorted by all its batch sizes together) and ``mla_decode.combine``. Takes about a minute; run ``make gate`` afterwards, since what is
fast on one card may spill on another.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import torch

from .. import benchmarking, configs, numerics
from . import cases, op, reference

_SPLIT, _COMBINE = "mla_decode.split", "mla_decode.combine"

# (BLOCK_H, BLOCK_T, TRANS, FLOAT16, EARLY, num_warps) by head count. Heads are N of the tensor-core instruction with TRANS, at
# least 8, and otherwise M, at least 16.
_TILES = {
    8: [
        *((8, 32, 1, 1, 0, 4), (8, 32, 1, 1, 1, 4), (8, 32, 1, 0, 0, 4), (8, 16, 1, 1, 0, 2), (8, 32, 1, 1, 0, 8)),
        *((8, 64, 1, 1, 0, 8), (16, 32, 0, 1, 0, 4)),
    ],
    16: [
        *((16, 32, 0, 1, 0, 4), (16, 32, 0, 1, 1, 4), (16, 32, 0, 0, 0, 4), (16, 32, 0, 1, 0, 8), (16, 64, 0, 1, 0, 8)),
        *((8, 32, 1, 1, 0, 4), (16, 32, 1, 1, 0, 4)),
    ],
    64: [
        *((32, 64, 0, 1, 0, 8), (32, 64, 0, 1, 1, 8), (32, 64, 0, 0, 0, 8), (16, 32, 0, 1, 0, 8), (32, 32, 0, 1, 0, 8)),
        *((32, 32, 1, 1, 0, 8), (64, 32, 0, 1, 0, 8), (64, 32, 1, 1, 0, 8)),
    ],
}
_PROGRAMS_PER_SM = {8: (1, 2, 4), 16: (1, 2), 64: (1, 2)}
# (BLOCK_S, BLOCK_D, num_warps)
_COMBINES = [
    *((4, 64, 1), (8, 64, 1), (16, 64, 1), (32, 64, 1), (4, 128, 1), (8, 128, 1), (16, 128, 1), (32, 128, 1)),
    *((4, 256, 1), (8, 256, 1), (4, 512, 2), (8, 512, 2), (4, 512, 4), (8, 512, 4), (16, 128, 2), (32, 128, 4)),
]

_COMPILERS = 12
_LINES = 9

# What a call uses instead of the shipped configuration: a kernel and its candidate. Threads that compile have their own.
_candidate: ContextVar[tuple[str, configs.Configuration] | None] = ContextVar("candidate", default=None)


def main(device: torch.device, tables: Sequence[str] = ()) -> None:
    """Print four tables, or those that are named: the split kernel for 8, 16 and 64 heads, and the combine kernel."""
    combines = [configs.Configuration({"BLOCK_S": s, "BLOCK_D": d}, warps, 1) for s, d, warps in _COMBINES]
    sweeps = {str(heads): (_SPLIT, _splits(heads), heads) for heads in _TILES} | {"combine": (_COMBINE, combines, 8)}
    with _candidates_first(), torch.cuda.device(device):
        for name in tables or sweeps:
            kernel, candidates, heads = sweeps[name]
            shipped = configs.lookup(device, kernel, op.shape_key(heads) if kernel == _SPLIT else "any")
            _table(kernel, candidates, shipped, {f"{heads}h B{batch}": _inputs(device, batch, heads) for batch in (1, 64)})


def _splits(heads: int) -> list[configs.Configuration]:
    return [
        configs.Configuration(
            {
                "BLOCK_H": block_h,
                "BLOCK_T": block_t,
                "TRANS": trans,
                "FLOAT16": half,
                "EARLY": early,
                "PROGRAMS_PER_SM": programs,
                "MAX_SPLITS": 64,
            },
            warps,
            1,
        )
        for (block_h, block_t, trans, half, early, warps), programs in itertools.product(_TILES[heads], _PROGRAMS_PER_SM[heads])
    ]


def _inputs(device: torch.device, batch: int, heads: int) -> list[cases.Case]:
    return [cases.make(device, batch, heads, seed, lengths=[128], extra_lengths=[512]) for seed in range(4)]


def _table(
    kernel: str,
    candidates: Sequence[configs.Configuration],
    shipped: configs.Configuration,
    shapes: Mapping[str, Sequence[cases.Case]],
) -> None:
    candidates = [shipped, *(each for each in candidates if each != shipped)]
    checks = [(made[0], reference.sparse_mla_decode(*made[0].positional, **made[0].keywords)[0]) for made in shapes.values()]
    with ThreadPoolExecutor(_COMPILERS) as pool:
        problems = list(pool.map(lambda candidate: _problem(kernel, candidate, checks), candidates))
    for candidate, problem in zip(candidates, problems, strict=True):
        if problem:
            print(f"  {kernel} {_named(candidate)}: {problem[:120]}")
    usable = [candidate for candidate, problem in zip(candidates, problems, strict=True) if not problem]
    if not usable:
        return
    times = {
        shape: benchmarking.medians(
            {str(i): [functools.partial(_call, kernel, each, case) for case in made] for i, each in enumerate(usable)}
        )
        for shape, made in shapes.items()
    }
    best = {shape: min(each.values()) for shape, each in times.items()}
    mean = {i: math.prod(times[shape][str(i)] / best[shape] for shape in times) ** (1 / len(times)) for i in range(len(usable))}
    print(f"{kernel}: us, {'  '.join(times)}")
    for place, i in enumerate(sorted(mean, key=lambda i: mean[i])):
        if place < _LINES or usable[i] == shipped:
            mark = "  <- shipped" if usable[i] == shipped else ""
            figures = "  ".join(f"{times[shape][str(i)]:8.2f}" for shape in times)
            print(f"  {mean[i]:.3f}  {figures}  {_named(usable[i])}{mark}", flush=True)


def _problem(kernel: str, candidate: configs.Configuration, checks: Sequence[tuple[cases.Case, torch.Tensor]]) -> str:
    """Why a candidate cannot be used; empty if it can. Compiles it."""
    for case, wanted in checks:
        try:
            with torch.cuda.device(case.q.device):
                error = numerics.relative_error(_call(kernel, candidate, case), wanted)
        except Exception as failure:
            return f"{type(failure).__name__}: {failure}"
        if not error < reference.WORST_ERROR:
            return f"relative error {error:.1e}"
    return ""


def _call(kernel: str, candidate: configs.Configuration, case: cases.Case) -> torch.Tensor:
    token = _candidate.set((kernel, candidate))
    try:
        return op.sparse_mla_decode(*case.positional, **case.keywords)[0]
    finally:
        _candidate.reset(token)


@contextlib.contextmanager
def _candidates_first() -> Iterator[None]:
    """Within this context the wrapper takes a call's candidate instead of the configured options."""
    shipped = configs.lookup

    def lookup(device: torch.device, kernel: str, shape: str) -> configs.Configuration:
        chosen = _candidate.get()
        return chosen[1] if chosen is not None and chosen[0] == kernel else shipped(device, kernel, shape)

    configs.lookup = lookup
    try:
        yield
    finally:
        configs.lookup = shipped


def _named(candidate: configs.Configuration) -> str:
    return " ".join(f"{name}={value}" for name, value in candidate.options.items() if name not in ("MAX_SPLITS", "num_stages"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="gpuops_kernels.mla_decode.tune", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--table", choices=[*map(str, _TILES), "combine"], action="append", help="only this one (may be repeated)"
    )
    main(torch.device("cuda"), parser.parse_args().table or ())
