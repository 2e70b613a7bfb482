"""Quantiles of Student's t: the agent's own, so that the host's performance gate and the controller's verdicts rest on the same numbers."""

from __future__ import annotations

from collections.abc import Callable

from gpuops.agent import shared

cdf: Callable[[float, int], float] = shared.module("student").cdf
quantile: Callable[[float, int], float] = shared.module("student").quantile
