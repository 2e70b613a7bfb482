"""Read a server's log as it grows: the phase it is in, how far it is, its last meaningful line, and the line that tells why it died.

Pure text in, facts out. All words of an engine come from the order's ``engine`` object (``gpuops/engines``); what is known here is only
what every Python server has: progress bars that end in ``\\r`` or in nothing, colours, and lines that arrive in pieces.
"""

from __future__ import annotations

import collections
import re
from typing import Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Pattern, Tuple

from .symptoms import LONGEST, Symptoms

# A tqdm bar ends here; the next log line follows on the same line, without a newline.
_BAR_END = re.compile(r"\[[^\[\]]*(?:it/s|s/it)\][ \t]?")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00\ufeff]")
# What others put in front of every line, one before the other: docker compose, kubernetes, a build server, journalctl, Ray, a Python program that
# runs the server, mpirun, a table of Grafana's.
_CARRIER = re.compile(
    r"^(?:[\w.-]+ +\| ?|\[\d{4}-\d\d-\d\dT[\d:.]+Z?\] |\([^()]*\bpid=\d+[^()]*\) "
    r"|\S+T[\d:.]+(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?|[A-Z][a-z]{2} +\d+ [\d:]+ \S+ [^\s\[]+\[\d+\]: "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ - \S+ - [A-Z]+ - |\[\d+,\d+\]<std(?:out|err)>: ?"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?=\[\d{4}-)|(?:\s*\|)+\s*\d{4}-\d\d-\d\d[T ][\d:.]+Z? \| ?)+"
)
# From here on every rank has got there: the server's own HTTP listens only after all of them are ready.
_ALL_RANKS = ("warm-up", "listening")
_TAIL = 400
"""So many of the last lines that say something are kept, for whoever must judge what the table does not know."""


class PhaseMark(NamedTuple):
    """The server entered ``phase``, or got on in it.

    ``detail`` is the engine's word for the step inside the phase, or empty; ``progress`` is from 0 to 1, or None when the log does not tell.
    """

    phase: str
    detail: str
    progress: Optional[float]


class LogReader:
    """Follows one launch of one server.

    Phases only go forward, in the order of ``engine["phases"]``: a line of an earlier phase (a second rank, a warm-up that is announced late)
    changes nothing.

    Attributes:
        mark: the latest phase mark, or None before the first.
        last_meaningful: the last line that says something about the server's course; empty before the first.
        symptoms: what it says of failures.
    """

    def __init__(self, engine: Mapping[str, Any]) -> None:
        meaningful = engine["meaningful"]
        self._phases = [_Phase(row) for row in engine["phases"]]
        self._order = _order_of_phases(engine["phases"])
        self._prefix = re.compile(meaningful["prefix"])
        self._noise = [re.compile(pattern) for pattern in meaningful["noise"]]
        self.symptoms = Symptoms(meaningful)
        self._pending = ""
        self._number = 1
        self._tail: Deque[str] = collections.deque(maxlen=_TAIL)
        self.mark: Optional[PhaseMark] = None
        self.last_meaningful = ""

    @property
    def phase(self) -> Optional[str]:
        """The phase that the server is in, or None before the first mark."""
        return self.mark.phase if self.mark else None

    @property
    def fatal(self) -> Optional[str]:
        """The line that names a cause of death best; else the one that only wraps one; None when there is neither.

        It says something about a server that died; a living server may have logged an error that it survived.
        """
        return self.symptoms.line

    @property
    def doomed(self) -> Optional[str]:
        """The same line, once the log has said that the server never gets ready; its process may live on for minutes. None before."""
        return self.symptoms.doomed

    @property
    def tail(self) -> List[str]:
        """The last lines that say something, the oldest first."""
        return list(self._tail)

    def feed(self, text: str) -> List[PhaseMark]:
        """Take the next piece of the log, of any length, cut anywhere. The marks are those that changed, in order."""
        lines, self._pending = _split(self._pending + text)
        return self._read(lines)

    def finish(self) -> List[PhaseMark]:
        """The server has ended: what is left without a newline is a line too."""
        lines, self._pending = [self._pending], ""
        return self._read(lines)

    def _read(self, lines: List[str]) -> List[PhaseMark]:
        marks = [self._take(line) for line in lines]
        return [mark for mark in marks if mark is not None]

    def _take(self, raw: str) -> Optional[PhaseMark]:
        number = self._number
        self._number += raw.endswith("\n")
        line = _CARRIER.sub("", _COLOUR.sub("", raw).rstrip(), count=1)
        prefix = self._prefix.match(line)
        message = line[prefix.end() :] if prefix else line
        rank = (prefix.groupdict().get("rank") or "") if prefix else ""
        lives = self.symptoms.lives
        self.symptoms.take(message, number=number, starts_record=prefix is not None, rank=rank, phase=self.phase)
        if self.symptoms.lives > max(lives, 1):
            # Another server begins in the same log.
            self.mark = None
        if not any(pattern.search(message) for pattern in self._noise):
            self.last_meaningful = message[:LONGEST]
            self._tail.append(self.last_meaningful)
        before = self.phase
        mark = self._advance(message)
        if mark is not None and mark.phase != before:
            self.symptoms.went_on(rank, all_ranks=mark.phase in _ALL_RANKS)
        return mark

    def _advance(self, message: str) -> Optional[PhaseMark]:
        for phase in self._phases:
            mark = phase.match(message)
            if mark is None:
                continue
            if self.mark and self._order[mark.phase] < self._order[self.mark.phase]:
                return None
            if mark == self.mark:
                return None
            self.mark = mark
            return mark
        return None


class _Phase:
    """One row of ``engine["phases"]``."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._phase: str = row["phase"]
        self._detail: str = row.get("detail", "")
        self._progress: Optional[float] = row.get("progress")
        self._pattern: Pattern[str] = re.compile(row["pattern"])

    def match(self, message: str) -> Optional[PhaseMark]:
        found = self._pattern.search(message)
        if not found:
            return None
        groups = found.groupdict()
        if groups.get("total"):
            return PhaseMark(self._phase, self._detail, _share(groups["done"], groups["total"]))
        return PhaseMark(self._phase, self._detail, self._progress)


def _share(done: str, total: str) -> Optional[float]:
    return round(int(done) / int(total), 2) if int(total) else None


def _order_of_phases(rows: List[Dict[str, Any]]) -> Dict[str, int]:
    order: Dict[str, int] = {}
    for row in rows:
        order.setdefault(row["phase"], len(order))
    return order


def _split(text: str) -> Tuple[List[str], str]:
    """Whole lines with their ends, and the rest. ``\\n``, ``\\r`` and the end of a progress bar end a line."""
    lines: List[str] = []
    for piece in re.split(r"(?<=[\r\n])", text):
        while True:
            bar = _BAR_END.search(piece)
            if not bar:
                break
            lines.append(piece[: bar.end()])
            piece = piece[bar.end() :]
        if piece.endswith(("\n", "\r")):
            lines.append(piece)
        elif piece:
            # Only the last piece has no end.
            return lines, piece
    return lines, ""
