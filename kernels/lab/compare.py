"""``compare.py run CASE...`` asks servers and writes what they answered; ``compare.py report`` compares it.

Each case is a server of its own (cases.py), started, asked and stopped by one ``run``; results are JSON files in a folder, one a case, so that cases
may be run in any number of calls. A case that is started anew begins its file anew; one that was kept (``--keep``) goes on with it. With
``--at-once`` all cases of a call are up at the same time, and the throughput of each is measured in turn, round after round: what the machine does in
the meantime meets all of them. ``report`` needs no card.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import client
import judge
import server
from cases import CASES, PHASES

# What the shadow is asked: each call computes everything four times over, and reads the differences back.
_SHADOWED = slice(None, 64, 4)
_SHADOWED_ALONE = slice(None, 32, 12)

_FAILURES = (server.DiedError, TimeoutError, OSError, RuntimeError, KeyError)


@dataclass
class Running:
    """A case's server and what it has answered so far; the results file is written after each phase, so that a call cut short keeps what it has."""

    name: str
    path: Path
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where it listens."""
        return server.url(server.Lab.here(), self.name)

    @property
    def died(self) -> bool:
        """Whether something failed; it is asked nothing more."""
        return "died" in self.result

    def write(self) -> None:
        """Write the results file."""
        self.path.write_text(json.dumps(self.result))

    def attempt(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """What ``action`` returns for these arguments; None, and the reason in the result, when it fails or something has failed before."""
        if self.died:
            return None
        try:
            return action(*arguments)
        except _FAILURES as error:
            self.result["died"] = f"{type(error).__name__}: {error}"
            _say(self.name, self.result["died"])
            return None


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: every case ran, or the report's verdicts are all yes."""
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="start, ask and stop servers")
    run.add_argument("cases", nargs="+", choices=CASES)
    run.add_argument("--only", choices=PHASES, action="append", help="phases (default: those of each case, see cases.py)")
    run.add_argument("--rounds", type=int, default=2, help="of each throughput figure")
    run.add_argument("--patience", type=float, default=500.0, metavar="S", help="for a start")
    run.add_argument("--at-once", action="store_true", help="all servers at the same time instead of one after the other")
    run.add_argument("--keep", action="store_true", help="do not stop them: a later run of the same case asks the same server")
    run.add_argument("--alive", action="store_true", help="leave out those that are not up already")
    stop = verbs.add_parser("stop", help="stop servers that were kept")
    stop.add_argument("cases", nargs="+", choices=CASES)
    for each in (run, verbs.add_parser("report", help="compare what was written")):
        each.add_argument("--results", type=Path, default=server.Lab.here().root / "results")
    options = parser.parse_args(arguments)
    if options.verb == "report":
        return _report(options.results)
    if options.verb == "stop":
        for name in options.cases:
            if server.lives(server.Lab.here(), name):
                server.stop(server.Lab.here(), name)
        return 0
    options.results.mkdir(parents=True, exist_ok=True)
    if options.alive:
        options.cases = [name for name in options.cases if server.lives(server.Lab.here(), name)]
        print("up:", ", ".join(options.cases) or "none", flush=True)
    groups = [options.cases] if options.at_once else [[name] for name in options.cases]
    return int(sum(not _run(group, options) for group in groups) > 0)


def _run(names: Sequence[str], options: argparse.Namespace) -> bool:
    """Start these together, ask them phase by phase, and stop them; whether all went well."""
    all_running = [_launched(name, options.results / f"{name}.json") for name in names]
    try:
        for each in all_running:
            seconds = each.attempt(server.wait, server.Lab.here(), each.name, options.patience)
            if seconds is not None:
                each.result.setdefault("ready_s", round(seconds, 1))
                _say(each.name, f"ready, {seconds:.0f} s after its launch")
        for phase in PHASES:
            asked = [each for each in all_running if phase in CASES[each.name].phases and phase in (options.only or PHASES)]
            begin = time.monotonic()
            _PHASES[phase](asked, options)
            for each in asked:
                each.write()
            if asked:
                _say(", ".join(each.name for each in asked), f"{phase} took {time.monotonic() - begin:.0f} s")
    finally:
        for each in all_running:
            proofs = sorted((server.Lab.here().folder(each.name) / "proofs").glob("*.json"))
            each.result["proofs"] = [json.loads(proof.read_text()) for proof in proofs]
            each.write()
            if each.died or not options.keep:
                server.stop(server.Lab.here(), each.name)
    return not any(each.died for each in all_running)


def _launched(name: str, path: Path) -> Running:
    new: dict[str, Any] = {"case": name, "why": CASES[name].why}
    if server.lives(server.Lab.here(), name):
        return Running(name, path, json.loads(path.read_text()) if path.exists() else new)
    # What another server has answered says nothing of this one, which may die before it is asked.
    server.launch(server.Lab.here(), name)
    return Running(name, path, new)


def _answers(asked: Sequence[Running], options: argparse.Namespace) -> None:
    for each in asked:
        for kind, ask in (("one_by_one", client.ask_one_by_one), ("together", client.ask_together)):
            answers = each.attempt(ask, each.url)
            if answers is not None:
                each.result[kind] = client.as_json(answers)
        each.write()


def _throughput(asked: Sequence[Running], options: argparse.Namespace) -> None:
    rates: dict[str, dict[int, list[float]]] = {each.name: {c: [] for c in client.CONCURRENCIES} for each in asked}
    for concurrency in client.CONCURRENCIES:
        # The first round warms up.
        for turn in range(options.rounds + 1):
            for each in asked:
                rate = each.attempt(client.decode_rate, each.url, concurrency, turn)
                if rate is not None and turn:
                    rates[each.name][concurrency].append(rate)
    for each in asked:
        if each.died:
            continue
        each.result["tokens_per_s"] = {str(c): round(statistics.median(found), 1) for c, found in rates[each.name].items()}
        _say(each.name, f"decode tokens/s {each.result['tokens_per_s']}")


def _kernels(asked: Sequence[Running], options: argparse.Namespace) -> None:
    for each in asked:
        folder = server.Lab.here().folder(each.name) / "traces"
        for batch in (1, 64):
            step = each.attempt(client.kernels_of_a_step, each.url, batch, folder / str(batch))
            if step is None:
                continue
            each.result.setdefault("step", {})[str(batch)] = step
            _say(
                each.name,
                f"decode step at batch {batch}: {step['kernels']:.0f} kernels, {step['copies']:.0f} copies, {step['gpu_us']:.0f} us of GPU time",
            )


def _shadow(asked: Sequence[Running], options: argparse.Namespace) -> None:
    for each in asked:
        each.attempt(client.ask_one_by_one, each.url, _SHADOWED_ALONE)
        each.attempt(client.ask_together, each.url, _SHADOWED)
        written = server.Lab.here().folder(each.name) / "shadow.json"
        found = each.attempt(lambda file: json.loads(file.read_text()), written)
        if found is not None:
            each.result["shadow"] = found


_PHASES: dict[str, Callable[[Sequence[Running], argparse.Namespace], None]] = {
    "answers": _answers,
    "throughput": _throughput,
    "kernels": _kernels,
    "shadow": _shadow,
}


def _report(results: Path) -> int:
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json")) if path.stem in CASES}
    report = judge.judge(found)
    (results / "report.json").write_text(json.dumps(report.data, indent=2))
    print("\n".join(report.lines))
    return int(not report.passed)


def _say(name: str, message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {name}: {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
