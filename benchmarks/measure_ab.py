"""What A/B comparisons are worth: equals must not differ, and a planted slowdown of 30 % must be found with the number of pairs that was promised.

Both on a server that is an imitation, and with ``make bench-measure REAL=1`` on the real engine on this machine's CPU (about half an hour), where the
plant is a build whose plugin makes every batch of the scheduler take 1 / 0.7 of its time. There the engine's own ``sglang.benchmark.serving``, run by
hand, is held against ``gpuops bench`` too, in turns.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "agent"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

from ab_lab import AbLab

from benchmarks.figures import Figure
from gpuops.builds.manifest import hashed, write_manifest
from gpuops.measure.paired import FEWEST, pairs_needed
from gpuops.sandbox import Sandbox, prerequisites
from lab import GPUOPS, Lab

REPOSITORY = Path(__file__).resolve().parents[1]

SLOWDOWN = 0.3
MARGIN = 0.05
EQUALS_PAIRS = 5

# What the two clients' speeds may differ by, as a fraction, besides the noise that their own pairs show.
CLIENTS_APART = 0.05
CLIENT_ROUNDS = 4

# Answers so long that the pace of tokens is nearly all of their time.
IMITATED = [{"name": "c4", "concurrency": 4, "input": 16, "output": 128, "requests": 16}]
MEASURED = {"name": "c4", "concurrency": 4, "input": 64, "output": 32, "requests": 16}

# SGLang loads a build's plugin into its scheduler by the entry point.
PLUGIN = """
import time

def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", slowed, HookType.AROUND)

def slowed(original, *args, **kwargs):
    began = time.perf_counter()
    result = original(*args, **kwargs)
    time.sleep((time.perf_counter() - began) * (1 / {rest} - 1))
    return result
"""
ENTRY_POINT = "[sglang.srt.plugins]\nslowdown = slowdown:register\n"
METADATA = "Metadata-Version: 2.1\nName: slowdown\nVersion: 1.0\n"

Json = dict[str, Any]
Compare = Callable[..., Json]
"""Plays `gpuops ab` with these words and returns the record."""


class MeasuredLab(Lab):
    """The lab of the engine's tests, with the cell that is measured here."""

    def playbook(self, name: str) -> Path:
        path = super().playbook(name)
        path.write_text(f"{path.read_text()}bench: {{cells: [{json.dumps(MEASURED)}]}}\n")
        return path


def imitated(folder: Path) -> Iterator[Figure]:
    """Equals and a planted slowdown, on an imitation of the engine."""
    lab = AbLab(folder, gap_ms=4.0, cells=IMITATED)

    def compare(*words: str) -> Json:
        ran = lab.run("ab", *words, "--json")
        return _record(ran.code, ran.out, ran.err)

    lab.up()
    slow = lab.build("slow", 1 / (1 - SLOWDOWN))
    try:
        yield from _figures("an imitation", compare, slow)
    finally:
        lab.clean_up()


def real() -> Iterator[Figure]:
    """The same on the real engine, and its own client by hand against ours."""
    with _engine() as (lab, builds):
        slow = _slow_build(builds)

        def compare(*words: str) -> Json:
            # As long as it takes: twenty launches.
            argv = [GPUOPS, "ab", "-p", str(lab.playbook("local.yaml")), *words, "--json", "--dir", str(builds)]
            ended = subprocess.run(argv, capture_output=True, text=True, check=False, env=lab.environment())
            return _record(ended.returncode, ended.stdout, ended.stderr)

        yield from _figures("SGLang on CPU", compare, slow)
        yield from _by_hand(lab)


def _figures(what: str, compare: Compare, slow: str) -> Iterator[Figure]:
    began = time.monotonic()
    equals = compare("known-good", "known-good", "--pairs", str(EQUALS_PAIRS), "--margin", str(MARGIN))
    verdict, noise = equals["results"][0]["verdict"], equals["noise"][0]["sd"]
    wrong = verdict["word"] in ("improved", "regressed")
    detail = f"{EQUALS_PAIRS} pairs: {verdict['word']}, {verdict['mean']:+.1%}, SD of a pair {noise:.1%}; {time.monotonic() - began:.0f} s"
    yield Figure(f"false difference between equals, on {what}", float(wrong), 0, "", detail)
    # A slowdown by 30 % is a change by 1/0.7 the other way, which is how far its log ratio is from 0.
    promised = pairs_needed(noise, 1 / (1 - SLOWDOWN) - 1)
    pairs = max(promised or FEWEST, FEWEST)
    found = compare("known-good", slow, "--pairs", str(pairs), "--margin", str(MARGIN))["results"][0]["verdict"]
    detail = f"{pairs} pairs, promised for SD {noise:.1%}: {found['word']}, {found['mean']:+.1%} ({found['low']:+.1%} to {found['high']:+.1%})"
    yield Figure(f"planted slowdown of 30 % that was missed, on {what}", float(found["word"] != "regressed"), 0, "", detail)


def _by_hand(lab: Lab) -> Iterator[Figure]:
    """``gpuops bench`` and the engine's ``sglang.benchmark.serving``, in turns on one server."""
    ours: list[float] = []
    theirs: list[float] = []
    apart = 0.0
    for number in range(CLIENT_ROUNDS):
        for client in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            if client == "ours":
                block = lab.run("bench", "--cell", "c4", "--json").json["blocks"][0]
                counted = block["counters"]["after"]["generated"] - block["counters"]["before"]["generated"]
                told = block["cell"]["requests"] * block["cell"]["output_tokens"]
                apart = max(apart, abs(told - counted) / counted)
                ours.append(block["figures"]["output_tok_s"])
            else:
                result = _serving(lab, seed=1000 + number)
                apart = max(apart, abs(result["total_output_tokens"] - _wanted_tokens()) / _wanted_tokens())
                theirs.append(result["output_throughput"])
    yield Figure("tokens on which the clients and the server's counters differ", apart, 0.01, "", f"{CLIENT_ROUNDS} runs each")
    logs = [math.log(one / two) for one, two in zip(ours, theirs, strict=True)]
    mean, sd = statistics.fmean(logs), statistics.stdev(logs)
    detail = f"{CLIENT_ROUNDS} runs each, in turns: {statistics.median(ours):.1f} and {statistics.median(theirs):.1f} tok/s, SD of a pair {sd:.1%}"
    yield Figure(
        "speed by gpuops bench against sglang.benchmark.serving by hand",
        abs(math.expm1(mean)),
        max(CLIENTS_APART, 2 * sd),
        "",
        detail,
    )


def _wanted_tokens() -> int:
    """What a run of the measured cell generates."""
    return int(MEASURED["requests"]) * int(MEASURED["output"])


def _serving(lab: Lab, seed: int) -> Json:
    """One run of the engine's client as its own documentation has it, in the server's runtime."""
    status = lab.status()
    document = lab.release(status["release"])
    out = lab.playbooks / f"serving-{seed}.jsonl"
    where = ["--host", "127.0.0.1", "--port", str(status["server"]["port"]), "--model", document["served_model_name"]]
    lengths = [
        "--random-input-len",
        str(MEASURED["input"]),
        "--random-output-len",
        str(MEASURED["output"]),
        "--random-range-ratio",
        "1.0",
    ]
    load = [
        "--num-prompts",
        str(MEASURED["requests"]),
        "--max-concurrency",
        str(MEASURED["concurrency"]),
        "--request-rate",
        "inf",
    ]
    argv = [
        *(
            document["argv"][0],
            "-m",
            "sglang.benchmark.serving",
            "--backend",
            "sglang",
            *where,
            "--tokenizer",
            document["model"]["path"],
        ),
        *("--dataset-name", "random-ids", "--tokenize-prompt", *lengths, *load, "--seed", str(seed), "--disable-tqdm"),
        *("--output-file", str(out)),
    ]
    # The CPU runtime does without the package `datasets`, which this client imports for data sets that nobody asks it for here.
    stubs = lab.playbooks / "stubs"
    stubs.mkdir(exist_ok=True)
    (stubs / "datasets.py").write_text(
        "def load_dataset(*args, **kwargs):\n    raise RuntimeError('no data set is loaded here')\n"
    )
    own = {name: text for name, text in document["env"].items() if "@{" not in text}
    environment = {**lab.environment(), **own, "PYTHONPATH": str(stubs)}
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=600)
    if ended.returncode != 0:
        sys.exit(f"sglang.benchmark.serving failed: {ended.stderr[-2000:]}")
    result: Json = json.loads(out.read_text().splitlines()[-1])
    return result


@contextmanager
def _engine() -> Iterator[tuple[Lab, Path]]:
    """The real engine in a sandbox of its own, serving; and an empty folder for builds."""
    prerequisites.ensure(print)
    sandbox = Sandbox(REPOSITORY / ".sandbox-bench")
    sandbox.start()
    folder = sandbox.folder / "measure"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "builds").mkdir(parents=True)
    lab = MeasuredLab(sandbox.folder, folder, folder / "state", "measured")
    try:
        if lab.service.exists():
            lab.run("down")
            shutil.rmtree(lab.service)
        ran = lab.up()
        if ran.code != 0:
            sys.exit(f"the engine does not come up: {ran.err[-2000:]}")
        yield lab, folder / "builds"
    finally:
        lab.run("down")
        sandbox.stop()


def _slow_build(builds: Path) -> str:
    staging = builds / ".slow"
    files = {
        "slowdown/__init__.py": PLUGIN.format(rest=1 - SLOWDOWN),
        "slowdown-1.0.dist-info/entry_points.txt": ENTRY_POINT,
        "slowdown-1.0.dist-info/METADATA": METADATA,
    }
    for name, text in files.items():
        path = staging / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tree = hashed("slow", {"site": staging / "site"}, {})
    write_manifest(staging, tree)
    staging.rename(builds / tree.id)
    return tree.id


def _record(code: int, out: str, err: str) -> Json:
    """The record that a comparison ended with. Exits with what it said when it did not."""
    if code != 0:
        sys.exit(f"gpuops ab failed with status {code}: {err[-2000:]}{out[-2000:]}")
    record: Json = json.loads(out.splitlines()[-1])
    return record
