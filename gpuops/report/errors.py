"""An error as text: what happened, why we think so, the next command."""

from __future__ import annotations

from gpuops.errors import GpuopsError
from gpuops.report.style import Paint


def lines(error: GpuopsError, paint: Paint) -> list[str]:
    """The three parts, each under its own word; empty parts are left out, further lines of a part are indented under its first."""
    told = _part(paint.red("error:"), "", error.what)
    told += _part(paint.yellow("  because:"), " " * 11, error.evidence)
    told += _part(paint.green("  next:"), " " * 8, error.next)
    return told


def _part(word: str, indent: str, text: str) -> list[str]:
    first, *more = text.strip().splitlines() or [""]
    return [f"{word} {first}", *(f"{indent}{line}" for line in more)] if first else []
