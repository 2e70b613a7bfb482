"""Is a text that a model wrote no text at all? The signs of broken kernels: nothing, one token for ever, an odd alphabet.

NaN logits become token 0, which in most vocabularies prints as ``!`` or as nothing at all.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Optional, Sequence

# Repetitions in a row, without a break, of a unit of up to 40 characters. People write "ha ha ha" and rulers of dashes; nobody answers a
# question by 24 of the same.
REPEATS = 24
_LOOP = re.compile(r"(.{1,40}?)\1{%d,}" % (REPEATS - 1), re.DOTALL)

# So many characters that mean nothing (U+FFFD: bytes that are no UTF-8) are an accident; more are a sign.
STRAY = 3

# The share of letters that may be of another script than the expected one: names and quotations.
FOREIGN_SHARE = 0.3
LETTERS = 12
"""Fewer letters than these tell nothing of a script."""


def complaint(text: str, script: Optional[str] = None) -> str:
    """What is wrong with an answer as a text; empty when nothing is. ``script`` is a Unicode script name such as ``LATIN``."""
    if not text.strip():
        return "the answer is empty"
    loop = _LOOP.search(text)
    if loop and loop.group(1).strip():
        times = len(loop.group(0)) // len(loop.group(1))
        return f"{loop.group(1)!r} is repeated {times} times in a row"
    strays = text.count("\ufffd") + sum(unicodedata.category(letter) == "Cc" and letter not in "\n\r\t" for letter in text)
    if strays > STRAY:
        return f"{strays} characters are no text"
    return _wrong_script(text, script) if script else ""


def all_the_same(texts: Sequence[str]) -> str:
    """What is wrong with the answers to many different prompts taken together; empty when nothing is.

    Random prompts may lead a sound model into a loop now and then, so a single answer is not judged here; that every prompt has the same loop is
    the sign.
    """
    if len(texts) < 2:
        return ""
    if not any(text.strip() for text in texts):
        return f"all {len(texts)} answers are empty"
    units = {frozenset(text.split()) if " " in text.strip() else frozenset(text.strip()) for text in texts}
    first = next(iter(units))
    if len(units) == 1 and len(first) == 1:
        return f"all {len(texts)} answers are nothing but {next(iter(first))!r}"
    return ""


def _wrong_script(text: str, script: str) -> str:
    letters = [letter for letter in text if letter.isalpha()]
    foreign = [letter for letter in letters if not unicodedata.name(letter, "").startswith(script)]
    if len(letters) < LETTERS or len(foreign) <= FOREIGN_SHARE * len(letters):
        return ""
    return f"{len(foreign)} of {len(letters)} letters are not {script.lower()}"
