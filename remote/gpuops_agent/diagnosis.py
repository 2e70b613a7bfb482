"""Why did it fail? One answer from the log, how the process ended, the kernel log and what the processes do; "unknown" when that is the truth."""

from __future__ import annotations

import signal as signals
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional

from .logread import LogReader
from .look import Scene
from .signatures import CONSEQUENCE, GENERAL, HARDWARE, SPECIFIC, UNKNOWN
from .stall import Stall
from .symptoms import Symptom, Symptoms, Verdict

KILLED, EXIT_ZERO, NATIVE_CRASH, RANK_DIED = "killed", "exit_zero", "native_crash", "rank_died"

HIGH, MEDIUM, LOW = "high", "medium", "low"

_CRASHES = frozenset({signals.SIGSEGV, signals.SIGBUS, signals.SIGABRT, signals.SIGILL, signals.SIGFPE})
_LINES = 10
"""So many lines are shown of what the table does not know."""

_CARD_CLASSES = ("illegal_memory_access", "device_assert")


@dataclass(frozen=True)
class Ending:
    """How the server stands. ``alive`` None: nobody knows, there is only a log. ``asked``: somebody had asked it to stop.

    With a ``rank`` (its title), it is that one which has ended so, while the server lived.
    """

    alive: Optional[bool] = None
    code: Optional[int] = None
    signal: Optional[int] = None
    asked: bool = False
    rank: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The answer.

    Attributes:
        name: the failure's class; empty when nothing is wrong, ``unknown`` when something is and nobody knows what.
        also: another name of the class.
        what: the class in words.
        phase: where the server was, None before the first phase.
        evidence: the one line that shows it; ``number`` is its line in the log (from 1), 0 when it is not from there.
        where: file, line and function of the innermost frame, where the evidence is an exception's last line.
        waits_for: of a stall, what it waits for.
        consequences: what followed from it, or only wraps it: ``{class, line, text}``.
        hints: what else the log shows that is no failure: ``{class, line, text}``.
        facts: what is known beside the log.
        lines: the lines that matter, where the class is not known.
        cure: what helps.
        confidence: high, medium or low.
    """

    name: str
    what: str
    phase: Optional[str]
    confidence: str
    also: str = ""
    evidence: str = ""
    number: int = 0
    rank: str = ""
    where: str = ""
    waits_for: str = ""
    cure: str = ""
    restart_cures: Optional[bool] = None
    consequences: List[Dict[str, Any]] = field(default_factory=list)
    hints: List[Dict[str, Any]] = field(default_factory=list)
    facts: List[str] = field(default_factory=list)
    lines: List[str] = field(default_factory=list)

    @property
    def sure(self) -> bool:
        """Whether its evidence and cure may stand where a person looks first."""
        return bool(self.name) and self.name != UNKNOWN and self.confidence != LOW

    def to_json(self) -> Dict[str, Any]:
        told = asdict(self)
        return {"class": told.pop("name") or None, **told}


def diagnose(
    reader: LogReader,
    ending: Ending = Ending(),
    scene: Optional[Scene] = None,
    stall: Optional[Stall] = None,
    meaningful: Optional[Mapping[str, Any]] = None,
) -> Diagnosis:
    """Decide.

    Args:
        reader: has read the launch's log.
        stall: what a silent start waits for; only for one that is silent.
        meaningful: the engine's, to read the kernel log's lines by.
    """
    kernel = _of_kernel(scene, meaningful)
    log = reader.symptoms.verdict()
    facts = _facts(ending, scene, kernel, log, stall)
    if kernel is not None and (kernel.signature.weight == HARDWARE or log is None or log.signature.weight == GENERAL):
        beside = replace(kernel.symptom, number=0, phase=reader.phase)
        return _from(replace(kernel, symptom=beside), reader, HIGH, facts, log)
    if log is not None and log.signature.weight >= SPECIFIC and log.signature.kind != CONSEQUENCE:
        return _from(log, reader, _confidence(log, reader, ending), facts)
    if stall is not None:
        return _of_stall(stall, reader, facts, log)
    ended = _of_end(reader, ending, facts, log)
    if ended is not None:
        return ended
    if log is not None:
        return _from(log, reader, _confidence(log, reader, ending), facts)
    return _nothing(reader, ending, facts)


def failed(ending: Ending) -> bool:
    """Whether the server has ended without being asked to."""
    return ending.alive is False and not ending.asked


def brief(told: Diagnosis) -> Dict[str, Any]:
    """What an event and an outcome carry of it."""
    keep = ("class", "what", "phase", "confidence", "evidence", "waits_for", "cure", "restart_cures", "consequences", "facts")
    whole = told.to_json()
    return {key: whole[key] for key in keep if whole[key] or key == "class"}


def redacted(told: Diagnosis, redact: Callable[[str], str]) -> Diagnosis:
    """The same with every text passed through ``redact``."""
    return replace(told, **{name: _redacted(value, redact) for name, value in vars(told).items()})


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(each, redact) for each in value]
    if isinstance(value, dict):
        return {key: _redacted(each, redact) for key, each in value.items()}
    return value


def _from(verdict: Verdict, reader: LogReader, confidence: str, facts: List[str], log: Optional[Verdict] = None) -> Diagnosis:
    """``log``: what the log says, where the verdict is the kernel log's."""
    symptom, row = verdict.symptom, verdict.signature
    after = [*([log.symptom] if log else []), *(log or verdict).consequences]
    return Diagnosis(
        name=row.name,
        what=row.what,
        # The evidence's own: what the log says after it is of another rank, or of the way down.
        phase=symptom.phase,
        confidence=confidence,
        also=row.also,
        evidence=symptom.text,
        number=symptom.number,
        rank=symptom.rank,
        where=symptom.where,
        cure=row.cure,
        restart_cures=row.restart_cures if row.name != UNKNOWN else None,
        consequences=[_told(each) for each in after],
        hints=[_told(each) for each in (log or verdict).hints],
        facts=facts,
        lines=_lines(reader, symptom) if confidence == LOW else [],
    )


def _of_stall(stall: Stall, reader: LogReader, facts: List[str], log: Optional[Verdict]) -> Diagnosis:
    return Diagnosis(
        name=stall.name,
        what=f"it waits for {stall.waits_for}",
        phase=reader.phase,
        confidence=LOW if stall.name == "silent_stall" else MEDIUM,
        evidence=stall.evidence,
        waits_for=stall.waits_for,
        cure=stall.cure,
        restart_cures=stall.restart_cures,
        consequences=[_told(each) for each in ([log.symptom, *log.consequences] if log else [])],
        facts=facts,
        lines=reader.tail[-_LINES:],
    )


def _of_end(reader: LogReader, ending: Ending, facts: List[str], log: Optional[Verdict]) -> Optional[Diagnosis]:
    """What the way in which it ended says, where the log names no cause of its own; None when it says nothing."""
    if not failed(ending) or (log is not None and (log.symptom.signature.kind != CONSEQUENCE or log.signature.weight != GENERAL)):
        return None
    after = [_told(each) for each in ([log.symptom, *log.consequences] if log else [])]
    common: Dict[str, Any] = {
        "phase": reader.phase,
        "evidence": reader.last_meaningful,
        "consequences": after,
        "facts": facts,
        "lines": reader.tail[-_LINES:],
    }
    if ending.signal in _CRASHES:
        name = signals.Signals(ending.signal).name
        cure = "the stack in gpuops logs (PYTHONFAULTHANDLER=1 in server.env brings one); compare its libraries with the last good ones"
        return Diagnosis(
            name=NATIVE_CRASH, what=f"native code crashed ({name})", confidence=HIGH, cure=cure, restart_cures=True, **common
        )
    if log is not None:
        return None
    if ending.rank:
        what = f"{ending.rank} ended while its server lived, and said nothing"
        cure = "the kernel log (gpuops doctor), or who killed it; then gpuops restart"
        return Diagnosis(name=RANK_DIED, what=what, confidence=MEDIUM, cure=cure, restart_cures=True, **common)
    if ending.signal in (signals.SIGKILL, signals.SIGTERM):
        name = signals.Signals(ending.signal).name
        cure = "who did it: gpuops exec -- journalctl -e, a container's limit (memory.events), a batch system, a person; then gpuops restart"
        return Diagnosis(
            name=KILLED, what=f"somebody outside ended it ({name})", confidence=MEDIUM, cure=cure, restart_cures=True, **common
        )
    if ending.code == 0:
        what = "it ended by itself with status 0, though nobody had asked it to: that is a crash too"
        return Diagnosis(
            name=EXIT_ZERO, what=what, confidence=MEDIUM, cure="gpuops logs: its last lines", restart_cures=True, **common
        )
    return None


def _nothing(reader: LogReader, ending: Ending, facts: List[str]) -> Diagnosis:
    hints = [_told(each) for each in reader.symptoms.hints()]
    if failed(ending):
        return Diagnosis(
            name=UNKNOWN,
            what="it ended, and nothing says why",
            phase=reader.phase,
            confidence=LOW,
            evidence=reader.last_meaningful,
            cure="gpuops logs",
            hints=hints,
            facts=facts,
            lines=reader.tail[-_LINES:],
        )
    words = {
        True: "it lives, and nothing is wrong in its log",
        False: "it was stopped, and nothing is wrong in its log",
        None: f"nothing is wrong in the log, which ends in phase {reader.phase or 'launch'}",
    }
    unexplained = [] if ending.asked else reader.symptoms.unexplained
    what, confidence = words[ending.alive], MEDIUM
    if unexplained and ending.alive is None:
        what, confidence = "the log names no known failure; these lines may tell of another", LOW
    common: Dict[str, Any] = {"hints": hints, "facts": facts, "lines": unexplained}
    return Diagnosis(name="", what=what, phase=reader.phase, confidence=confidence, **common)


def _confidence(verdict: Verdict, reader: LogReader, ending: Ending) -> str:
    row = verdict.symptom.signature
    if verdict.signature.name == UNKNOWN or row.weight == GENERAL:
        return LOW if verdict.signature.weight == GENERAL else MEDIUM
    if row.kind == CONSEQUENCE:
        return MEDIUM
    known = ending.alive is False or row.stands or reader.doomed is not None
    return HIGH if known else MEDIUM


def _of_kernel(scene: Optional[Scene], meaningful: Optional[Mapping[str, Any]]) -> Optional[Verdict]:
    if scene is None or meaningful is None or not scene.kernel:
        return None
    lines = Symptoms(meaningful)
    for number, line in enumerate(scene.kernel, 1):
        lines.take(line, number=number, starts_record=False, rank="", phase=None)
    return lines.verdict()


def _facts(
    ending: Ending, scene: Optional[Scene], kernel: Optional[Verdict], log: Optional[Verdict], stall: Optional[Stall]
) -> List[str]:
    facts = []
    if ending.alive is False:
        facts.append((f"{ending.rank}: " if ending.rank else "") + _how(ending, scene, log))
    elif ending.alive:
        facts.append("its process lives")
    if scene is None:
        return facts
    facts += [f"kernel log: {line}" for line in scene.kernel[:5]]
    if kernel is not None and log is not None and log.signature.name in _CARD_CLASSES:
        facts.append("the kernel log's line is of the same fault")
    if scene.lost:
        facts.append(f"lost ranks: {', '.join(scene.lost)}")
    facts += [f"compiling: {each.name}, {each.cpu:.0%} of a core" for each in scene.compilers[:4]]
    if stall is not None:
        facts += [card.text for card in scene.cards]
    short = {name: free for name, free in scene.free.items() if free < (1 << 30)}
    facts += [f"{name}: only {free / 1e6:.0f} MB free" for name, free in short.items()]
    return facts


def _how(ending: Ending, scene: Optional[Scene], log: Optional[Verdict]) -> str:
    if ending.signal == signals.SIGKILL:
        if any("Kill" in line for line in (scene.kernel if scene else ())):
            return "it was killed by signal 9, by the kernel, for memory"
        if log is not None:
            return (
                "it was killed by signal 9: an engine ends itself so after a failed child; the kernel log has no OOM kill"
                + _unread(scene)
            )
        return "it was killed by signal 9; the kernel log has no OOM kill" + _unread(scene)
    if ending.signal:
        return f"it was killed by signal {ending.signal} ({signals.Signals(ending.signal).name})"
    if ending.code is not None:
        return f"it exited with status {ending.code}" + (
            "" if ending.asked or ending.code else ", though nobody had asked it to stop"
        )
    return "it is gone, and nobody recorded how"


def _unread(scene: Optional[Scene]) -> str:
    if scene is None:
        return " (nobody looked)"
    return f" (it could not be read: {scene.kernel_unread})" if scene.kernel_unread else ""


def _lines(reader: LogReader, symptom: Symptom) -> List[str]:
    """The lines up to the evidence, where the reader still has it; else the last ones."""
    tail = reader.tail
    if symptom.text in tail:
        at = tail.index(symptom.text) + 1
        return tail[max(0, at - _LINES) : at]
    return tail[-_LINES:]


def _told(symptom: Symptom) -> Dict[str, Any]:
    return {"class": symptom.signature.name, "line": symptom.number, "text": symptom.text}
