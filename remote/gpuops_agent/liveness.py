"""Does the engine still generate? And if not: does it hang, or is it only slow?

A health endpoint answers 200 from a dead engine, so the question is always put as a real generation. When none comes in time, the processes tell
the difference: an engine that hangs burns no CPU and writes no log, or is stopped; a slow one does work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List

from .proc import Stat, descendants, read_stat, title
from .records import ServerRecord
from .server import Generation, Server

# The first token comes from the prefill, the second proves that decoding works too.
TOKENS = 2

SERVING, HUNG, SLOW, FAILING = "serving", "hung", "slow", "failing"

# Below this share of one core over the whole wait, a process does not work on anything. Idle SGLang schedulers poll at far less than that when they
# sleep, and at a full core when they spin; a stopped one uses nothing.
IDLE_SHARE = 0.02

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Verdict:
    """What one generation showed: ``state`` is serving, hung, slow or failing."""

    state: str
    evidence: str
    generation: Generation

    def to_json(self) -> Dict[str, Any]:
        return {"state": self.state, "evidence": self.evidence}


@dataclass(frozen=True)
class Sample:
    """CPU time and state of every process of the server, and the size of its log."""

    stats: Dict[int, Stat]
    log_bytes: int


def check(
    server: Server,
    record: ServerRecord,
    log_path: Any,
    timeout: float,
    during: Callable[[Callable[[], Generation]], Generation] = lambda call: call(),
) -> Verdict:
    """Ask for one short generation and judge. ``timeout`` in seconds; ``during`` may watch the server meanwhile."""
    before = sample(record, log_path)
    generation = during(lambda: server.generate("The capital of France is", TOKENS, timeout))
    if generation.ok:
        return Verdict(SERVING, f"generated {generation.text!r}", generation)
    if not generation.timed_out:
        return Verdict(FAILING, generation.error, generation)
    state, evidence = judge(before, sample(record, log_path), timeout, CLOCK_TICKS, title)
    return Verdict(state, evidence, generation)


def sample(record: ServerRecord, log_path: Any) -> Sample:
    """Look at the server's processes and log now."""
    own = read_stat(record.pid)
    stats: List[Stat] = ([own] if own else []) + descendants(record.pid)
    try:
        size = os.stat(log_path).st_size
    except OSError:
        size = 0
    return Sample({stat.pid: stat for stat in stats}, size)


def judge(
    before: Sample, after: Sample, seconds: float, ticks_per_second: int, name: Callable[[int], str], awaited: str = "token"
) -> "tuple[str, str]":
    """Hung or slow, with the evidence, from two samples ``seconds`` apart in which nothing of what was ``awaited`` came."""
    silence = f"no {awaited} in {seconds:g} s"
    halted = stopped(after.stats.values(), name)
    if halted:
        return HUNG, f"{silence}; {halted}"
    used = {
        pid: (stat.utime + stat.stime - before.stats[pid].utime - before.stats[pid].stime) / ticks_per_second
        for pid, stat in after.stats.items()
        if pid in before.stats
    }
    busiest = max(used, key=lambda pid: used[pid], default=None)
    share = used[busiest] / seconds if busiest is not None else 0.0
    grown = after.log_bytes - before.log_bytes
    if share < IDLE_SHARE and grown <= 0:
        return HUNG, f"{silence}; no process of the server used more than {share:.1%} of a core, and its log did not grow"
    who = f"{name(busiest)} (pid {busiest}) used {used[busiest]:.1f} s of CPU" if busiest is not None else "its processes changed"
    return SLOW, f"{silence}, but it works: {who}, its log grew by {grown} bytes"


def stopped(stats: Iterable[Stat], name: Callable[[int], str]) -> str:
    """Which of these processes a signal or a debugger has stopped, in words; empty when none is."""
    halted = [stat for stat in stats if stat.state in ("T", "t")]
    names = ", ".join(f"{name(stat.pid)} (pid {stat.pid})" for stat in halted)
    return f"{names} is stopped (state {halted[0].state})" if halted else ""
