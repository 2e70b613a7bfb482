"""Long texts with one sentence in them that must be found again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .asking import Asked

_WHO = (
    "The baker",
    "A sailor",
    "My neighbour",
    "The old teacher",
    "A young clerk",
    "The gardener",
    "Her cousin",
    "A tired courier",
)
_DID = ("counted", "repaired", "described", "sold", "painted", "carried", "forgot", "measured")
_WHAT = (
    "a wooden boat",
    "the garden wall",
    "two brass lamps",
    "a heavy crate",
    "the market square",
    "some winter coats",
    "an empty barrel",
)
_WHEN = ("before noon", "in the rain", "without a word", "for a week", "near the river", "on a quiet street", "after the harvest")

# So many sentences are counted to learn how many tokens one has.
_SAMPLE = 40


@dataclass(frozen=True)
class Needle:
    """A text, and the number that is hidden in it."""

    prompt: str
    key: str


def tokens_per_sentence(asked: Asked) -> float:
    """How many tokens one sentence of our filler is to this server; a guess when it does not say."""
    told = asked.prompt_tokens(" ".join(_filler(random.Random(0), _SAMPLE)))
    return told / _SAMPLE if told else 12.0


def make(length: int, depth: float, per_sentence: float, seed: int) -> Needle:
    """A text of about ``length`` tokens whose needle stands at ``depth`` (0 to 1). Every seed has its own text and key."""
    draw = random.Random(seed)
    key = str(draw.randrange(10000, 99999))
    sentences = _filler(draw, max(1, round(length / per_sentence) - 4))
    sentences.insert(round(depth * len(sentences)), f"The secret number is {key}. Remember it.")
    question = "What is the secret number? The secret number is"
    return Needle(f"{' '.join(sentences)}\n\n{question}", key)


def _filler(draw: random.Random, sentences: int) -> "list[str]":
    return [f"{draw.choice(_WHO)} {draw.choice(_DID)} {draw.choice(_WHAT)} {draw.choice(_WHEN)}." for _ in range(sentences)]
