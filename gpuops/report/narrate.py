"""An operation's events in words: one or more lines for what happened, none for what only the progress bar shows.

Pure: time is the host's own, as each event carries it, so the record of an operation reads like the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuops.report import bench, ladder, probes, trials
from gpuops.report.style import Paint
from gpuops.report.words import size

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Phase:
    """Where an operation is: the phase, when it began (host's clock, seconds), its progress (0 to 1, or None) and detail."""

    name: str
    began: float
    progress: float | None
    detail: str


class Clock:
    """The phase that an operation is in, from its events."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.now = 0.0
        self.phase: Phase | None = None

    def hear(self, event: Event) -> Phase | None:
        """Take an event in; returns the phase that it ended, if it did."""
        self.now = event.get("t", self.now)
        if self.began is None:
            self.began = self.now
        if event["event"] == "outcome":
            ended, self.phase = self.phase, None
            return ended
        if event["event"] != "phase":
            return None
        last = self.phase
        same = last is not None and last.name == event["phase"]
        began = last.began if last is not None and same else self.now
        self.phase = Phase(event["phase"], began, event.get("progress"), event.get("detail") or "")
        return None if same else last

    @property
    def elapsed(self) -> float:
        """Seconds from the operation's first event to its latest."""
        return self.now - (self.began or self.now)


def describe(phase: Phase) -> str:
    """``weights 40% loading``."""
    percent = f" {phase.progress:.0%}" if phase.progress is not None else ""
    return f"{phase.name}{percent}" + (f" {phase.detail}" if phase.detail else "")


def lines(event: Event, paint: Paint, *, verbose: bool = False) -> list[str]:
    """What a person reads of one event."""
    tell = _WORDS.get(event["event"])
    if tell is not None:
        return tell(event, paint)
    if verbose and event["event"] not in ("phase", "outcome"):
        rest = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("event", "t", "op"))
        return [paint.dim(f"{event['event']} {rest}".rstrip())]
    return []


def _op(event: Event, paint: Paint) -> list[str]:
    if event.get("attached"):
        return [f"the same {event['kind']} is running already: following operation {event['op']}"]
    return []


def _note(event: Event, paint: Paint) -> list[str]:
    return [str(event["text"])]


def _staged(event: Event, paint: Paint) -> list[str]:
    return [f"release {event['release']} is staged"]


def _stopped(event: Event, paint: Paint) -> list[str]:
    cards = [f"    {card['text']}" for card in event.get("proof", {}).get("cards") or ()]
    return [f"{_which(event)} is stopped: its processes are gone and its port is free", *cards]


def _server(event: Event, paint: Paint) -> list[str]:
    return [f"release {event['release']} is started: pid {event['pid']}, port {event['port']}"]


def _ready(event: Event, paint: Paint) -> list[str]:
    return [f"{paint.green('✓')} release {event['release']} generates, {event['seconds']:.1f} s after its launch"]


def _state(event: Event, paint: Paint) -> list[str]:
    if event["state"] == "good":
        why = event.get("reason") or "it is the known-good release now"
        return [f"{paint.green('✓')} release {event['release']} is good: {why}"]
    if event["state"] in ("bad", "unknown"):
        return [f"{paint.red('✗')} release {event['release']} is {event['state']}: {event.get('reason', '')}".rstrip(": ")]
    return []


def _proof(event: Event, paint: Paint) -> list[str]:
    mark = paint.green("✓") if event["state"] == "active" else paint.yellow("•") if event["passed"] else paint.red("✗")
    shown = [] if event["passed"] else event["evidence"]
    return [f"{mark} kernel pack {event['build']}: {event['text']}", *(f"    {line}" for line in shown)]


def _compiled(event: Event, paint: Paint) -> list[str]:
    card = "no card" if event["capability"] == "cpu" else f"capability {event['capability']}"
    return [f"kernels for {card}: {event['compiled']} compiled, {event['cached']} in the cache, {event['seconds']:.1f} s"]


def _seeded(event: Event, paint: Paint) -> list[str]:
    parts = ", ".join(event["parts"])
    return [f"the new cache begins with {event['files']} files of that of {event['build']} ({size(event['bytes'])}: {parts})"]


def _warmed(event: Event, paint: Paint) -> list[str]:
    why = f"; stopped: {event['why']}" if event["why"] else ""
    disk = f", {size(event['from_disk'])} of them from disk" if event["from_disk"] else ""
    return [f"weights in the page cache: {size(event['bytes'])} of {size(event['total'])}{disk} in {event['seconds']:.1f} s{why}"]


def _cache(event: Event, paint: Paint) -> list[str]:
    parts = ", ".join(f"{part} {count}" for part, count in event["missed"].items())
    return [f"the start added {event['misses']} files to its compile cache: {parts}"] if event["misses"] else []


def _cache_reset(event: Event, paint: Paint) -> list[str]:
    told = f"a file of the compile cache is damaged: starting once more with a fresh one; the old one is kept as {event['kept']}"
    return [paint.yellow(told), f"    {event['because']}"]


def _restoring(event: Event, paint: Paint) -> list[str]:
    return [paint.yellow(f"restoring release {event['release']}: {event['because']}")]


def _died(event: Event, paint: Paint) -> list[str]:
    told = [f"{paint.red('✗')} {event.get('what') or 'the server died'}"]
    return [*told, f"    {event['line']}"] if event.get("line") else told


def _diagnosis(event: Event, paint: Paint) -> list[str]:
    sure = f"{paint.red(event['class'])}: {event['what']}"
    return [f"  {sure}", *([f"    {event['evidence']}"] if event.get("evidence") else [])]


def _silent(event: Event, paint: Paint) -> list[str]:
    what = f": {event['what']}; {event.get('evidence', '')}".rstrip("; ") if event.get("what") else ""
    return [paint.yellow(f"no sign of work for {event['seconds']:.0f} s{what}")]


def _check(event: Event, paint: Paint) -> list[str]:
    mark = paint.green("✓") if event["state"] == "serving" else paint.red("✗")
    return [f"{mark} {event['state']}: {event['evidence']}"]


def _hook(event: Event, paint: Paint) -> list[str]:
    if event["status"] == 0:
        return [f"{paint.green('✓')} hook {event['name']} {event['seconds']:.1f} s"]
    how = "failed" if event["status"] is None else f"failed with status {event['status']}"
    return [f"{paint.red('✗')} hook {event['name']} {how}", *(f"    {line}" for line in event["output"].splitlines())]


def _performance(event: Event, paint: Paint) -> list[str]:
    mark = (
        paint.green("✓") if event["verdict"] == "passed" else paint.red("✗") if event["gate"] == "required" else paint.yellow("✗")
    )
    verdict = "as fast as it must be" if event["verdict"] == "passed" else event["verdict"]
    gate = "" if event["gate"] == "required" else f" ({event['gate']})"
    return [f"{mark} speed at {event['cell']}{gate}: {verdict}, {event['why']}"]


def _which(event: Event) -> str:
    return f"release {event['release']}" if event.get("release") is not None else "the old server"


_WORDS: dict[str, Callable[[Event, Paint], list[str]]] = {
    "op": _op,
    "note": _note,
    "staged": _staged,
    "stopped": _stopped,
    "server": _server,
    "ready": _ready,
    "state": _state,
    "step": trials.step_lines,
    "tried": trials.tried_lines,
    "proof": _proof,
    "compiled": _compiled,
    "seeded": _seeded,
    "warmed": _warmed,
    "cache": _cache,
    "cache_reset": _cache_reset,
    "restoring": _restoring,
    "died": _died,
    "diagnosis": _diagnosis,
    "silent": _silent,
    "hook": _hook,
    "check": _check,
    "probe": probes.lines,
    "block": bench.block_lines,
    "rung": ladder.lines,
    "performance": _performance,
}
