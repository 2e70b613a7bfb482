"""Find the configurations of this family for a card that has none, or check those that it has: ``python -m gpuops_kernels.mhc.tune``.

Every candidate is checked against float64 first and timed by graph replays over weights that no L2 holds. The table shows the best first; what
goes into ``configs/cc<capability>.json`` is a person's choice, after ``make gate``. Candidates compile in parallel before anything is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import torch

from .. import benchmarking, configs
from ..numerics import calc_diff, relative_error
from . import bench, cases, op, reference

_ROWS = (1, 16, 32, 64)
_SHOWN = 6
_COMPILERS = 12

_REDUCE = [
    configs.Configuration({"BLOCK_S": block}, warps, 1)
    for block, warps in ((32, 1), (64, 1), (128, 1), (64, 2), (128, 2), (128, 4))
]
_FINISH = [configs.Configuration({"BLOCK_S": block}, warps, 1) for block, warps in ((64, 4), (128, 4), (128, 2))]

_Sweep = tuple[str, Sequence[configs.Configuration], Callable[[cases.Case], benchmarking.Call]]

# What a call uses instead of the shipped configuration: a kernel and its candidate. Threads that compile have their own.
_candidate: ContextVar[tuple[str, configs.Configuration] | None] = ContextVar("candidate", default=None)


def main(device: torch.device, kernels: Sequence[str] = ()) -> None:
    """Print, for every kernel or for those that are named, the best configurations at 1, 16, 32 and 64 rows."""
    with _candidates_first(), torch.cuda.device(device):
        _compile(device, kernels)
        for rows in _ROWS:
            rotating = bench._rotating(device, rows)
            for kernel, candidates, call in _sweeps(rows, kernels):
                _sweep(kernel, candidates, call, rotating)


def _sweeps(rows: int, kernels: Sequence[str] = ()) -> list[_Sweep]:
    sweeps = [
        ("mhc.linear_partials", _partials(rows), bench._ours_linear),
        ("mhc.linear_reduce", _REDUCE, bench._ours_linear),
        ("mhc.boundary_partials", _partials(rows), bench._ours_boundary),
        ("mhc.pre_finish", _FINISH, bench._ours_pre),
    ]
    return [each for each in sweeps if not kernels or each[0] in kernels]


def _partials(rows: int) -> list[configs.Configuration]:
    """Tiles of at most as many rows as there are; shares of K that are one block, from one program a multiprocessor to half and to twice that."""
    heights = [height for height in (16, 32, 64) if height // 2 < max(rows, 9) and height * 2 >= rows]
    shares = [(block, cases.HIDDEN * op.STREAMS // block) for block in (64, 128, 256)]
    return [
        configs.Configuration({"BLOCK_M": height, "BLOCK_K": block, "SPLITS": splits, "PROGRAMS": 4}, warps, 1)
        for height, (block, splits), warps in itertools.product(heights, shares, (2, 4) if rows <= 16 else (4, 8))
        if height == max(heights) or block == 128
    ]


def _compile(device: torch.device, kernels: Sequence[str]) -> None:
    def compile(work: tuple[cases.Case, str, configs.Configuration, Callable[[cases.Case], benchmarking.Call]]) -> None:
        case, kernel, candidate, call = work
        with torch.cuda.device(device), _using(kernel, candidate):
            call(case)()

    work = []
    for rows in _ROWS:
        case = cases.make(device, rows, seed=rows)
        work += [
            (case, kernel, candidate, call) for kernel, candidates, call in _sweeps(rows, kernels) for candidate in candidates
        ]
    # The first of each kernel alone: what Triton prepares once is not prepared by several threads at a time.
    firsts = {kernel: number for number, (_, kernel, *_) in reversed(list(enumerate(work)))}
    for number in firsts.values():
        compile(work[number])
    with ThreadPoolExecutor(_COMPILERS) as pool:
        list(pool.map(compile, work))
    torch.cuda.synchronize()


def _sweep(
    kernel: str,
    candidates: Sequence[configs.Configuration],
    call: Callable[[cases.Case], benchmarking.Call],
    rotating: Sequence[cases.Case],
) -> None:
    timed = []
    for candidate in candidates:
        with _using(kernel, candidate):
            _check(rotating[0])
            timed.append((benchmarking.median_us([call(case) for case in rotating]), candidate))
    timed.sort(key=lambda each: each[0])
    best = "  ".join(f"{us:.2f} us {_brief(candidate)}" for us, candidate in timed[:_SHOWN])
    print(f"M={rotating[0].x.shape[0]:<3} {kernel:<22} {best}  ... worst {timed[-1][0]:.2f} us", flush=True)


@contextlib.contextmanager
def _candidates_first() -> Iterator[None]:
    shipped = configs.lookup

    def lookup(device: torch.device, kernel: str, shape: str) -> configs.Configuration:
        chosen = _candidate.get()
        return chosen[1] if chosen is not None and chosen[0] == kernel else shipped(device, kernel, shape)

    configs.lookup = lookup
    try:
        yield
    finally:
        configs.lookup = shipped


@contextlib.contextmanager
def _using(kernel: str, candidate: configs.Configuration) -> Iterator[None]:
    token = _candidate.set((kernel, candidate))
    try:
        yield
    finally:
        _candidate.reset(token)


def _check(case: cases.Case) -> None:
    arguments = (case.scale, case.base, case.constants, case.norm)
    assert calc_diff(op.linear(case.flat, case.weight)[0], reference.linear(case.flat, case.fn)[0]) < 1e-8
    streams, *outputs = op.post_pre(case.x, case.residual, case.post, case.comb, case.weight, *arguments)
    for ours, expected, bound in zip(outputs, reference.pre(streams, case.fn, *arguments), (2e-5, 2e-5, 3e-3), strict=True):
        assert relative_error(ours, expected) < bound


def _brief(candidate: configs.Configuration) -> str:
    constants = " ".join(
        f"{name.lower().replace('block_', '')}{value}" for name, value in candidate.constants.items() if name != "PROGRAMS"
    )
    return f"[{constants} w{candidate.num_warps}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="gpuops_kernels.mhc.tune", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kernel", choices=[each[0] for each in _sweeps(1)], action="append", help="only this one (may be repeated)"
    )
    main(torch.device("cuda"), parser.parse_args().kernel or ())
