"""Paired verdicts: what they say of given pairs, and how often they are wrong over many."""

from __future__ import annotations

import math
import random

import pytest

from gpuops.measure.paired import judge, log_ratios, pairs_needed
from gpuops.measure.student import cdf, quantile

SIMULATIONS = 200
MARGIN = 0.02


def pairs(draw: random.Random, number: int, effect: float, sd: float) -> list[float]:
    return [draw.gauss(math.log1p(effect), sd) for _ in range(number)]


def verdicts(effect: float, sd: float, number: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [judge(pairs(draw, number, effect, sd), MARGIN).word for _ in range(SIMULATIONS)]


# scipy.stats.t.ppf
@pytest.mark.parametrize(
    ("p", "df", "value"),
    [
        (0.975, 1, 12.706204736432095),
        (0.975, 2, 4.302652729911275),
        (0.975, 4, 2.7764451051977987),
        (0.95, 9, 1.8331129326536335),
        (0.9, 30, 1.3104150253913952),
        (0.995, 3, 5.84090930973333),
        (0.975, 199, 1.9719565442493954),
    ],
)
def test_quantiles_of_t_are_those_of_scipy(p: float, df: int, value: float) -> None:
    assert quantile(p, df) == pytest.approx(value, rel=1e-9)
    assert quantile(1 - p, df) == pytest.approx(-value, rel=1e-9)
    assert cdf(value, df) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([0.05, 0.06, 0.05, 0.055, 0.06], "improved"),
        ([-0.05, -0.06, -0.05, -0.055, -0.06], "regressed"),
        ([0.001, -0.002, 0.003, 0.0, -0.001], "equivalent"),
        ([0.1, -0.1, 0.05, -0.06, 0.02], "inconclusive"),
        ([0.05, 0.06, 0.05, 0.055], "screen"),
        # Surely above 0, and too small to matter.
        ([0.010, 0.011, 0.010, 0.009, 0.010], "equivalent"),
    ],
)
def test_pairs_get_their_verdict(values: list[float], word: str) -> None:
    assert judge(values, MARGIN).word == word


def test_less_is_better_for_times() -> None:
    faster = log_ratios([10.0, 10.0], [9.0, 9.0], more_is_better=False)
    assert faster == pytest.approx([math.log(10 / 9)] * 2)
    assert log_ratios([10.0], [9.0], more_is_better=True) == pytest.approx([math.log(0.9)])


def test_an_undecided_verdict_says_how_many_more_pairs_it_needs() -> None:
    draw = random.Random(3)
    undecided = judge([0.05, -0.03, 0.06, 0.01, 0.035], MARGIN)
    assert undecided.word == "inconclusive" and undecided.more
    # With that many more, four of five such measurements are decided.
    decided = [judge(pairs(draw, 5 + undecided.more, undecided.mean, undecided.sd), MARGIN).word for _ in range(SIMULATIONS)]
    assert sum(word != "inconclusive" for word in decided) >= 0.8 * SIMULATIONS


def test_noise_that_no_number_of_pairs_overcomes_has_no_number() -> None:
    assert judge([0.5, -0.45, 0.4, -0.5, 0.1], MARGIN).more is None


def test_without_a_difference_there_is_hardly_ever_one_found() -> None:
    found = verdicts(effect=0.0, sd=0.02, number=6)
    # 5 % two-sided; 200 simulations put 18 at most, with 99.9 % confidence (binomial).
    assert sum(word in ("improved", "regressed") for word in found) <= 18


def test_a_difference_as_large_as_the_margin_is_hardly_ever_called_equivalent() -> None:
    found = verdicts(effect=MARGIN, sd=0.01, number=8)
    assert sum(word == "equivalent" for word in found) <= 18


@pytest.mark.parametrize(("sd", "effect"), [(0.01, 0.02), (0.02, 0.05), (0.03, 0.05), (0.05, 0.3)])
def test_the_planned_number_of_pairs_finds_the_difference_as_often_as_promised(sd: float, effect: float) -> None:
    needed = pairs_needed(sd, effect)
    assert needed is not None
    draw = random.Random(5)
    number = max(needed, 5)
    found = [judge(pairs(draw, number, effect, sd), effect / 2).word for _ in range(SIMULATIONS)]
    # 90 % were planned; 200 simulations put 165 at least, with 99.9 % confidence.
    assert sum(word == "improved" for word in found) >= 165


@pytest.mark.parametrize(
    ("sd", "effect", "table"), [(0.01, 0.01, 13), (0.01, 0.02, 5), (0.02, 0.02, 13), (0.05, 0.05, 14), (0.03, 0.02, 27)]
)
def test_planned_pairs_are_those_of_the_exact_power_within_one(sd: float, effect: float, table: int) -> None:
    """The table was made with the noncentral t of SciPy."""
    needed = pairs_needed(sd, effect)
    assert needed is not None and abs(needed - table) <= 1


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_values_that_are_no_pairs_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError):
        log_ratios(a, b, more_is_better=True)
