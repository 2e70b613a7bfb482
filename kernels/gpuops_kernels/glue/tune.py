"""Find the configurations of this family for a card that has none, or check those that it has: ``python -m gpuops_kernels.glue.tune``.

Every candidate is timed by graph replays; results do not depend on a configuration beyond the order of sums, which ``tests/gpu`` checks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import benchmarking, configs
from ..mhc import cases as mhc_cases
from . import bench, cases

_WARPS = [configs.Configuration({}, warps, 1) for warps in (1, 2, 4, 8)]
_BLOCKS = [configs.Configuration({"BLOCK": block}, warps, 1) for block, warps in itertools.product((512, 1024, 2048), (2, 4, 8))]
_SETS = 4


def main(device: torch.device) -> None:
    """Print each kernel's candidates at 1 and 64 rows, the best first."""
    sweeps: list[tuple[str, list[configs.Configuration], Callable[..., Any], Callable[[Any], benchmarking.Call]]] = [
        ("glue.norm_quantise", _WARPS, cases.make, bench._norm),
        ("glue.swiglu_quantise", _WARPS, cases.make, bench._swiglu),
        ("glue.kv_store", _WARPS, cases.make, bench._store),
        ("glue.latents", _WARPS, cases.make, bench._latents),
        ("glue.streams_update", _BLOCKS, mhc_cases.make, bench._post),
    ]
    for rows in bench.ROWS:
        for kernel, candidates, make, call in sweeps:
            sets = [make(device, rows, seed) for seed in range(_SETS)]
            timed = []
            for candidate in candidates:
                with _using(kernel, candidate):
                    timed.append((benchmarking.median_us([call(case) for case in sets]), candidate))
            timed.sort(key=lambda each: each[0])
            table = "  ".join(f"{us:.2f} us {dict(each.constants) or ''} w{each.num_warps}" for us, each in timed[:4])
            print(f"M={rows:<3} {kernel:<22} {table}  ... worst {timed[-1][0]:.2f} us", flush=True)


@contextlib.contextmanager
def _using(kernel: str, candidate: configs.Configuration) -> Iterator[None]:
    shipped = configs.lookup

    def lookup(device: torch.device, kernel_name: str, shape: str) -> configs.Configuration:
        return candidate if kernel_name == kernel else shipped(device, kernel_name, shape)

    configs.lookup = lookup
    try:
        yield
    finally:
        configs.lookup = shipped


if __name__ == "__main__":
    main(torch.device("cuda"))
