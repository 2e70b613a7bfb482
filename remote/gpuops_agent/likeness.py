"""Rung 7: is a release like the known-good one in its log probabilities, of given texts (prefill) and of its own continuations (decode)?

Every release keeps what it gave when the rung was first put to it. The known-good release's is the reference; how far its later starts are from that
is what the kernels and the batching of this host do by themselves, and others are allowed a multiple of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from . import continuations, logprobs, releases
from .asking import RIGHT, SKIPPED, WRONG, Asked, Finding, skipped
from .wire import AgentError

_RECORDED = "recorded: it is the reference from now on"


@dataclass(frozen=True)
class _Held:
    """One comparison: what came in words, whether it passes, what was allowed, and on what ground."""

    answer: str
    right: bool
    wanted: str
    basis: str = ""


@dataclass(frozen=True)
class _Case:
    """Who is compared with whom. ``own`` and ``good`` are releases' folders; ``launch`` is this start."""

    asked: Asked
    section: Dict[str, Any]
    own: Path
    good: Optional[Path]
    launch: str

    @property
    def itself(self) -> bool:
        return self.own == self.good


def compare(asked: Asked, section: Dict[str, Any], emit: Callable[..., None]) -> Finding:
    """The rung. ``section``: the playbook's ``ladder.logprobs``."""
    number = releases.known_good(asked.service)
    case = _Case(
        asked,
        section,
        own=asked.service.release(asked.release.number),
        good=None if number is None else asked.service.release(number),
        launch=f"{asked.record.pid}-{asked.record.start}",
    )
    texts = section["texts"] or list(logprobs.TEXTS)
    parts: Dict[str, Callable[[], Optional[_Held]]] = {
        f"the log probabilities of {len(texts)} fixed texts": lambda: _given(case, texts)
    }
    said = section.get("continuations") or {}
    if said.get("prompts"):
        spoken = f"{said['tokens']} tokens after {len(said['lengths']) * said['prompts']} texts, alone and together"
        parts[spoken] = lambda: _spoken(case, said)
    question = "; ".join(parts)
    try:
        held = [part() for part in parts.values()]
    except AgentError as error:
        return Finding(WRONG, question, f"{error.what}: {error.evidence}", "log probabilities")
    if case.good is None:
        return Finding(SKIPPED, question, "", "", "recorded, but there is no known-good release to compare with")
    compared = [each for each in held if each is not None]
    if not compared:
        return skipped(f"release {number}, the known-good one, has no reference: put this rung to it first")
    return Finding(
        RIGHT if all(each.right for each in compared) else WRONG,
        question,
        "; ".join(dict.fromkeys(each.answer for each in compared)),
        "; ".join(each.wanted for each in compared if each.wanted),
        "; ".join(dict.fromkeys(each.basis for each in compared if each.basis)),
    )


def _given(case: _Case, texts: Sequence[str]) -> Optional[_Held]:
    """Given texts; None when the known-good release has no reference. Raises AgentError."""
    now = [logprobs.ask(case.asked, text) for text in texts]
    reference = logprobs.load(case.good, texts) if case.good else None
    if logprobs.load(case.own, texts) is None:
        together = logprobs.ask_all(case.asked, texts)
        logprobs.store(case.own, logprobs.first_reference(texts, case.launch, now, together))
    if case.good is None or reference is None:
        return _first(case)
    apart = logprobs.distance(reference.scores, now)
    same = f"top-1 equal at {case.section['agreement']:.0%}"
    agrees = apart.agreement >= case.section["agreement"]
    if case.itself:
        if agrees and case.launch != reference.launch:
            noise = {**reference.noise, case.launch: apart.k3}
            logprobs.store(case.good, dataclasses.replace(reference, noise=noise))
        return _Held(str(apart), agrees, same, "the known-good release itself")
    allowed = max(case.section["floor"], case.section["factor"] * reference.most)
    return _Held(str(apart), agrees and apart.k3 <= allowed, f"k3 at most {allowed:.2g}, {same}", _basis(case, reference.starts))


def _spoken(case: _Case, section: Dict[str, Any]) -> Optional[_Held]:
    """Greedy continuations; None when the known-good release has no reference. Raises AgentError."""
    tokens = section["tokens"]
    texts: List[str] = continuations.prompts(case.asked, section)
    now = continuations.ask(case.asked, texts, tokens)
    reference = continuations.load(case.good, texts, tokens) if case.good else None
    if continuations.load(case.own, texts, tokens) is None:
        continuations.store(case.own, continuations.first_reference(texts, tokens, case.launch, now))
    if case.good is None or reference is None:
        return _first(case)
    alone, together = continuations.apart(reference.spoken, now)
    answer = f"alone {alone}; together {together}"
    most = max(alone.mean, together.mean)
    # A start of the known-good release that is farther off than a batch explains is no noise: corruption can stick to a start.
    noise = reference.batch if case.itself else reference.most
    allowed = max(section["floor"], section["factor"] * noise)
    held = _Held(answer, most <= allowed, f"at most {allowed:.2g} nats a place", _basis(case, reference.starts))
    if not case.itself:
        return held
    if held.right and case.launch != reference.launch:
        continuations.store(case.good, dataclasses.replace(reference, noise={**reference.noise, case.launch: most}))
    return dataclasses.replace(held, basis="the known-good release itself")


def _first(case: _Case) -> Optional[_Held]:
    """The known-good release's first time; nobody else has anything to be compared with."""
    return _Held(_RECORDED, True, "") if case.itself else None


def _basis(case: _Case, starts: int) -> str:
    assert case.good is not None
    seen = f"{starts} other starts" if starts else "no other start was seen yet: a restart and this rung again calibrate it"
    return f"noise of release {case.good.name}: a batch, and {seen}"
