"""What a report shows, as plain data for page, Markdown and charts: from a comparison's record and the evidence that the host keeps."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.measure.ab import figures_of
from gpuops.measure.compare import changes
from gpuops.measure.paired import CONFIDENCE
from gpuops.measure.student import quantile
from gpuops.report import ab
from gpuops.report.bench import DEFINITIONS, DEFINITIONS_OPEN, HINT, goodput, is_open, sent
from gpuops.report.words import summary

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """One of the things that a report is about: a release, with the valid blocks of the launches that are shown."""

    name: str
    told: Json
    blocks: tuple[Json, ...]


@dataclass(frozen=True)
class Point:
    """The speed of a subject at a cell: the geometric mean over launches, with its t interval; the bounds are None for a single launch."""

    cell: str
    concurrency: int
    launches: int
    speed: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Table:
    """A heading, column names and rows of text. ``note`` stands below."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Sheet:
    """A report. ``said`` are its conclusions, in sentences; ``results`` those of a comparison (gpuops.measure.ab), as its record has them."""

    title: str
    about: tuple[tuple[str, str], ...]
    said: tuple[str, ...]
    subjects: tuple[Subject, ...]
    results: tuple[Json, ...]
    margin: float | None
    tables: tuple[Table, ...]


def of_comparison(record: Json, evidence: Json, host: str) -> Sheet:
    """The report on a comparison. ``evidence`` is the agent's answer about its releases and launches."""
    releases = {each["release"]: each for each in evidence["releases"]}
    subjects = []
    for name in ("A", "B"):
        launches = {launch["launch"] for launch in record["launches"] if launch["side"] == name}
        side = record["a" if name == "A" else "b"]
        told = releases.get(side["release"])
        if told is not None:
            blocks = tuple(each for each in told["blocks"] if each["valid"] and each["launch"] in launches)
            subjects.append(Subject(f"{name}: {side['word']} (release {side['release']})", told, blocks))
    done = len(record["launches"]) // 2
    about = (
        ("service", f"{record['service']} on {host}"),
        ("begun", _when(record["began"])),
        ("by", record["by"]),
        ("pairs", f"{done} of {record['pairs']}, launches in blocks of A B B A ({record['state']})"),
        ("margin", f"{record['margin']:.1%}, declared before the first launch"),
        ("afterwards", _back(record["back"])),
    )
    tables = (_paired(record), *_common(tuple(subjects)))
    said = tuple(ab.conclusion(record))
    return Sheet(f"Comparison {record['id']}", about, said, tuple(subjects), tuple(record["results"]), record["margin"], tables)


def of_release(evidence: Json, release: int, host: str) -> Sheet:
    """The report on a release, beside the known-good one where that is another."""
    releases = {each["release"]: each for each in evidence["releases"]}
    good = evidence["known_good"]
    subjects = []
    for number in dict.fromkeys((release, good)):
        told = releases.get(number)
        if told is not None:
            mark = ", known-good" if number == good else ""
            subjects.append(Subject(f"release {number}{mark}", told, tuple(each for each in told["blocks"] if each["valid"])))
    told = releases[release]
    about = (
        ("service", f"{evidence['service']} on {host}"),
        ("content", summary(told["summary"])),
        ("state", " ".join(filter(None, (told["state"]["state"], told["state"].get("reason"))))),
        ("written", _when(time.time())),
    )
    said = tuple(_compared(subjects)) if len(subjects) == 2 else ()
    return Sheet(f"Release {release}", about, said, tuple(subjects), (), None, _common(tuple(subjects)))


def points(subject: Subject) -> list[Point]:
    """The subject's speed at each of its cells, by their concurrency; an open loop shows none, its throughput is what was asked."""
    found = []
    closed = [block for block in subject.blocks if not block["cell"].get("rate")]
    for name in dict.fromkeys(block["cell"]["name"] for block in closed):
        blocks = [block for block in closed if block["cell"]["name"] == name]
        launches: dict[Any, list[float]] = {}
        for block in blocks:
            launches.setdefault(block.get("launch"), []).append(speed(block))
        logs = [math.log(statistics.fmean(speeds)) for speeds in launches.values()]
        mean, low, high = statistics.fmean(logs), None, None
        if len(logs) > 1:
            half = quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
            low, high = math.exp(mean - half), math.exp(mean + half)
        found.append(Point(name, blocks[0]["cell"]["concurrency"], len(logs), math.exp(mean), low, high))
    return sorted(found, key=lambda point: point.concurrency)


def speed(block: Json) -> float:
    """Generated tokens a second, or prompt tokens a second in a cell that only measures the prefill."""
    _, (key,), _ = figures_of(block)[0]
    return float(block["figures"][key])


def is_decode(block: Json) -> bool:
    """Whether a block's cell measures the speed of more than the prefill."""
    return bool(block["cell"]["output_tokens"] > 1) and not block["cell"].get("rate")


def short(sheet: Sheet) -> list[str]:
    """The report in short, for a terminal: what is said, and the speeds."""
    told = [sheet.title, *(f"  {name:<11} {text}" for name, text in sheet.about), *(f"  {text}" for text in sheet.said)]
    for subject in sheet.subjects:
        told.append(f"  {subject.name}")
        shown = [f"    {point.cell}: {_interval(point)}" for point in points(subject)]
        shown += [f"    {cell}: sent/s {rate}, goodput {good}" for cell, _, rate, good, _ in _open_loops([subject]).rows]
        told += shown or ["    nothing was measured"]
    return told


def _paired(record: Json) -> Table:
    rows = []
    for each in record["results"]:
        verdict = each["verdict"]
        word = verdict["word"] if verdict else "one pair"
        more = "" if not verdict or verdict["more"] in (0, None) else str(verdict["more"])
        means = (_mean(each["a"]), _mean(each["b"]))
        sd = f"{verdict['sd']:.2%}" if verdict else ""
        rows.append((each["cell"], each["figure"], *means, ab.interval(verdict, each["change"]), sd, word, more))
    head = ("cell", "figure", "A", "B", f"change ({CONFIDENCE:.0%} interval)", "SD of a pair", "verdict", "more pairs")
    return Table("Pairs of launches", head, tuple(rows), ab.NOTE)


def _common(subjects: tuple[Subject, ...]) -> tuple[Table, ...]:
    found = (
        _speeds(subjects),
        _latencies(subjects),
        _open_loops(subjects),
        _ladder(subjects),
        _gates(subjects),
        _fingerprints(subjects),
    )
    return tuple(table for table in found if table.rows)


def _speeds(subjects: Sequence[Subject]) -> Table:
    rows = [
        (point.cell, str(point.concurrency), subject.name, str(point.launches), _interval(point))
        for subject in subjects
        for point in points(subject)
    ]
    head = ("cell", "at a time", "of", "launches", f"tok/s ({CONFIDENCE:.0%} interval over launches)")
    return Table("Throughput", head, tuple(sorted(rows, key=lambda row: (int(row[1]), row[0]))), DEFINITIONS[1])


def _latencies(subjects: Sequence[Subject]) -> Table:
    rows = []
    for subject in subjects:
        for name in dict.fromkeys(block["cell"]["name"] for block in subject.blocks):
            blocks = [block for block in subject.blocks if block["cell"]["name"] == name]
            spreads = [_median_spread(blocks, key) for key in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")]
            rows.append((name, subject.name, *spreads))
    head = ("cell", "of", "TTFT ms", "ITL ms", "TPOT ms", "E2E ms")
    return Table("Latency (p50/p95/p99; median over launches)", head, tuple(rows), DEFINITIONS[0])


def _open_loops(subjects: Sequence[Subject]) -> Table:
    rows = []
    for subject in subjects:
        limited = [block for block in subject.blocks if is_open(block)]
        for name in dict.fromkeys(block["cell"]["name"] for block in limited):
            blocks = [block for block in limited if block["cell"]["name"] == name]
            limits = ", ".join(f"{key.partition('_')[0].upper()} {most:g} ms" for key, most in _limits(blocks[0]).items())
            rows.append((name, subject.name, sent(_median(blocks, "rate")), goodput(_median(blocks, "goodput")), limits or "-"))
    head = ("cell", "of", "sent/s", "goodput", "limits")
    return Table("Open loops and goodput (median over launches)", head, tuple(rows), " ".join(DEFINITIONS_OPEN))


def _limits(block: Json) -> Json:
    return block["cell"].get("goodput") or {}


def _median(blocks: Sequence[Json], key: str) -> Json | None:
    """The blocks' rates, or their goodput, as one: every number is its median."""
    known = [block["figures"][key] for block in blocks if block["figures"].get(key)]
    if not known:
        return None
    numbers = {name: [each[name] for each in known if each[name] is not None] for name in known[0]}
    return {name: statistics.median(values) if values else None for name, values in numbers.items()}


def _median_spread(blocks: Sequence[Json], key: str) -> str:
    spreads = [block["figures"][key] for block in blocks if block["figures"].get(key)]
    if not spreads:
        return "-"
    return "/".join(f"{statistics.median(each[name] for each in spreads):.1f}" for name in ("p50", "p95", "p99"))


def _ladder(subjects: Sequence[Subject]) -> Table:
    rows = []
    for subject in _distinct(subjects):
        for entry in subject.told["ladder"]:
            if not entry.get("rungs"):
                rows.append((subject.name, entry["launch"], f"1 to {entry['level']}", entry["verdict"], "", ""))
            for rung in entry.get("rungs") or ():
                name = f"{rung['rung']} {rung['name']} ({rung['gate']})"
                rows.append(
                    (subject.name, entry["launch"], name, rung["verdict"], rung["answer"][:120], rung["expectation"][:120])
                )
    return Table("Ladder", ("of", "launch", "rung", "verdict", "answer", "expected"), tuple(rows))


def _gates(subjects: Sequence[Subject]) -> Table:
    rows = []
    for subject in _distinct(subjects):
        gates = subject.told["gates"] or {}
        for probe in gates.get("probes") or ():
            verdict = "passed" if probe["passed"] else "failed"
            rows.append((subject.name, f"probe {probe['name']} ({probe['gate']})", verdict, str(probe["answer"])[:120]))
        speed_gate = gates.get("performance") or {}
        for cell in speed_gate.get("cells") or ():
            rows.append((subject.name, f"speed at {cell['cell']} ({speed_gate['gate']})", cell["verdict"], cell["why"]))
    return Table("Gates of the rollout", ("of", "gate", "verdict", "evidence"), tuple(rows))


def _fingerprints(subjects: Sequence[Subject]) -> Table:
    different = _distinct(subjects)
    columns = [_fingerprint(subject.told) for subject in different]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = tuple((key, *(column.get(key, "-") for column in columns)) for key in keys)
    return Table("Fingerprints", ("", *(subject.name for subject in different)), rows)


def _fingerprint(told: Json) -> dict[str, str]:
    found = told["fingerprint"] or {}
    host = found.get("host") or {}
    flags = ((told["summary"] or {}).get("flags")) or {}
    return {
        "build": str((told["build"] or {}).get("id") or "none"),
        "engine": f"{told['engine']['name']} {told['engine']['version']}",
        "runtime": str(told["runtime"]),
        "model": str((told["model"] or {}).get("identity") or (told["model"] or {}).get("path")),
        "card": str(found.get("card")),
        "host": str(host.get("hostname")),
        "kernel": str(found.get("kernel")),
        "flags": " ".join(f"{name}={value}" for name, value in flags.items()) or "none",
    }


def _distinct(subjects: Sequence[Subject]) -> list[Subject]:
    """Each release once: both sides of a comparison of equals are the same."""
    return list({subject.told["release"]: subject for subject in reversed(subjects)}.values())[::-1]


def _compared(subjects: Sequence[Subject]) -> list[str]:
    new, old = subjects
    latest = {block["cell"]["name"]: block for block in old.blocks}
    told = []
    for name, block in {block["cell"]["name"]: block for block in new.blocks}.items():
        if name in latest:
            said = ", ".join(f"{change.name} {change.ratio - 1:+.1%}" for change in changes(block, latest[name]))
            told.append(f"{name} against {old.name}: {said} ({HINT})")
    return told


def _interval(point: Point) -> str:
    if point.low is None or point.high is None:
        return f"{point.speed:.1f} (one launch)"
    return f"{point.speed:.1f} ({point.low:.1f} to {point.high:.1f}, {point.launches} launches)"


def _mean(values: Sequence[float]) -> str:
    return f"{math.exp(statistics.fmean(map(math.log, values))):.2f}"


def _back(back: Json | None) -> str:
    if back is None:
        return "not yet: the comparison has not ended"
    how = "was restored" if back["restored"] else "served already"
    return f"release {back['release']} {how}, its probes say: {back['verdict']}"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
