"""Quantiles of Student's t for whole degrees of freedom.

For whole degrees of freedom the distribution function is a finite sum of elementary functions (Abramowitz and Stegun, Handbook of Mathematical
Functions, 26.7.3 and 26.7.4), so it is exact to rounding, and inverted by bisection. The alternative would be SciPy: 100 MB on every laptop for one
number, and not to be had on a host. A test holds this to SciPy's values.
"""

from __future__ import annotations

import math
from functools import cache


def cdf(t: float, df: int) -> float:
    """P(T <= t) for ``df`` >= 1 degrees of freedom."""
    half = _within(abs(t), df) / 2
    return 0.5 + half if t >= 0 else 0.5 - half


@cache
def quantile(p: float, df: int) -> float:
    """The t with P(T <= t) = p, for 0 < p < 1."""
    if not 0 < p < 1 or df < 1:
        raise ValueError(f"no quantile for p={p}, df={df}")
    if p < 0.5:
        return -quantile(1 - p, df)
    if p == 0.5:
        return 0.0
    low, high = 0.0, 1.0
    while cdf(high, df) < p:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def _within(t: float, df: int) -> float:
    """P(|T| <= t)."""
    angle = math.atan(t / math.sqrt(df))
    cosine = math.cos(angle)
    odd = df % 2 == 1
    # Terms of the sum: cos, 2/3 cos^3, 2*4/(3*5) cos^5, ... for odd df; 1, 1/2 cos^2, 1*3/(2*4) cos^4, ... for even.
    term = cosine if odd else 1.0
    total = 0.0
    for step in range(2 if odd else 1, df, 2):
        total += term
        term *= cosine * cosine * (step / (step + 1))
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
