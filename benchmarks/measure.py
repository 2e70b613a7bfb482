"""Whether measurements can be believed: ``make bench-measure``.

Faults and clean runs are measured by our own client and, where a runtime with the engine is there (``--runtime``; the sandbox's is found), by
the engine's own; verdicts are drawn from simulated pairs, and from launches (``measure_ab``); the load path's cost is taken at 64 requests at a
time against the fastest stream of the fault server.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "remote"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit" / "measure"))

from fault_server import KINDS, FaultServer
from gpuops_agent import load_client
from gpuops_agent.load_run import PATHS
from gpuops_agent.releases import Release
from measuring import CELL, measured, target

from benchmarks import measure_ab
from benchmarks.figures import Figure, report
from gpuops.engines.measuring import load_words
from gpuops.measure.paired import judge, pairs_needed

REPOSITORY = Path(__file__).resolve().parents[1]

SIMULATIONS = 200
CLEAN_RUNS = 200
MARGIN = 0.02

# A binomial count of 200 trials at 5 % stays below this with 99.9 % probability.
FALSE_SHARE = 0.09


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure")
    parser.add_argument(
        "--runtime", type=Path, help="a Python environment with SGLang; default: the one of a sandbox of this checkout"
    )
    parser.add_argument("--model", type=Path, help="a folder with a tokenizer, for chats; default: the sandbox's model")
    parser.add_argument(
        "--real", action="store_true", help="also compare launches of the real engine on this machine's CPU: half an hour"
    )
    args = parser.parse_args(words)
    runtime = args.runtime or _first(".sandbox*/root/runtimes/rt-*")
    model = args.model or _first(".sandbox*/root/models/*/files")
    folder = Path(tempfile.mkdtemp(prefix="gpuops-measure-"))
    try:
        return report(figures(folder, runtime, model, real=args.real))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def figures(folder: Path, runtime: Path | None, model: Path | None, *, real: bool) -> Iterator[Figure]:
    yield from simulated()
    yield from measure_ab.imitated(folder / "ab")
    if real:
        yield from measure_ab.real()
    yield from judged(folder / "own", None, None, CLEAN_RUNS)
    if runtime is None or model is None:
        print("no runtime with SGLang is there (make up makes one): its own client is not measured", file=sys.stderr)
        return
    yield from judged(folder / "engine", runtime, model, CLEAN_RUNS // 10)
    yield cost(folder / "cost", runtime, model)


def simulated() -> Iterator[Figure]:
    """How often verdicts over simulated pairs are wrong, and how often they are found."""
    same = [judge(_pairs(seed, 6, 0.0, 0.02), MARGIN).word for seed in range(SIMULATIONS)]
    wrong = sum(word in ("improved", "regressed") for word in same) / SIMULATIONS
    yield Figure(
        "false differences between equals",
        wrong,
        FALSE_SHARE,
        "",
        f"{SIMULATIONS} times 6 pairs of equals, SD 2 %; stated rate 5 %",
    )
    planted, sd = -0.3, 0.05
    needed = max(pairs_needed(sd, 0.3) or 0, 5)
    found = [judge(_pairs(seed, needed, planted, sd), MARGIN).word for seed in range(SIMULATIONS)]
    missed = 1 - sum(word == "regressed" for word in found) / SIMULATIONS
    yield Figure(
        "planted slowdowns of 30 % that were missed",
        missed,
        0.1,
        "",
        f"{SIMULATIONS} times {needed} pairs, SD 5 %; planned power 90 %",
    )


def judged(folder: Path, runtime: Path | None, model: Path | None, clean: int) -> Iterator[Figure]:
    """Faults that were not rejected, and clean runs that were."""
    server = FaultServer()
    try:
        made, name = _target(server, folder, runtime, model)
        accepted = []
        for path in PATHS:
            for kind in KINDS:
                server.kind = kind
                if not measured(made, path)["rejected"]:
                    accepted.append(f"{kind} on {path}")
        number = len(PATHS) * len(KINDS)
        detail = f"{number - len(accepted)} of {number} rejected: {len(KINDS)} kinds on {len(PATHS)} paths, by {name}"
        yield Figure("faults that were not rejected", len(accepted), 0, "", "; ".join([detail, *accepted]))
        server.kind = "clean"
        runs = [measured(made, PATHS[seed % len(PATHS)], seed=seed) for seed in range(clean)]
        rejected = [run["faults"] for run in runs if run["rejected"]]
        yield Figure(
            "clean runs that were rejected", len(rejected), 0, "", "; ".join([f"of {clean}, by {name}", *map(str, rejected[:3])])
        )
    finally:
        server.close()


def cost(folder: Path, runtime: Path, model: Path) -> Figure:
    """Cores that the engine's client uses at 64 requests at a time, against streams as fast as the fault server makes them."""
    server = FaultServer(gap_s=0.0)
    try:
        made, name = _target(server, folder, runtime, model)
        block = measured(made, cell=replace(CELL, name="c64", concurrency=64, output_tokens=64, requests=256))
        told: dict[str, Any] = block["figures"] or {"client_cores": math.inf, "output_tok_s": 0.0}
        detail = "; ".join([f"{name} at 64 requests at a time, {told['output_tok_s']:.0f} tok/s", *block["faults"]])
        return Figure("cores used by the load generator", told["client_cores"], 1.0, "", detail)
    finally:
        server.close()


def _target(server: FaultServer, folder: Path, runtime: Path | None, model: Path | None) -> tuple[Any, str]:
    folder.mkdir(parents=True)
    if runtime is None or model is None:
        return target(server, folder), "our own client"
    python = str(runtime / "bin" / "python")
    # The shim that lets SGLang run without a GPU acts only where it is asked to.
    release = Release(1, folder, {"argv": [python], "env": {"SGLANG_USE_CPU_ENGINE": "1"}})
    client = load_client.find(release, load_words())
    if client is None:
        sys.exit(f"{runtime} has no load generator of SGLang")
    made = target(server, folder, client, python)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, folder / "model" / name)
    return made, client.name


def _pairs(seed: int, number: int, effect: float, sd: float) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(math.log1p(effect), sd) for _ in range(number)]


def _first(pattern: str) -> Path | None:
    return next(iter(sorted(REPOSITORY.glob(pattern))), None)


if __name__ == "__main__":
    sys.exit(main())
