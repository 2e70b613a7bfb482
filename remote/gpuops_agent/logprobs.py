"""Teacher-forced log probabilities of fixed texts, and how far two releases lie apart in them.

The reference lies with the known-good release (``logprobs.json``). What it differs from itself, when texts are put together and at its later starts,
is the noise of kernels and batching on this host, and what others are allowed is a multiple of that.
"""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from .asking import Asked
from .files import read_json, write_json
from .server import at, filled
from .wire import AgentError

NAME = "logprobs.json"

# Four kinds of text, each of some 60 tokens: prose, code, arithmetic, another language.
TEXTS = (
    "The lighthouse keeper climbed the stairs every evening, lit the lamp, and wrote the weather into his book. In the morning he "
    "slept while the fishing boats went out, and in the afternoon he mended nets, because the sea takes what is not looked after.",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n\n\n"
    "print([fibonacci(i) for i in range(10)])\n"
    "# [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]\n",
    "2 + 2 = 4, 3 + 4 = 7, 5 + 6 = 11, 8 + 9 = 17, 12 + 13 = 25, 20 + 30 = 50, "
    "41 + 17 = 58, 64 + 36 = 100, 99 + 1 = 100, 7 * 8 = 56, 9 * 9 = 81.",
    "La maison au bord de la rivière était fermée depuis l'hiver. Le facteur passait encore chaque matin, regardait la porte, et "
    "posait les lettres sur la pierre, sous une tuile, pour que le vent ne les emporte pas.",
)

# A position is clear when the likeliest token is so much likelier than the next, in nats: rounding does not turn it.
CLEAR = 0.5

# exp of more is not worth the overflow: such a token alone decides anyway.
_MOST = 20.0
_KEPT = 20


@dataclass(frozen=True)
class Scores:
    """One text: its token ids, the log probability of each but the first, the likeliest token there, and its lead over the next (nats)."""

    ids: List[int]
    logprobs: List[float]
    top: List[int]
    lead: List[float]

    def to_json(self) -> Dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Distance:
    """``k3``: mean of (e^r - 1) - r over the tokens, r the difference of log probabilities: an estimate of KL that is never negative
    (http://joschu.net/blog/kl-approx.html). ``agreement``: share of clear positions with the same likeliest token."""

    k3: float
    agreement: float
    positions: int
    clear: int

    def __str__(self) -> str:
        return (
            f"k3 {self.k3:.2g} over {self.positions} tokens, top-1 equal at {self.agreement:.1%} of {self.clear} clear positions"
        )


def ask(asked: Asked, text: str) -> Scores:
    """Raises AgentError when the server gives no log probabilities."""
    words = asked.words["logprobs"]
    answer = asked.native(filled(words["body"], {"@{text}": text}))
    refused = asked.refused(answer)
    if refused:
        raise AgentError("the server gave no log probabilities", evidence=refused, kind="logprobs")
    return parse(at(answer.json(), words["tokens"]), at(answer.json(), words["top"]))


def ask_all(asked: Asked, texts: Sequence[str]) -> List[Scores]:
    """All texts at once, so that the server reads several in one batch. Raises AgentError."""
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: ask(asked, text), texts))


def first_reference(texts: Sequence[str], launch: str, alone: List[Scores], together: List[Scores]) -> "Reference":
    """A reference of one start: its noise so far is what a batch does. Raises AgentError."""
    return Reference(digest(texts), launch, alone, {"batch": distance(alone, together).k3})


def parse(tokens: Any, top: Any) -> Scores:
    """SGLang's lists: ``[log probability, id, text]`` a token, and the likeliest ones a token, best first. Raises AgentError."""
    try:
        leaders = top[1:]
        return Scores(
            ids=[int(token[1]) for token in tokens],
            logprobs=[float(token[0]) for token in tokens[1:]],
            top=[int(best[0][1]) for best in leaders],
            lead=[float(best[0][0]) - float(best[1][0]) for best in leaders],
        )
    except (TypeError, ValueError, IndexError) as error:
        raise AgentError("the server's log probabilities cannot be read", evidence=repr(error), kind="logprobs") from error


def distance(reference: Sequence[Scores], now: Sequence[Scores]) -> Distance:
    """How far the second lies from the first. Raises AgentError when the texts are other tokens to it."""
    terms: List[float] = []
    same = clear = 0
    for number, before in enumerate(reference):
        after = now[number]
        if before.ids != after.ids:
            raise AgentError(
                "a text is other tokens than it was to the reference", evidence=f"{after.ids[:8]} instead of {before.ids[:8]}"
            )
        for place, old in enumerate(before.logprobs):
            r = max(-_MOST, min(_MOST, after.logprobs[place] - old))
            # A NaN goes through max and min in either way: it is as far as can be.
            terms.append(math.expm1(r) - r if math.isfinite(after.logprobs[place]) else math.expm1(_MOST))
            if before.lead[place] >= CLEAR:
                clear += 1
                same += before.top[place] == after.top[place]
    return Distance(sum(terms) / len(terms), same / clear if clear else 1.0, len(terms), clear)


@dataclass(frozen=True)
class Reference:
    """What the known-good release gave, at which start, and how far it was from that: in a batch, and at its later starts (k3)."""

    texts: str
    launch: str
    scores: List[Scores]
    noise: Dict[str, float]

    @property
    def most(self) -> float:
        return max(self.noise.values(), default=0.0)

    @property
    def starts(self) -> int:
        """How many later starts the noise is known of."""
        return len(self.noise.keys() - {"batch"})


def load(folder: Path, texts: Sequence[str]) -> Optional[Reference]:
    """The reference of a release for these texts; None when there is none, or one for other texts."""
    value = read_json(folder / NAME)
    if value is None or value.get("texts") != digest(texts):
        return None
    try:
        return Reference(value["texts"], value["launch"], [Scores(**each) for each in value["scores"]], dict(value["noise"]))
    except (KeyError, TypeError, ValueError):
        return None


def store(folder: Path, reference: Reference) -> None:
    """Raises AgentError when the disk does not take it."""
    noise = latest(reference.noise)
    write_json(folder / NAME, {**vars(reference), "scores": [each.to_json() for each in reference.scores], "noise": noise})


def latest(noise: Dict[str, float]) -> Dict[str, float]:
    """The batch's noise, and that of the last starts."""
    starts = [each for each in noise.items() if each[0] != "batch"][-_KEPT:]
    return {**({"batch": noise["batch"]} if "batch" in noise else {}), **dict(starts)}


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
