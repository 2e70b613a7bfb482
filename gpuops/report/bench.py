"""Measured cells as a table, with the definitions of what stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.measure.compare import changes
from gpuops.report.style import Paint, columns

DEFINITIONS = (
    "times in ms as p50/p95/p99. TTFT: sent to first token. ITL: between two tokens. TPOT: (last - first token) / (tokens - 1).",
    "E2E: sent to last token. tok/s: all generated tokens / duration. per user: 1 / median TPOT. in tok/s: prompt tokens / duration.",
)

HINT = "one run each and not alternated: a hint, no verdict"

Block = Mapping[str, Any]

_HEAD = ["cell", "at a time", "in/out", "TTFT", "ITL", "TPOT", "E2E", "tok/s", "per user", "in tok/s"]


def lines(result: Mapping[str, Any], paint: Paint) -> list[str]:
    """The table, its definitions, what was invalid, and how it compares."""
    valid = [block for block in result["blocks"] if block["valid"]]
    invalid = [block for block in result["blocks"] if not block["valid"]]
    told = [f"{result['service']}, release {result['release']}, measured by {result['client']}"]
    if valid:
        head, *rows = columns([_HEAD, *(_row(block) for block in valid)])
        told += [paint.bold(head), *rows, *(paint.dim(text) for text in DEFINITIONS)]
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
    return [f"{paint.green('✓')} {block['cell']['name']}: {what}, TTFT {figures['ttft_ms']['p50']:.0f} ms{tpot}", *notes]


def invalid_lines(block: Block, paint: Paint) -> list[str]:
    """Why a cell has no figures."""
    return [f"{paint.red('✗')} {block['cell']['name']} is invalid", *(f"    {fault}" for fault in block["faults"])]


def _row(block: Block) -> list[str]:
    cell, figures = block["cell"], block["figures"]
    user = figures["user_tok_s"]
    return [
        cell["name"],
        str(cell["concurrency"]),
        f"{cell['input_tokens']}/{cell['output_tokens']}",
        *(_spread(figures[name]) for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")),
        f"{figures['output_tok_s']:.1f}",
        f"{user:.1f}" if user else "-",
        f"{figures['input_tok_s']:.0f}",
    ]


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
    return [f"against {against} ({HINT})", *columns([row + [""] * (width - len(row)) for row in rows])]


def _change(change: Any, paint: Paint) -> str:
    return f"{change.name} {change.ratio - 1:+.1%}"
