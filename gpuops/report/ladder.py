"""Rungs of the ladder as lines: what was asked, what came back, what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.report.probes import short
from gpuops.report.style import Paint

Rung = Mapping[str, Any]

_WORDS = {"wrong": "serving but wrong", "down": "down"}


def lines(rung: Rung, paint: Paint) -> list[str]:
    """One line for a rung that is right or was left out; its evidence for any other."""
    name, seconds = f"{rung['rung']} {rung['name']}", paint.dim(f"{rung['seconds']:.1f} s")
    if rung["verdict"] == "skipped":
        return [paint.dim(f"- {name}: left out, {rung['detail']}")]
    if rung["verdict"] == "right":
        more = f" ({rung['detail']})" if rung["detail"] else ""
        return [f"{paint.green('✓')} {name}: {rung['answer']}{more} {seconds}"]
    counts = rung["gate"] == "required" or rung["verdict"] == "down"
    mark = paint.red("✗") if counts else paint.yellow("✗")
    gate = "" if rung["gate"] == "required" else f" ({rung['gate']})"
    evidence = [f"asked     {short(rung['question'])}", f"answered  {short(rung['answer'])}", f"expected  {rung['expectation']}"]
    detail = [f"because   {rung['detail']}"] if rung["detail"] else []
    return [f"{mark} {name}{gate}: {_WORDS[rung['verdict']]} {seconds}", *(f"    {line}" for line in [*evidence, *detail])]
