"""Choose the indexer's configurations for a card: ``python -m gpuops_kernels.indexer.tune`` on the machine that has it.

For whoever adds a compute capability: every candidate is compared with the reference first, then timed with graph replays over the shapes below.
A table is sorted by the geometric mean over the shapes of a candidate's time relative to the best one's. What comes out on top belongs into
``configs/cc<capability>.json`` under ``indexer.logits`` and ``indexer.topk``. Takes about a minute.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from .. import benchmarking, devices, numerics
from . import cases, op, reference

Options = Mapping[str, int]

_LOGITS: list[Options] = [
    {"ROWS": 128, "PROGRAMS_PER_SM": per_sm, "num_warps": warps, "num_stages": stages}
    for warps, stages, per_sm in itertools.product((4, 8), (1, 2, 3, 4), (1, 2, 3, 4, 6))
    if warps * per_sm <= 24
]
_TOPK: list[Options] = [
    {"CAP": cap, "TILE": tile, "PROGRAMS_PER_SM": 1, "num_warps": warps, "num_stages": 1}
    for (cap, tile), warps in itertools.product(((2048, 1024), (4096, 1024), (4096, 2048)), (8, 16, 32))
]
_LINES = 11


def main(device: torch.device) -> None:
    """Print the two tables."""
    shapes = {
        "B16x1k": [cases.make(device, [1024] * 16, seed, width=262_144) for seed in range(20)],
        "B64skew": [cases.make(device, cases.skewed(), seed, width=32_768) for seed in range(10)],
        "B1x1k": [cases.make(device, [1024], seed, width=262_144) for seed in range(4)],
        "B64x16k": [cases.make(device, [16_384] * 64, seed) for seed in range(2)],
    }
    _table("indexer.logits", _LOGITS, shapes, _logits, _wrong_logits)
    _table("indexer.topk (512)", _TOPK, shapes, _topk, _wrong_topk)


def _table(
    title: str,
    candidates: Sequence[Options],
    shapes: Mapping[str, Sequence[cases.Case]],
    run: Callable[[cases.Case, torch.Tensor], torch.Tensor],
    wrong: Callable[[cases.Case, torch.Tensor, torch.Tensor], str],
) -> None:
    # Scores are computed once, with the configuration in force: the top-k's input.
    scored = {shape: [(case, op.logits(*case.arguments)) for case in made] for shape, made in shapes.items()}
    usable = []
    for options in candidates:
        case, scores = scored["B64skew"][0]
        try:
            with _using(options):
                problem = wrong(case, scores, run(case, scores))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            print(f"  {title} {_named(options)}: {problem[:120]}")
        else:
            usable.append(options)
    times = {
        shape: benchmarking.medians(
            {str(i): [functools.partial(_with, o, run, *each) for each in pairs] for i, o in enumerate(usable)}
        )
        for shape, pairs in scored.items()
    }
    best = {shape: min(each.values()) for shape, each in times.items()}
    mean = {i: math.prod(times[shape][str(i)] / best[shape] for shape in times) ** (1 / len(times)) for i in range(len(usable))}
    print(f"{title}: us, {'  '.join(times)}")
    for i in sorted(mean, key=lambda i: mean[i])[:_LINES]:
        print(f"  {mean[i]:.3f}  {'  '.join(f'{times[shape][str(i)]:8.2f}' for shape in times)}  {_named(usable[i])}")


def _logits(case: cases.Case, scores: torch.Tensor) -> torch.Tensor:
    return op.logits(*case.arguments, out=scores)


def _wrong_logits(case: cases.Case, scores: torch.Tensor, _: torch.Tensor) -> str:
    numerics.poison(scores)
    op.logits(*case.arguments, out=scores)
    difference = reference.difference(scores, reference.logits(*case.arguments[:-1]))
    return "" if difference < reference.WORST_DIFFERENCE else f"calc_diff {difference:.1e}"


def _topk(case: cases.Case, scores: torch.Tensor) -> torch.Tensor:
    slots = torch.empty(scores.shape[0], 512, dtype=torch.int32, device=scores.device)
    return op.topk(scores, case.lengths, case.page_table, slots)


def _wrong_topk(case: cases.Case, scores: torch.Tensor, slots: torch.Tensor) -> str:
    raw = torch.empty_like(slots)
    op.topk(scores, case.lengths, case.page_table, slots, raw=raw)
    problems = (reference.topk_error(raw[row], scores[row], length) for row, length in enumerate(case.lengths.tolist()))
    return next((problem for problem in problems if problem), "")


def _with(options: Options, run: Callable[..., torch.Tensor], *arguments: torch.Tensor | cases.Case) -> torch.Tensor:
    with _using(options):
        return run(*arguments)


@contextlib.contextmanager
def _using(options: Options) -> Iterator[None]:
    """Within this context the wrappers launch with these options instead of the configured ones."""
    original = op._launch
    chosen = tuple((name, value) for name, value in options.items() if name != "PROGRAMS_PER_SM")
    op._launch = lambda device, kernel, shape: (devices.multiprocessors(device) * options["PROGRAMS_PER_SM"], chosen)
    try:
        yield
    finally:
        op._launch = original


def _named(options: Options) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())


if __name__ == "__main__":
    main(torch.device("cuda", torch.cuda.current_device()))
