"""Paired A/B statistics: is B faster than A, slower, the same, or is it not known yet?

The unit is a pair: one launch of each, close in time. A pair's value is d = ln(B/A), or ln(A/B) where less is better, so that d > 0 always means that
B is better; means and intervals are of d, and shown as expm1 in percent. Repeats within a launch are no pairs: what a launch changes by chance stays
for all of them, and an interval over them claims much more than is known.

Verdicts, with a margin m that was declared before (the smallest change that matters)::

    improved      the 95 % interval lies above 0, and the mean is at least m
    regressed     the mirror image
    equivalent    the 90 % interval lies within (-m, m): two one-sided tests at 5 % (Schuirmann 1987)
    inconclusive  none of these; more pairs are needed, or the noise is too large for this margin

A look that ends in "more pairs" is a look: with those added once or twice, equal builds still differ in at most 5 % (4.4 % simulated, at an SD of 3 %
and a margin of 2 %), but builds that lie exactly at the margin are called equivalent in up to 9 % instead of 5 %.

Below :data:`FEWEST` pairs there is no verdict, only a screen: an interval of two or three pairs is mostly its own t quantile.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpuops.measure.student import quantile

FEWEST = 5
CONFIDENCE = 0.95

# One-sided level of the equivalence test, and the chance of a verdict that further pairs are planned for.
EQUIVALENCE_LEVEL = 0.05
POWER = 0.9

# Pairs beyond which an answer is not "more pairs" but "less noise".
MOST = 200

Word = Literal["improved", "regressed", "equivalent", "inconclusive", "screen"]


@dataclass(frozen=True)
class Verdict:
    """What the pairs show.

    Attributes:
        mean, low, high: change in the good direction, as a fraction (0.02 is 2 % better), with its 95 % interval.
        sd: standard deviation of the pairs' log ratios.
        margin: the change that matters, as a fraction.
        more: how many further pairs would decide, at this noise and if the mean stays; 0 when it is decided, None when more than 200.
    """

    word: Word
    pairs: int
    mean: float
    low: float
    high: float
    sd: float
    margin: float
    more: int | None

    def as_dict(self) -> dict[str, float | int | str | None]:
        return dict(vars(self))


def log_ratios(a: Sequence[float], b: Sequence[float], *, more_is_better: bool) -> list[float]:
    """The pairs' values. Raises ValueError for values that have no ratio, or for lists of different lengths."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values are no pairs")
    if any(value <= 0 for value in (*a, *b)):
        raise ValueError("a measured value is not above 0")
    return [math.log(two / one) if more_is_better else math.log(one / two) for one, two in zip(a, b, strict=True)]


def judge(values: Sequence[float], margin: float) -> Verdict:
    """The verdict over the pairs' log ratios.

    Args:
        margin: the smallest change that matters, as a fraction; declared before anything was measured.
    Raises:
        ValueError: fewer than two pairs, or no margin.
    """
    if len(values) < 2 or margin <= 0:
        raise ValueError("a verdict needs at least two pairs and a margin above 0")
    number, mean, sd = len(values), statistics.fmean(values), statistics.stdev(values)
    bound = math.log1p(margin)
    half = _half(sd, number, (1 + CONFIDENCE) / 2)
    word = _word(mean, half, _half(sd, number, 1 - EQUIVALENCE_LEVEL), bound) if number >= FEWEST else "screen"
    more = 0 if word in ("improved", "regressed", "equivalent") else _more(number, mean, sd, bound)
    return Verdict(word, number, math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half), sd, margin, more)


def pairs_needed(sd: float, effect: float, power: float = POWER) -> int | None:
    """How many pairs find a change of ``effect`` (a fraction) with this chance, at a two-sided level of 5 %; None when more than 200.

    ``sd`` is that of the log ratios. The usual approximation of the noncentral t by a shifted central one: right to within a pair.
    """
    return _needed(sd, math.log1p(effect), (1 + CONFIDENCE) / 2, power)


def _word(mean: float, half: float, narrow: float, bound: float) -> Word:
    if abs(mean) >= bound and abs(mean) > half:
        return "improved" if mean > 0 else "regressed"
    return "equivalent" if abs(mean) + narrow < bound else "inconclusive"


def _more(number: int, mean: float, sd: float, bound: float) -> int | None:
    """Further pairs until a verdict: a change when the mean is beyond the margin, else equivalence."""
    if abs(mean) >= bound:
        # The interval has to leave 0, and the mean has to stay beyond the margin.
        plans = [_needed(sd, abs(mean), (1 + CONFIDENCE) / 2, POWER), _needed(sd, abs(mean) - bound, 0.5, POWER)]
    else:
        plans = [_needed(sd, bound - abs(mean), 1 - EQUIVALENCE_LEVEL, POWER)]
    known = [plan for plan in plans if plan is not None]
    return max(*known, FEWEST, number + 1) - number if len(known) == len(plans) else None


def _needed(sd: float, distance: float, level: float, power: float) -> int | None:
    """Pairs whose mean lies, with this power, so far from a bound that an interval of this one-sided level does not reach it."""
    if distance <= 0:
        return None
    for number in range(2, MOST + 1):
        reach = quantile(level, number - 1) + quantile(power, number - 1)
        if distance * math.sqrt(number) >= sd * reach:
            return number
    return None


def _half(sd: float, number: int, level: float) -> float:
    return quantile(level, number - 1) * sd / math.sqrt(number)
