"""Rollouts that always end well, whatever fails: ``make bench-chaos``.

Each seed is one rollout onto a service with a known-good release that serves, by the real command line over a real sshd, with the real agent and
an imitation of the engine (``tests/agent/programs/engine.py``); and one fault at one moment of it, both drawn by the seed. When the operation
has ended, after one `gpuops recover` at most, exactly one server must serve, the right one, and nothing may be left behind::

    python -m benchmarks.chaos --seed 17 --keep           # replay one seed and keep its files
    python -m benchmarks.chaos --engine real --seeds 10   # with the real SGLang on CPU, one after the other (``chaos_real.py``)
"""

from __future__ import annotations

import argparse
import queue
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "remote"))

from benchmarks import chaos_real
from benchmarks.chaos_draw import draw
from benchmarks.chaos_faults import impossible
from benchmarks.chaos_host import Parts, make_parts, sshd
from benchmarks.chaos_trial import Result, play
from benchmarks.figures import Figure, report
from gpuops.sandbox import SandboxInfo, prerequisites

SEEDS = 300
AT_A_TIME = 4


def main(words: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(words)
    # Ended from outside, it takes its servers and daemons down like one that was interrupted by hand.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    prerequisites.ensure(lambda text: print(text, file=sys.stderr))
    seeds = [args.seed] if args.seed is not None else list(range(args.first, args.first + args.seeds))
    if impossible():
        print(f"not possible on this machine, others are drawn instead: {', '.join(impossible())}", file=sys.stderr)
    folder = Path(args.folder or tempfile.mkdtemp(prefix="gpuops-chaos-"))
    began = time.monotonic()
    results = []
    real = args.engine == "real"
    for result in _real(seeds, folder, args.keep) if real else run(seeds, folder, at_a_time=args.jobs, keep=args.keep):
        results.append(result)
        tell(result, folder / "host" if real else folder / str(result.case.seed))
    print(f"{len(results)} rollouts in {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    if not (args.folder or args.keep or any(result.faults for result in results)):
        shutil.rmtree(folder, ignore_errors=True)
    return report(figures(results))


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def run(seeds: Sequence[int], folder: Path, *, at_a_time: int = AT_A_TIME, keep: bool = False) -> Iterator[Result]:
    """Play seeds below ``folder``, and yield their results as they end. What ended well leaves nothing there."""
    with ExitStack() as stack:
        parts = make_parts(folder / "parts")
        free: queue.SimpleQueue[SandboxInfo] = queue.SimpleQueue()
        for number in range(min(at_a_time, len(seeds))):
            free.put(stack.enter_context(sshd(folder / f"sshd-{number}")))
        pool = ThreadPoolExecutor(at_a_time)
        # An interrupt lets the rollouts that are being played end, and begins no other.
        stack.callback(pool.shutdown, cancel_futures=True)
        ended = [pool.submit(_one, seed, folder, parts, free, keep) for seed in seeds]
        for future in as_completed(ended):
            yield future.result()


def tell(result: Result, folder: Path) -> None:
    """One line on stderr for what ended well, everything on stdout for what did not; ``folder`` has its files."""
    how = f"{result.outcome}{', recovered by hand' if result.needed_recover else ''}"
    if not result.faults:
        print(f"ok    {result.case}; {result.fault}: {how} ({result.seconds:.1f} s)", file=sys.stderr, flush=True)
        return
    print(f"WRONG {result.case}: {how}", flush=True)
    for line in [result.fault, *result.faults, *result.evidence]:
        print(f"      {line}", flush=True)
    real = " --engine real" if result.case.phase else ""
    print(f"      its files: {folder}", flush=True)
    print(f"      again: python -m benchmarks.chaos{real} --seed {result.case.seed} --keep", flush=True)


def figures(results: Sequence[Result]) -> Iterator[Figure]:
    """The three goals."""
    wrong = [result for result in results if result.faults]
    by_hand = Counter(result.case.fault for result in results if result.needed_recover)
    unwatched = sum(result.unsupervised for result in results)
    detail = (
        f"{len(results) - len(wrong)} of {len(results)} ended well; {_counted(by_hand) or 'none'} by one gpuops recover, the others by "
        f"themselves; {unwatched} ended with a server that nobody watches"
    )
    yield Figure("rollouts that did not end well", len(wrong), 0, "", detail)
    restores = sorted(
        ((restore.own, restore, result.case) for result in results for restore in result.restores), key=lambda each: each[0]
    )
    if restores:
        worst, restore, case = restores[-1]
        detail = (
            f"worst of {len(restores)} restores, seed {case.seed}, {restore.total:.1f} s in all; median {restores[len(restores) // 2][0]:.2f} s: "
            "verdict to first answer, less TERM to last process gone, less launch to first answer"
        )
        yield Figure("restore, beyond the engine's own stop and start", worst, 3.0, " s", detail)
    known = sorted(result.known_s for result in results if result.known_s is not None)
    if known:
        detail = (
            f"worst of {len(known)} killed servers, median {known[len(known) // 2] * 1e3:.0f} ms: KILL to the time in exit.json"
        )
        yield Figure("a server's death to known", known[-1], 1.0, " s", detail)


def _real(seeds: Sequence[int], folder: Path, keep: bool) -> Iterator[Result]:
    with chaos_real.made_parts(folder) as parts:
        yield from chaos_real.run(seeds, folder, parts, keep=keep)


def _one(seed: int, folder: Path, parts: Parts, free: queue.SimpleQueue[SandboxInfo], keep: bool) -> Result:
    info = free.get()
    try:
        return play(draw(seed, impossible()), folder / str(seed), parts, info, keep=keep)
    finally:
        free.put(info)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--engine", choices=("imitation", "real"), default="imitation", help="what is rolled out")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--jobs", type=int, default=AT_A_TIME, help="how many at a time")
    parser.add_argument("--keep", action="store_true", help="keep the files of what ended well too")
    parser.add_argument("--folder", help="where to work; default: a new folder below the temporary one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
