"""Measured cells as a table, with the definitions of what stands in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuops.measure.compare import changes
from gpuops.report.style import Paint, columns, wrapped

DEFINITIONS = (
    "times in ms as p50/p95/p99. TTFT: sent to first token. ITL: between two tokens. TPOT: (last - first token) / (tokens - 1).",
    "E2E: sent to last token. tok/s: all generated tokens / duration. per user: 1 / median TPOT. in tok/s: prompt tokens / duration.",
)

# Of the columns that only open loops, and cells with limits, have.
DEFINITIONS_OPEN = (
    "sent/s: gaps between requests / time from the first sent to the last (≥: at least), of the rate that was asked (Poisson arrivals).",
    "goodput: requests a second that met every limit of the cell (ITL: a request's mean one), and their share of all.",
)

HINT = "one run each and not alternated: a hint, no verdict"

Block = Mapping[str, Any]

# Three narrow tables instead of one that no terminal of 80 columns holds.
_SPEEDS = ["cell", "at a time", "in/out", "tok/s", "per user", "in tok/s"]
_TIMES = ["cell", "TTFT", "ITL", "TPOT", "E2E"]
_OPEN = ["cell", "sent/s", "goodput"]


def lines(result: Mapping[str, Any], paint: Paint) -> list[str]:
    """The tables, their definitions, what was invalid, and how it compares."""
    valid = [block for block in result["blocks"] if block["valid"]]
    invalid = [block for block in result["blocks"] if not block["valid"]]
    told = [f"{result['service']}, release {result['release']}, measured by {result['client']}"]
    if valid:
        limited = [block for block in valid if is_open(block)]
        told += [*_table(_SPEEDS, map(_speed_row, valid), paint), *_table(_TIMES, map(_time_row, valid), paint)]
        told += _table(_OPEN, map(_open_row, limited), paint) if limited else []
        definitions = DEFINITIONS + DEFINITIONS_OPEN * bool(limited)
        told += [paint.dim(line) for text in definitions for line in wrapped(text)]
        told += [paint.yellow(f"{block['cell']['name']}: {note}") for block in valid for note in _notes(block, result["client"])]
    for block in invalid:
        told += invalid_lines(block, paint)
    return told + _compared(valid, result, paint)


def block_lines(block: Block, paint: Paint) -> list[str]:
    """One cell as it is done."""
    if not block["valid"]:
        return invalid_lines(block, paint)
    figures = block["figures"]
    tpot = f", TPOT {figures['tpot_ms']['p50']:.1f} ms" if figures["tpot_ms"] else ""
    what = f"{figures['output_tok_s']:.1f} tok/s" if figures["tpot_ms"] else f"{figures['input_tok_s']:.0f} prompt tok/s"
    notes = [paint.dim(f"    {note}") for note in block.get("notes") or ()]
    good = f", goodput {goodput(figures['goodput'])}" if figures.get("goodput") else ""
    return [f"{paint.green('✓')} {block['cell']['name']}: {what}, TTFT {figures['ttft_ms']['p50']:.0f} ms{tpot}{good}", *notes]


def invalid_lines(block: Block, paint: Paint) -> list[str]:
    """Why a cell has no figures."""
    return [f"{paint.red('✗')} {block['cell']['name']} is invalid", *(f"    {fault}" for fault in block["faults"])]


def is_open(block: Block) -> bool:
    """Whether a valid block has figures of an open loop or of limits."""
    return bool(block["figures"].get("rate") or block["figures"].get("goodput"))


def sent(rate: Mapping[str, Any] | None) -> str:
    """The achieved rate of the asked one: ``≥ 1.9 of 2``."""
    if not rate:
        return "-"
    least = "≥ " if rate["at_least"] else ""
    return f"{least}{rate['achieved']:.3g} of {rate['asked']:.3g}" if rate["achieved"] else f"of {rate['asked']:.3g}"


def goodput(good: Mapping[str, float] | None) -> str:
    """``1.5/s (90%)``: requests a second that met the limits, and their share."""
    return f"{good['req_s']:.3g}/s ({good['share']:.0%})" if good else "-"


def _table(head: list[str], rows: Iterable[list[str]], paint: Paint) -> list[str]:
    first, *others = columns([head, *rows])
    return [paint.bold(first), *others]


def _speed_row(block: Block) -> list[str]:
    cell, figures = block["cell"], block["figures"]
    user = figures["user_tok_s"]
    return [
        cell["name"],
        str(cell.get("concurrency") or "-"),
        f"{cell['input_tokens']}/{cell['output_tokens']}",
        f"{figures['output_tok_s']:.1f}",
        f"{user:.1f}" if user else "-",
        f"{figures['input_tok_s']:.0f}",
    ]


def _time_row(block: Block) -> list[str]:
    times = (block["figures"][name] for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"))
    return [block["cell"]["name"], *map(_spread, times)]


def _open_row(block: Block) -> list[str]:
    figures = block["figures"]
    return [block["cell"]["name"], sent(figures.get("rate")), goodput(figures.get("goodput"))]


def _notes(block: Block, client: str | None) -> list[str]:
    """What a reader of an open loop's figures must know beside them."""
    if not block["figures"].get("rate"):
        return []
    other = [f"measured by {block['client']}"] if block["client"] != client else []
    return [*other, *(block.get("notes") or ())]


def _spread(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else "/".join(_number(value) for value in spread.values())


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _compared(valid: list[Block], result: Mapping[str, Any], paint: Paint) -> list[str]:
    rows = []
    for block in valid:
        reference = block["reference"]
        if reference is not None:
            rows.append([f"  {block['cell']['name']}", *(_change(change, paint) for change in changes(block, reference))])
    if not rows:
        return []
    own = result["release"] == result["known_good"]
    against = "its own last measurement" if own else f"release {result['known_good']}, the known-good one"
    width = max(len(row) for row in rows)
    return [f"against {against}", f"({HINT})", *columns([row + [""] * (width - len(row)) for row in rows])]


def _change(change: Any, paint: Paint) -> str:
    return f"{change.name} {change.ratio - 1:+.1%}"
