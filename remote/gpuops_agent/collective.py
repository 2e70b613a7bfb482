"""Ranks that add up numbers with the runtime's own PyTorch: whether the cards can talk to each other, asked apart from any engine, with a time limit.

Each rank is a process (``allreduce.py``) in a session of its own; at the limit, and soon after one of them has failed, all are killed. What they
reached is judged by :func:`judge`, which is pure.
"""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

# A cold import of PyTorch from a slow disk takes most of it, in seconds.
LIMIT_S = 90.0

# How long the others have to say why, when one rank has failed, and how often they are looked at, in seconds.
_AFTER_S = 2.0
_LOOK_S = 0.1

STAGES = ("started", "imported", "joined", "added", "measured", "done")

# Classes of what can be wrong.
HANG, P2P_HANG, MEETING, WRONG_SUM, FAILED, SLOW = (
    "collective_hang",
    "nccl_p2p_hang",
    "rendezvous_hang",
    "wrong_sum",
    "collective_failed",
    "slow_import",
)

NO_P2P = "NCCL_P2P_DISABLE"


@dataclass(frozen=True)
class Ask:
    """What is to be run: ``cards`` are ordinals among those that ``env`` shows, one a rank; [] for ``ranks`` of them without a card."""

    python: str
    ranks: int
    cards: Tuple[int, ...]
    env: Dict[str, str]
    limit_s: float

    @property
    def backend(self) -> str:
        return "NCCL" if self.cards else "gloo"


@dataclass(frozen=True)
class Rank:
    """How far a rank came: what it told at each stage, its exit status (None: it was killed at the limit), its last words."""

    stages: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    status: Optional[int] = None
    words: str = ""

    @property
    def furthest(self) -> str:
        return max(self.stages, key=STAGES.index, default="")


@dataclass(frozen=True)
class Verdict:
    """``name`` is the failure's class, empty when the sum is right. ``gb_s`` is the bus bandwidth in GB/s, where it was measured."""

    name: str
    what: str
    evidence: str = ""
    next: str = ""
    gb_s: Optional[float] = None


def run(ask: Ask) -> List[Rank]:
    """Start the ranks and wait for them, ``limit_s`` seconds at most. Raises OSError when they cannot be started."""
    folder = Path(tempfile.mkdtemp(prefix="gpuops-allreduce-"))
    started: List["subprocess.Popen[bytes]"] = []
    try:
        for rank in range(ask.ranks):
            started.append(_start(ask, rank, folder))
        late = _wait(started, ask.limit_s)
        return [_told(folder, rank, process, late) for rank, process in enumerate(started)]
    finally:
        _kill(started)
        shutil.rmtree(folder, ignore_errors=True)


def judge(ask: Ask, ranks: List[Rank]) -> Verdict:
    """What the ranks' stages say."""
    of = f"{ask.ranks} ranks ({ask.backend})"
    if any(rank.stages.get("added", {}).get("right") is False for rank in ranks):
        return Verdict(WRONG_SUM, f"{of} add up to a wrong sum", _reached(ranks), _without_p2p(ask))
    if all(rank.furthest == "done" for rank in ranks):
        gb_s = _bandwidth(ask, ranks)
        speed = f", {gb_s:.1f} GB/s a card" if gb_s is not None else ""
        return Verdict("", f"{of} add up to the right sum{speed}", _measured(ranks), gb_s=gb_s)
    failed = next((number for number, rank in enumerate(ranks) if rank.status not in (None, 0)), None)
    if failed is not None:
        words = f"rank {failed} ended with status {ranks[failed].status}: {ranks[failed].words or 'it said nothing'}"
        return Verdict(FAILED, f"{of} cannot add up numbers", f"{words}; {_reached(ranks)}", _more_words(ask))
    slowest = min((rank.furthest or STAGES[0] for rank in ranks), key=STAGES.index)
    late = f"within {ask.limit_s:g} s"
    if slowest == "started":
        return Verdict(
            SLOW, f"{of}: PyTorch was not imported {late}", _reached(ranks), "once more: the second time it is in memory"
        )
    if slowest == "imported":
        return Verdict(MEETING, f"{of} did not meet {late}", _reached(ranks), _more_words(ask))
    name = P2P_HANG if ask.cards else HANG
    return Verdict(name, f"{of} met, and their all-reduce did not end {late}", _reached(ranks), _without_p2p(ask))


def _start(ask: Ask, rank: int, folder: Path) -> "subprocess.Popen[bytes]":
    program = (pkgutil.get_data(__package__, "allreduce.py") or b"").decode()
    card = ask.cards[rank] if ask.cards else -1
    words = [str(rank), str(ask.ranks), str(card), str(folder / "meeting")]
    with (folder / f"out{rank}").open("wb") as out, (folder / f"err{rank}").open("wb") as err:
        return subprocess.Popen(
            [ask.python, "-c", program, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            # One host: gloo asks the resolver for the host's name otherwise.
            env={"GLOO_SOCKET_IFNAME": "lo", **ask.env},
            cwd=folder,
            start_new_session=True,
        )


def _wait(started: List["subprocess.Popen[bytes]"], limit_s: float) -> List[bool]:
    """Whether each still ran when the wait was over."""
    deadline = time.monotonic() + limit_s
    while True:
        status = [process.poll() for process in started]
        if None not in status or time.monotonic() >= deadline:
            return [each is None for each in status]
        if any(status):
            deadline = min(deadline, time.monotonic() + _AFTER_S)
        time.sleep(_LOOK_S)


def _told(folder: Path, rank: int, process: "subprocess.Popen[bytes]", late: List[bool]) -> Rank:
    stages = {}
    for line in (folder / f"out{rank}").read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            if told["stage"] in STAGES:
                stages[str(told["stage"])] = told
    lines = [
        line.strip()
        for line in (folder / f"err{rank}").read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return Rank(stages, None if late[rank] else process.returncode, lines[-1][:300] if lines else "")


def _kill(started: List["subprocess.Popen[bytes]"]) -> None:
    for process in started:
        # The whole session: PyTorch may have forked.
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_AFTER_S)


def _bandwidth(ask: Ask, ranks: List[Rank]) -> Optional[float]:
    """GB/s over a card's links: 2 (n - 1) / n of the data crosses them, whatever the algorithm (NCCL tests, PERFORMANCE.md)."""
    told = [rank.stages["measured"] for rank in ranks if "measured" in rank.stages]
    if len(told) < ask.ranks:
        return None
    slowest = max(float(each["seconds"]) for each in told)
    return 2 * (ask.ranks - 1) / ask.ranks * float(told[0]["bytes"]) / slowest / 1e9 if slowest > 0 else None


def _measured(ranks: List[Rank]) -> str:
    told = [rank.stages["measured"] for rank in ranks if "measured" in rank.stages]
    version = ranks[0].stages.get("imported", {}).get("torch")
    timed = f", {told[0]['bytes'] >> 20} MiB in {max(float(each['seconds']) for each in told) * 1e3:.2f} ms" if told else ""
    return f"torch {version}{timed}"


def _reached(ranks: List[Rank]) -> str:
    return ", ".join(f"rank {number}: {rank.furthest or 'not started'}" for number, rank in enumerate(ranks))


def _without_p2p(ask: Ask) -> str:
    if not ask.cards:
        return _more_words(ask)
    if ask.env.get(NO_P2P) == "1":
        return f"{NO_P2P}=1 is set already: NCCL_SHM_DISABLE=1 is next; {_more_words(ask)}"
    return f"gpuops up --set server.env.{NO_P2P}=1: no direct copies between the cards; and look why they fail (IOMMU, ACS): nvidia-smi topo -p2p r"


def _more_words(ask: Ask) -> str:
    return (
        "NCCL_DEBUG=INFO in server.env, and gpuops doctor --collective" if ask.cards else "gpuops doctor --collective, once more"
    )
