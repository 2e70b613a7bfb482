"""``compare.py run CASE...`` asks servers and writes what they answered; ``compare.py report`` compares it.

Each case is a server of its own (cases.py), started, asked and stopped by one ``run``; results are JSON files in a folder, so that cases may be run
in any number of calls. ``report`` needs no card.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import client
import judge
import server
from cases import CASES

PHASES = ("answers", "throughput", "kernels")


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: every case ran, or the report's verdicts are all yes."""
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="start, ask and stop servers")
    run.add_argument("cases", nargs="+", choices=CASES)
    run.add_argument("--only", choices=PHASES, action="append", help="phases (default: all; plants need only `answers`)")
    run.add_argument("--rounds", type=int, default=2, help="of each throughput figure")
    run.add_argument("--patience", type=float, default=500.0, metavar="S", help="for a start")
    for each in (run, verbs.add_parser("report", help="compare what was written")):
        each.add_argument("--results", type=Path, default=server.Lab.here().root / "results")
    options = parser.parse_args(arguments)
    if options.verb == "report":
        return _report(options.results)
    options.results.mkdir(parents=True, exist_ok=True)
    died = [name for name in options.cases if not _run(name, tuple(options.only or PHASES), options)]
    return int(bool(died))


def _run(name: str, phases: tuple[str, ...], options: argparse.Namespace) -> bool:
    lab = server.Lab.here()
    path = options.results / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"case": name, "why": CASES[name].why}
    result.pop("died", None)
    try:
        result["ready_s"] = round(server.start(lab, name, options.patience), 1)
        _say(name, f"ready after {result['ready_s']} s")
        for phase in phases:
            begin = time.monotonic()
            _PHASES[phase](name, result, options)
            # After each phase: a call that runs out of time keeps what it has.
            path.write_text(json.dumps(result))
            _say(name, f"{phase} took {time.monotonic() - begin:.0f} s")
    except (server.DiedError, TimeoutError, OSError, RuntimeError, KeyError) as error:
        result["died"] = f"{type(error).__name__}: {error}"
        _say(name, result["died"])
    finally:
        result["proofs"] = [json.loads(each.read_text()) for each in sorted((lab.folder(name) / "proofs").glob("*.json"))]
        path.write_text(json.dumps(result))
        server.stop(lab, name)
    return "died" not in result


def _answers(name: str, result: dict[str, Any], options: argparse.Namespace) -> None:
    result["one_by_one"] = client.as_json(client.ask_one_by_one())
    result["together"] = client.as_json(client.ask_together())


def _throughput(name: str, result: dict[str, Any], options: argparse.Namespace) -> None:
    result["tokens_per_s"] = {str(each): round(client.throughput(each, options.rounds), 1) for each in client.CONCURRENCIES}
    _say(name, f"decode tokens/s {result['tokens_per_s']}")


def _kernels(name: str, result: dict[str, Any], options: argparse.Namespace) -> None:
    folder = server.Lab.here().folder(name) / "traces"
    result["step"] = {str(each): client.kernels_of_a_step(each, folder / str(each)) for each in (1, 64)}
    for each, step in result["step"].items():
        _say(
            name,
            f"decode step at batch {each}: {step['kernels']:.0f} kernels, {step['copies']:.0f} copies, {step['gpu_us']:.0f} us of GPU time",
        )


_PHASES = {"answers": _answers, "throughput": _throughput, "kernels": _kernels}


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
