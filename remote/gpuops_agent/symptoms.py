"""What a server's log says of a failure: every line held against a table of known failures, and the one line that tells why.

The table is data: it comes with the order (``engine["meaningful"]["signatures"]``, see ``gpuops/engines/failures``). A row is a *fatal* cause, a
*consequence* (a wrapper, or what those say who were left), or a *hint*. The verdict is the earliest line that names a specific cause. Wrappers and
advice never win over one, wherever they stand; words of the kernel and the hardware (weight 3) win over all that follows from them.
"""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass
from typing import Any, Deque, Dict, List, Mapping, Optional, Tuple

from .signatures import CONSEQUENCE, FATAL, GENERAL, HARDWARE, HINT, SPECIFIC, UNKNOWN, Signature, older, signature
from .tracebacks import Tracebacks, is_head

LONGEST = 500
"""Characters of a line that are shown."""

# Only so much of a line is searched: an engine prints all its arguments on one line, and a request may hold a book.
_SEARCHED = 4000

# Words of a line that tells of a failure, in whatever words; and of one that only counts or denies them.
_SPEAKS_OF_IT = re.compile(
    r"(?i)\b(?:fail(?:ed|ure|s)?|errors?|fatal|assertion|crash(?:ed)?|refused|lost)\b|\w(?:Error|Exception)\b"
)
_DENIES_IT = re.compile(r"(?i)\bno (?:known )?(?:errors?|failures?)\b|\b(?:errors?|failures?|failed)\b[\w ]{0,20}[:=] ?0\b")
# c10d only warns of a connection that it has lost.
_C10D = re.compile(r"^\[(?:c10d|PG )")
_CODE = re.compile(r"^(?:raise\b|assert\b|except\b)")
_NAMED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)\b")
# What may stand between two tracebacks of one exception.
_CHAIN = re.compile(r"^(?:\s*$|During handling of the above exception|The above exception was the direct cause)")
# How a process ends that was asked to: SIGTERM, SIGINT, or by itself.
_PEACEFUL = re.compile(r"exit ?code[ =]-?(?:15|143|2|0)\b")
_END_OF_CHOICE = "Ignoring this choice."
# These have no prefix of the log's, and are no part of a traceback.
_OWN_VOICE = re.compile(r"^(?:\[rank\d+\]:|Fatal Python error|terminate called|\*\*\* SIG|!+ Segfault|\[?[VIWEF]\d{4} )")
_SHOWN = 10  # lines that speak of a failure in unknown words
_KEPT = 400  # mere exceptions, and one of each kind otherwise: more than these say no more

_OUR_RANK = re.compile(r"^\.*\[rank(?P<rank>\d+)\]: ?")
# glog, as c10d and torch's own logging write it: "[rank0]:[E1129 12:00:00.123 ProcessGroupNCCL.cpp:552] text", "[rank0]:W1129 ... file.py:10] text".
_GLOG = re.compile(r"^(?:\[rank\d+\]:)?\[?(?P<level>[VIWEF])\d{0,4} [\d:.]+ [^\]]*\] ?(?:\[\d+/\d+\] ?)?")
# "(EngineCore_0 pid=12) ERROR 11-29 12:00:00 [core.py:700] text": the level stays.
_OTHER_LOGGER = re.compile(r"^(?:\([^)]*pid=\d+[^)]*\) )?(?P<level>[A-Z]{4,8}) \d\d-\d\d [\d:.,]+ (?:\[[^\]]*\]|\S+:\d+\]) ?")
_GROUP = re.compile(r"^\s*\| ?")  # a line of a Python exception group
_EXCEPTION = re.compile(
    r"^(?:- )?(?:[A-Za-z_]\w*(?:\.\w+)+: "
    r"|(?:[A-Za-z_]\w*\.)*(?:Exception|Error(?=: )|[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failed|Failure))\b ?(?::|\(|$)"
    r"|what\(\): |(?:CRITICAL|ERROR|FATAL)\b|\[\w+\] (?:CRITICAL|ERROR)\b|\S+: (?:fatal )?error: )"
)


@dataclass
class Symptom:
    """A line that a signature was found in.

    ``number`` is the line's, from 1; ``rank`` is the writer's, empty where there is but one; ``raised``: it is the exception of a traceback.
    """

    signature: Signature
    text: str
    number: int
    rank: str
    phase: Optional[str]
    where: str
    raised: bool = False
    survived: bool = False
    later_signs: int = 0


@dataclass(frozen=True)
class Verdict:
    """What the log says: the class, the line that tells it, and what only followed from it."""

    signature: Signature
    symptom: Symptom
    consequences: List[Symptom]
    hints: List[Symptom]


class Symptoms:
    """Reads the log of a server, or of several one after the other, line by line.

    Args:
        meaningful: of the order's engine. One of an older gpuops, without ``signatures``, still tells causes from wrappers.

    Attributes:
        lives: how many servers have begun in it.
    """

    def __init__(self, meaningful: Mapping[str, Any]) -> None:
        self._table = [signature(row) for row in meaningful.get("signatures") or older(meaningful)]
        self._harmless = _patterns(meaningful.get("harmless", []))
        self._quoting = _patterns(meaningful.get("quoting", []))
        self._soft = _patterns(meaningful.get("survived", []))
        self._serving = _patterns(meaningful.get("serving", []))
        self._noise = _patterns(meaningful.get("noise", []))
        self._births = _patterns(meaningful.get("births", []))
        self._stopping = _patterns(meaningful.get("stopping", []))
        self.lives = 0
        self._found: List[Symptom] = []
        self._earlier: Optional[Verdict] = None
        self._asked = False
        self._open: Deque[str] = collections.deque(maxlen=_SHOWN)
        self._announces = False
        self._harmless_part = ""
        self._record = 0
        self._rank = ""
        self._traceback = Tracebacks()

    def take(self, message: str, *, number: int, starts_record: bool, rank: str, phase: Optional[str]) -> None:
        """One line of the log, without its prefix. ``starts_record``: it had one."""
        announced, self._announces = self._announces and not starts_record, False
        if starts_record:
            # A traceback has no prefix of its own: it lasts until the next record of the log.
            self._harmless_part = ""
            self._record = number
            self._rank = rank
            self._traceback.forget()
        if any(pattern.search(message[:_SEARCHED]) for pattern in self._births):
            self._begin_life()
        if any(pattern.search(message) for pattern in self._serving):
            self._earlier = None
            self.went_on(self._rank)
            return
        self._asked = self._asked or any(pattern.search(message[:_SEARCHED]) for pattern in self._stopping)
        if any(pattern.search(message[:_SEARCHED]) for pattern in self._harmless):
            self._harmless_part = "head"
            return
        text, level = _bare(message[:_SEARCHED])
        if self._is_harmless(message, text) or self._traceback.take(text):
            return
        rows, text = self._match(text, level, announced)
        if self._asked and all(_follows_a_stop(row, text) for row in rows):
            return
        own = _OUR_RANK.match(message)
        who = f"rank{own['rank']}" if own else self._rank
        for row in rows:
            self._add(Symptom(row, text.strip()[:LONGEST], number, who, phase, self._traceback.innermost, self._traceback.raised))

    def went_on(self, rank: str, *, all_ranks: bool = False) -> None:
        """A sign that the server goes on: what was wrong before has not ended it.

        Args:
            rank: who gave the sign. Another rank may be some batches behind the fault: of it, three signs are wanted.
            all_ranks: the sign comes only when every rank has got there.
        """
        self._open.clear()
        if all_ranks:
            self._earlier = None
        for symptom in self._found:
            if symptom.signature.ends or symptom.signature.stands or symptom.signature.weight == HARDWARE:
                continue
            symptom.later_signs += 1
            if all_ranks or symptom.rank == rank or symptom.later_signs >= 3:
                symptom.survived = True

    def verdict(self) -> Optional[Verdict]:
        """The cause; else the best of what only wraps one; None when nothing is wrong in the log.

        In a log of several servers, one after the other, it is the last one's; an earlier one's while the last has neither failed nor served.
        """
        return self._verdict() or self._earlier

    def _begin_life(self) -> None:
        """A server begins. Another one before it in the same log is over, whatever it had come to."""
        self.lives += 1
        if self.lives > 1:
            self._earlier = self._verdict() or self._earlier
            self._found.clear()
            self._open.clear()
        self._asked = False

    def _verdict(self) -> Optional[Verdict]:
        standing = [each for each in self._found if not each.survived]
        fatal = [each for each in standing if each.signature.kind == FATAL]
        wrappers = [each for each in standing if each.signature.kind == CONSEQUENCE]
        mere = sorted([*fatal, *(each for each in wrappers if each.signature.weight == SPECIFIC)], key=_place)
        # Of mere exceptions that one counts which the engine itself announced: another may have been caught.
        announced = min((each.number for each in wrappers if each.signature.opens), default=0)
        chosen = (
            _first(fatal, HARDWARE)
            or _first(fatal, SPECIFIC)
            or _first([each for each in mere if each.number > announced], SPECIFIC, GENERAL)
            or _first(mere, SPECIFIC, GENERAL)
            or _first([each for each in wrappers if each.number > announced and each.raised], GENERAL)
            or _first(wrappers, GENERAL)
        )
        if chosen is None:
            return None
        lender = next((each for each in wrappers if each.signature.lends), None)
        if lender is None or chosen.signature.name != UNKNOWN:
            return Verdict(chosen.signature, chosen, _others(standing, chosen), self.hints())
        if chosen.text.endswith(":"):
            # An exception whose words begin on the next line.
            chosen = lender
        return Verdict(lender.signature, chosen, _others(standing, chosen), self.hints())

    def hints(self) -> List[Symptom]:
        """What the log shows that is no failure, one of each class."""
        return _distinct([each for each in self._found if each.signature.kind == HINT])

    @property
    def unexplained(self) -> List[str]:
        """The last lines that speak of a failure in words that the table does not have, since the server has last gone on."""
        return list(self._open)

    @property
    def line(self) -> Optional[str]:
        """The verdict's line, or None."""
        verdict = self.verdict() if self._found else None
        return verdict.symptom.text if verdict else None

    @property
    def doomed(self) -> Optional[str]:
        """The verdict's line, once a line has been read after which the server never gets ready; None before."""
        return self.line if any(each.signature.ends and not each.survived for each in self._found) else None

    def _add(self, symptom: Symptom) -> None:
        """Only the first of its kind counts; a log of days must not fill up with what was survived."""
        if symptom.signature.settles:
            self._found = [each for each in self._found if each.signature.name != UNKNOWN or each.number < self._record]
        if symptom.signature.name != UNKNOWN and any(
            each.signature is symptom.signature and each.rank == symptom.rank and not each.survived for each in self._found
        ):
            return
        if len(self._found) >= _KEPT:
            self._found = [each for each in self._found if not each.survived]
        if len(self._found) < _KEPT:
            self._found.append(symptom)

    def _is_harmless(self, message: str, text: str) -> bool:
        """Whether a line is of the traceback, chained ones included, that a harmless line has begun."""
        if not self._harmless_part or _OWN_VOICE.match(message):
            self._harmless_part = ""
            return False
        if text.rstrip().endswith(_END_OF_CHOICE):
            self._harmless_part = ""
            return True
        if self._harmless_part == "told" and not _CHAIN.match(text) and not is_head(text):
            self._harmless_part = ""
            return False
        if not _CHAIN.match(text):
            self._traceback.take(text)
            self._harmless_part = "told" if self._traceback.raised else "head"
        return True

    def _hear(self, text: str) -> None:
        """A line that no row fits."""
        if not _SPEAKS_OF_IT.search(text) or _DENIES_IT.search(text):
            return
        if not any(pattern.search(text) for pattern in (*self._soft, *self._noise)):
            self._open.append(text.strip()[:LONGEST])

    def _match(self, text: str, level: str, announced: bool) -> Tuple[List[Signature], str]:
        """The rows that fit, the most telling first, and the text that they fit to. ``announced``: the line before was an exception that ends in a
        colon, whose words begin here."""
        if level in ("V", "I", "W") or any(pattern.search(text) for pattern in self._quoting):
            if level == "W" and _C10D.match(text):
                self._hear(text)
            return [], text
        stripped = _GROUP.sub("", text).lstrip()
        raised = _EXCEPTION.match(stripped) is not None
        if (text[:1].isspace() and not raised) or _CODE.match(stripped):
            # A frame's source (a report may have lost its indentation), or the second line of a warning: it only quotes.
            return [], text
        self._announces = stripped.endswith(":") and _NAMED.match(stripped) is not None
        rows = self._look_up(stripped, raised or announced or self._traceback.worded or level in ("E", "F"))
        if not rows and self._traceback.raised and not any(pattern.search(stripped) for pattern in self._soft):
            # The table's last row knows exceptions by their names; this one has another sort of name.
            rows = [row for row in self._table if row.name == UNKNOWN and row.kind == FATAL]
        if not rows:
            self._hear(stripped)
        return rows, stripped

    def _look_up(self, text: str, error: bool) -> List[Signature]:
        """The first row of the table that fits; of a wrapper that quotes its cause, the cause's row too. ``error``: the line says that it is one."""
        for row in self._table:
            if row.only_in_exceptions and not error:
                continue
            found = row.pattern.search(text)
            if not found or (row.at and not any(row.at.search(frame) for frame in self._traceback.frames)):
                continue
            if row.raised_at and not row.raised_at.search(self._traceback.innermost):
                continue
            plain = row.kind != HINT and row.weight != HARDWARE and not row.in_warnings
            if plain and not error and any(pattern.search(text) for pattern in self._soft):
                continue
            inner = next((value for name, value in found.groupdict().items() if name.startswith("inner") and value), "")
            causes = self._look_up(inner, True) if inner else []
            if causes and causes[0].kind == CONSEQUENCE and causes[0].weight == GENERAL:
                # It quotes one of those who were left: no wrapper of a cause.
                return causes
            return [*(each for each in causes[:1] if each.kind == FATAL and each.name != UNKNOWN), row]
        return []


def _patterns(texts: List[str]) -> "List[re.Pattern[str]]":
    return [re.compile(text) for text in texts]


def _bare(message: str) -> Tuple[str, str]:
    """The message without a second logger's prefix, and that one's level (a letter), empty where it has none."""
    message = _OUR_RANK.sub("", message, count=1)
    glog = _GLOG.match(message)
    if glog:
        return message[glog.end() :], glog["level"]
    other = _OTHER_LOGGER.match(message)
    if other:
        return f"{other['level']}: {message[other.end() :]}" if other["level"] in ("WARNING", "INFO", "DEBUG") else message[
            other.end() :
        ], ("E" if other["level"] in ("ERROR", "CRITICAL", "FATAL") else "")
    return message, ""


def _follows_a_stop(row: Signature, text: str) -> bool:
    """Whether a row that fits tells only of the end that somebody had asked for."""
    return row.kind == CONSEQUENCE and (row.weight == GENERAL or _PEACEFUL.search(text) is not None)


def _place(symptom: Symptom) -> int:
    return symptom.number


def _first(symptoms: List[Symptom], *weights: int) -> Optional[Symptom]:
    """The earliest of these weights."""
    return next((each for each in symptoms if each.signature.weight in weights), None)


def _others(standing: List[Symptom], chosen: Symptom) -> List[Symptom]:
    """What the cause led to, or what only wraps it: one of each class, in the log's order."""
    counted = [
        each for each in standing if each.signature.kind != HINT and each.signature.name not in (chosen.signature.name, UNKNOWN)
    ]
    return _distinct(counted)


def _distinct(symptoms: List[Symptom]) -> List[Symptom]:
    first: Dict[str, Symptom] = {}
    for each in symptoms:
        first.setdefault(each.signature.name, each)
    return list(first.values())
