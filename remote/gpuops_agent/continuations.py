"""Greedy continuations of fixed texts, and how far two servers lie apart in them: what the kernels of decode do to an answer.

The log probabilities of a given text come from prefill alone. Here every token but the first is decoded, by itself and in a batch, and the server's
most likely tokens at each place are compared. Beyond the first token that differs two servers answer different questions, so the comparison of a text
ends with it; many short answers therefore say more than a few long ones.

How far the known-good release is from itself, in a batch and at its other starts, is the noise that a candidate's distance is measured against.
"""

from __future__ import annotations

import hashlib
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import needles
from .asking import Asked
from .files import read_json, write_json
from .logprobs import latest
from .server import at, filled
from .wire import AgentError

NAME = "continuations.json"

# Requests at once: those that are put together are in one batch of this size for nearly all of their steps.
TOGETHER = 16

# A log probability that is no number is as far as this, in nats.
_FAR = 20.0


@dataclass(frozen=True)
class Answer:
    """One greedy continuation: its token ids, and at each place the log probability of the most likely tokens by id."""

    ids: List[int]
    top: List[Dict[int, float]]

    def to_json(self) -> Dict[str, Any]:
        return {"ids": self.ids, "top": [{str(token): value for token, value in place.items()} for place in self.top]}

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "Answer":
        return cls(list(value["ids"]), [{int(token): float(each) for token, each in place.items()} for place in value["top"]])


@dataclass(frozen=True)
class Distance:
    """``mean``: over decoded places, and first tokens that differ, of the mean absolute difference of log probability (nats) of the tokens that both
    find likely. ``equal`` of ``asked`` continuations are the same to their end."""

    mean: float
    places: int
    equal: int
    asked: int

    def __str__(self) -> str:
        return f"{self.mean:.2g} nats over {self.places} places, {self.equal} of {self.asked} equal to their end"


@dataclass(frozen=True)
class Spoken:
    """A server's answers to all texts: each text alone, and all of them together."""

    alone: List[Answer]
    together: List[Answer]


@dataclass(frozen=True)
class Reference:
    """What the known-good release said, at which start, and how far it was from itself: in a batch, and at later starts (nats)."""

    asked: str
    launch: str
    spoken: Spoken
    noise: Dict[str, float] = field(default_factory=dict)

    @property
    def most(self) -> float:
        return max(self.noise.values(), default=0.0)

    @property
    def batch(self) -> float:
        """How far it was from itself in a batch, at one start."""
        return self.noise.get("batch", 0.0)

    @property
    def starts(self) -> int:
        """How many later starts the noise is known of."""
        return len(self.noise.keys() - {"batch"})


def prompts(asked: Asked, section: Dict[str, Any]) -> List[str]:
    """The texts of the playbook's section, ``{lengths, prompts}``: so many of each length, the same at every call to one tokenizer."""
    per_sentence = needles.tokens_per_sentence(asked)
    return [
        needles.make(length, 0.5, per_sentence, seed=1000 * length + number).prompt
        for length in section["lengths"]
        for number in range(section["prompts"])
    ]


def ask(asked: Asked, texts: Sequence[str], tokens: int) -> Spoken:
    """Raises AgentError when the server does not answer, or gives no log probabilities."""
    alone = [_ask(asked, text, tokens) for text in texts]
    with ThreadPoolExecutor(TOGETHER) as pool:
        return Spoken(alone, list(pool.map(lambda text: _ask(asked, text, tokens), texts)))


def apart(reference: Spoken, now: Spoken) -> Tuple[Distance, Distance]:
    """How far the second server lies from the first: each text alone, and all together. Raises AgentError when there is nothing to compare."""
    return distance(reference.alone, now.alone), distance(reference.together, now.together)


def distance(left: Sequence[Answer], right: Sequence[Answer]) -> Distance:
    """Raises AgentError when there is no place to compare."""
    gaps: List[float] = []
    for number, one in enumerate(left):
        other = right[number]
        for place in range(min(len(one.ids), len(other.ids))):
            both = one.top[place].keys() & other.top[place].keys()
            # The first token is prefill's. It counts where it is another one: then nothing of this text can be compared after it.
            if place or one.ids[0] != other.ids[0]:
                gaps.append(fmean([_gap(one.top[place][token], other.top[place][token]) for token in both]) if both else _FAR)
            if one.ids[place] != other.ids[place]:
                break
    if not gaps:
        raise AgentError(
            "no continuation agrees for even one token",
            evidence=f"{left[0].ids[:8]} and {right[0].ids[:8]}",
            kind="continuations",
        )
    equal = sum(one.ids == right[number].ids for number, one in enumerate(left))
    return Distance(fmean(gaps), len(gaps), equal, len(left))


def first_reference(texts: Sequence[str], tokens: int, launch: str, spoken: Spoken) -> Reference:
    """A reference of one start: its noise so far is what a batch does. Raises AgentError like :func:`distance`."""
    return Reference(digest(texts, tokens), launch, spoken, {"batch": distance(spoken.alone, spoken.together).mean})


def digest(texts: Sequence[str], tokens: int) -> str:
    return hashlib.sha256(json.dumps([list(texts), tokens]).encode()).hexdigest()


def load(folder: Path, texts: Sequence[str], tokens: int) -> Optional[Reference]:
    """The reference of a release for these texts; None when there is none, or one for others."""
    value = read_json(folder / NAME)
    if value is None or value.get("asked") != digest(texts, tokens):
        return None
    try:
        said = Spoken(*([Answer.from_json(each) for each in value[kind]] for kind in ("alone", "together")))
        return Reference(value["asked"], value["launch"], said, {str(key): float(each) for key, each in value["noise"].items()})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def store(folder: Path, reference: Reference) -> None:
    """Raises AgentError when the disk does not take it."""
    spoken = reference.spoken
    write_json(
        folder / NAME,
        {
            "asked": reference.asked,
            "launch": reference.launch,
            "noise": latest(reference.noise),
            "alone": [each.to_json() for each in spoken.alone],
            "together": [each.to_json() for each in spoken.together],
        },
    )


def parse(tokens: Any, top: Any) -> Answer:
    """SGLang's lists: ``[log probability, id, text]`` a token, and the likeliest ones a token. Raises AgentError."""
    try:
        return Answer(
            ids=[int(token[1]) for token in tokens],
            top=[{int(each[1]): float(each[0]) for each in place} for place in top],
        )
    except (TypeError, ValueError, IndexError) as error:
        raise AgentError("the server's log probabilities cannot be read", evidence=repr(error), kind="continuations") from error


def _ask(asked: Asked, text: str, tokens: int) -> Answer:
    words = asked.words["continuation"]
    answer = asked.native(filled(words["body"], {"@{text}": text, "@{tokens}": tokens}))
    refused = asked.refused(answer)
    if refused:
        raise AgentError("the server gave no continuation", evidence=refused, kind="continuations")
    found = parse(at(answer.json(), words["tokens"]), at(answer.json(), words["top"]))
    if len(found.ids) != tokens or len(found.top) != tokens:
        raise AgentError("a continuation is too short", evidence=f"{len(found.ids)} of {tokens} tokens", kind="continuations")
    return found


def _gap(one: float, other: float) -> float:
    far = abs(one - other)
    return min(far, _FAR) if math.isfinite(far) else _FAR
