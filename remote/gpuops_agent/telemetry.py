"""The host during a block: cards, foreign processes, requests, compilers, once a second; and what of it spoils a measurement.

Rejections never look at a result. A power cap is recorded and no reason to reject: capped cards run at it all the time.
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import AbstractSet, Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set

from . import cards, counters, gpus, proc, xid
from .ask import Silent, output
from .cards import Strangers
from .records import ServerRecord
from .server import Server

PERIOD_S = 1.0

# Who else holds memory of a card is asked less often: it takes two more calls of the driver.
PROCESSES_EVERY = 5
TIMEOUT_S = 5.0

# Reasons that mean a card in trouble, with and without the newer prefix (it changed with driver 535).
THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
RECORDED = ("sw_power_cap",)
_FIELDS = ("index", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "memory.used")
_PREFIXES = ("clocks_event_reasons", "clocks_throttle_reasons")


@dataclass(frozen=True)
class CardSample:
    """One card now: MHz, degrees Celsius, watts, MiB; None for what it does not tell. ``reasons`` are why its clock is below the most."""

    index: int
    sm_mhz: Optional[float]
    memory_mhz: Optional[float]
    celsius: Optional[float]
    watts: Optional[float]
    used_mib: Optional[float]
    reasons: FrozenSet[str]

    def to_json(self) -> Dict[str, Any]:
        return {**vars(self), "reasons": sorted(self.reasons)}


@dataclass(frozen=True)
class Sample:
    """One look. ``at`` is in seconds since boot; ``cards`` are the server's; ``foreign`` names other processes on them, ``elsewhere`` those on cards
    that it does not use; ``compilers`` its own children that compile."""

    at: float
    running: Optional[float]
    queued: Optional[float]
    generated: Optional[float]
    load: float
    cards: Sequence[CardSample] = ()
    foreign: Sequence[str] = ()
    compilers: Sequence[str] = ()
    elsewhere: Sequence[str] = ()

    def to_json(self) -> Dict[str, Any]:
        return {
            **vars(self),
            "cards": [card.to_json() for card in self.cards],
            "foreign": list(self.foreign),
            "compilers": list(self.compilers),
            "elsewhere": list(self.elsewhere),
        }


@dataclass
class Watch:
    """Looks at the host while a block runs. ``words`` is ``load`` of the engine's facts, ``document`` the release's."""

    server: Server
    record: ServerRecord
    words: Mapping[str, Any]
    log: Path
    document: Dict[str, Any]
    samples: List[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = proc.boottime()
        self._log_at = _size(self.log)
        self._cards = gpus.cards()
        self._own = cards.of_release(self.document, self._cards)
        self._strangers = Strangers()
        self._prefix = _PREFIXES[0]

    def look(self) -> Sample:
        """Take one sample."""
        counted = counters.read(self.server, self.words, TIMEOUT_S)
        ours = {stat.pid: stat.comm for stat in proc.descendants(self.record.pid)}
        if self._cards and len(self.samples) % PROCESSES_EVERY == 0:
            self._strangers = foreign(gpus.processes_on_gpus(), {self.record.pid, *ours}, self._own)
        sample = Sample(
            at=round(proc.boottime(), 3),
            running=counted.running if counted else None,
            queued=counted.queued if counted else None,
            generated=counted.generated if counted else None,
            load=os.getloadavg()[0],
            cards=self._ask_cards() if self._cards else (),
            foreign=self._strangers.ours,
            compilers=[f"{name} (pid {pid})" for pid, name in sorted(ours.items()) if name in self.words["jit"]["programs"]],
            elsewhere=self._strangers.elsewhere,
        )
        self.samples.append(sample)
        return sample

    def faults(self, concurrency: int) -> List[str]:
        """Why the block, from the first look to now, cannot be used."""
        return judge(
            self.samples, concurrency, compile_lines(_since(self.log, self._log_at), self.words), xid.recent(self._began)
        )

    def notes(self) -> List[str]:
        """What else was there, and spoils nothing."""
        return sorted({who for sample in self.samples for who in sample.elsewhere})

    def _ask_cards(self) -> Sequence[CardSample]:
        for prefix in (self._prefix, *_PREFIXES):
            names = [*_FIELDS, *(f"{prefix}.{reason}" for reason in (*THROTTLES, *RECORDED))]
            try:
                found = parse_cards(
                    output(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"], TIMEOUT_S)
                )
            except (Silent, ValueError, IndexError):
                continue
            self._prefix = prefix
            return [card for card in found if card.index in self._own]
        return ()


def judge(samples: Sequence[Sample], concurrency: int, compile_lines: Sequence[str], xids: Sequence[str]) -> List[str]:
    """What happened on the host that spoils a block; [] when nothing did."""
    found = []
    throttled = {(card.index, reason) for sample in samples for card in sample.cards for reason in card.reasons & set(THROTTLES)}
    found += [f"card {index} was throttled: {reason}" for index, reason in sorted(throttled)]
    found += sorted({who for sample in samples for who in sample.foreign})
    crowd = [sample.running + sample.queued for sample in samples if sample.running is not None and sample.queued is not None]
    if crowd and max(crowd) > concurrency:
        found.append(f"other requests were served: {max(crowd):.0f} at a time, of which {concurrency} ours")
    compiled = sorted({who for sample in samples for who in sample.compilers})
    found += [f"kernels were compiled: {', '.join(compiled)}"] if compiled else []
    found += [f"kernels were compiled, by the log: {compile_lines[0]}"] if compile_lines else []
    found += [f"the driver reported an error: {xids[0]}"] if xids else []
    return found


def foreign(on_cards: Sequence[gpus.GpuProcess], ours: Set[int], own: AbstractSet[int]) -> Strangers:
    """Who else has memory on the cards, ``own`` being the server's. A driver that counts processes in another pid namespace names none of ours, and
    tells nothing."""
    if not any(each.pid in ours for each in on_cards):
        return Strangers()
    return cards.strangers(on_cards, ours, own)


def compile_lines(text: str, words: Mapping[str, Any]) -> List[str]:
    """The lines of a log that tell of a compile."""
    patterns = [re.compile(pattern) for pattern in words["jit"]["lines"]]
    return [line.strip() for line in text.splitlines() if any(pattern.search(line) for pattern in patterns)]


def parse_cards(text: str) -> List[CardSample]:
    """CSV without header and units, in the order of our fields. Raises ValueError, IndexError."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        index, sm, memory, celsius, watts, used, *states = row
        reasons = frozenset(name for at, name in enumerate((*THROTTLES, *RECORDED)) if states[at].strip() == "Active")
        found.append(
            CardSample(int(index), _number(sm), _number(memory), _number(celsius), _number(watts), _number(used), reasons)
        )
    return found


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _since(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
