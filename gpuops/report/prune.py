"""What a prune has deleted, or would delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.report.style import Paint, columns
from gpuops.report.words import size

Told = Mapping[str, Any]


def lines(told: Told, host: str, paint: Paint, *, verbose: bool = False) -> list[str]:
    """One line for each thing that goes, with its size and the reason; what stays only when ``verbose``."""
    gone = [_row(each, size(each["bytes"])) for each in told["gone"]]
    verb = "would go from" if told["dry_run"] else "are gone from"
    head = f"{size(told['bytes'])} {verb} {host}:" if gone else f"nothing to prune on {host}"
    shown = [paint.bold(head), *_table(gone)]
    if told["failed"]:
        shown += [paint.red("could not be deleted:"), *_table([_row(each, "") for each in told["failed"]])]
    if verbose:
        shown += [paint.bold("stays:"), *_table([_row(each, "") for each in told["kept"]])]
    return shown


def _row(each: Told, bytes_: str) -> list[str]:
    whose = f" of {each['service']}" if each["service"] else ""
    return [f"{each['kind']} {each['name']}{whose}", bytes_, each["why"]]


def _table(rows: list[list[str]]) -> list[str]:
    return [f"  {line}" for line in columns(rows)]
