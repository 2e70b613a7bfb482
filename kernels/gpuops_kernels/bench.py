"""``python -m gpuops_kernels.bench``: every family on this machine's card against what the engine ships, in one run.

Needs a CUDA device, torch and triton; the peers (SGLang's own kernels, FlashMLA, DeepGEMM) are timed where they can be imported, and named as missing
where they cannot. The last line is ``figures met: N of M``; a figure that could not be judged counts as not met.

``--heads N``: instead, the kernels whose work depends on how many heads a rank has, for N of them (of 64: 32 with tp 2, 16 with 4, 8 with 8).
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Iterable, Iterator

import torch
import triton

from . import benchmarking, registry

# A rank's share of DeepSeek-V4-Flash's 64 heads, with tp 1 to 8; and 128, as DeepSeek-V4-Pro has them.
HEADS = (8, 16, 32, 64, 128)


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when every figure was measured, met or not; 2 without a card."""
    parser = argparse.ArgumentParser(prog="gpuops_kernels.bench", description=__doc__)
    parser.add_argument("--family", choices=registry.FAMILIES, action="append", help="only this one (may be repeated)")
    parser.add_argument("--heads", type=int, choices=HEADS, help="only what depends on a rank's heads, for a rank with so many")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench: there is no CUDA device here; run this on the machine with the card", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    ceilings = benchmarking.ceilings(device)
    print(
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, triton {triton.__version__}, Python {platform.python_version()}"
    )
    print(
        f"measured ceilings: {ceilings.bytes_per_s / 1e12:.2f} TB/s read and written, {ceilings.flops_per_s / 1e12:.0f} TFLOP/s in bf16"
    )
    figures: list[benchmarking.Figure] = []
    for name, made in _families(options, device, ceilings):
        print(f"\n{name}")
        for figure in made:
            print("  " + figure.line(), flush=True)
            figures.append(figure)
    judged = [figure for figure in figures if figure.goal]
    print(f"\nfigures met: {sum(figure.met is True for figure in judged)} of {len(judged)}")
    return 0


def _families(
    options: argparse.Namespace, device: torch.device, ceilings: benchmarking.Ceilings
) -> Iterator[tuple[str, Iterable[benchmarking.Figure]]]:
    """Each family's name with its figures, which are measured as they are asked for."""
    if options.heads is not None:
        bench = importlib.import_module("gpuops_kernels.mla_decode.bench")
        yield f"mla_decode, a rank of {options.heads} heads", bench.per_rank(device, ceilings, options.heads)
        return
    for name in options.family or registry.FAMILIES:
        yield name, importlib.import_module(f"gpuops_kernels.{name}.bench").figures(device, ceilings)


if __name__ == "__main__":
    sys.exit(main())
