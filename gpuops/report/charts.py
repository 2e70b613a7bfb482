"""The charts of a report, as SVG that stands in the page itself: throughput, paired ratios, latency, telemetry.

Matplotlib draws them. A page with Plotly or Vega would carry megabytes of script to show the same; SVG needs none, stays sharp in print, and its
text is text, for people who search and for programs that check.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuops.errors import GpuopsError
from gpuops.report.sheet import Json, Sheet, is_decode, points

# Colours that people with any colour vision tell apart, and that print in grey (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00")
_GREY = "#999999"

_WIDTH, _HEIGHT = 8.0, 3.6  # inches
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


@dataclass(frozen=True)
class Chart:
    """A drawn chart: ``name`` is its id in the page."""

    name: str
    title: str
    svg: str
    note: str


def charts(sheet: Sheet) -> list[Chart]:
    """Every chart for which the sheet has data.

    Raises:
        GpuopsError: matplotlib is not installed.
    """
    drawn = [
        _drawn(
            "throughput",
            "Throughput against concurrency",
            _throughput,
            sheet,
            "geometric mean over launches, with 95 % t intervals",
        ),
        _drawn(
            "ratios",
            "Paired ratios",
            _ratios,
            sheet,
            "dots are pairs of launches, bars 95 % intervals, the band is the margin; right is better",
        ),
        _drawn(
            "latency", "Latency distributions", _latency, sheet, "share of requests that were at least so fast, over all launches"
        ),
        _drawn("telemetry", "Telemetry", _telemetry, sheet, "one line a block; seconds since the block began"),
    ]
    return [chart for chart in drawn if chart is not None]


def _drawn(name: str, title: str, draw: Callable[[Any, Sheet], bool], sheet: Sheet, note: str) -> Chart | None:
    figure_class, context = _matplotlib()
    # The salt makes ids differ between charts of one page, and equal between two runs.
    with context({**_STYLE, "svg.hashsalt": name}):
        figure = figure_class(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        if not draw(figure, sheet):
            return None
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = out.getvalue()
    return Chart(name, title, svg[svg.index("<svg") :], note)


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GpuopsError(
            "a page with charts needs matplotlib and jinja2, which are not installed",
            evidence=str(error),
            next="pip install 'gpuops[report]'; without -o the report is shown here",
            kind="report_extra",
        ) from error
    return Figure, rc_context


def _throughput(figure: Any, sheet: Sheet) -> bool:
    axes = figure.subplots()
    shown = False
    for index, subject in enumerate(sheet.subjects):
        found = points(replace(subject, blocks=tuple(filter(is_decode, subject.blocks))))
        if not found:
            continue
        shown = True
        below = [point.speed - (point.low or point.speed) for point in found]
        above = [(point.high or point.speed) - point.speed for point in found]
        where = [point.concurrency * (1 + 0.02 * index) for point in found]
        speeds = [point.speed for point in found]
        axes.errorbar(where, speeds, yerr=[below, above], marker="o", capsize=4, color=COLOURS[index], label=subject.name)
    if shown:
        at = sorted({block["cell"]["concurrency"] for subject in sheet.subjects for block in subject.blocks if is_decode(block)})
        axes.set_xscale("log", base=2)
        axes.set_xticks(at, [str(each) for each in at])
        axes.set_xticks([], minor=True)
        # The sides stand beside each other, by 2 %: too near to be seen as another concurrency.
        axes.set_xlim(at[0] / 1.5, at[-1] * 1.5)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("requests at a time")
        axes.set_ylabel("tok/s")
        axes.legend(loc="upper left")
    return shown


def _ratios(figure: Any, sheet: Sheet) -> bool:
    found = [each for each in sheet.results if each["a"]]
    if not found or sheet.margin is None:
        return False
    figure.set_figheight(1.2 + 0.32 * len(found))
    axes = figure.subplots()
    low, high = 100 * math.expm1(-math.log1p(sheet.margin)), 100 * sheet.margin
    axes.axvspan(low, high, color=_GREY, alpha=0.2, label="margin")
    axes.axvline(0, color=_GREY, linewidth=1)
    for row, each in enumerate(reversed(found)):
        pairs = [100 * _change(a, b, more=each["more_is_better"]) for a, b in zip(each["a"], each["b"], strict=True)]
        axes.plot(pairs, [row] * len(pairs), "o", color=COLOURS[0], alpha=0.35, markersize=4)
        verdict = each["verdict"]
        if verdict:
            mean = 100 * verdict["mean"]
            reach = [[mean - 100 * verdict["low"]], [100 * verdict["high"] - mean]]
            axes.errorbar([mean], [row], xerr=reach, marker="D", capsize=4, color=COLOURS[1])
    axes.set_yticks(range(len(found)), [f"{each['cell']}, {each['figure']}" for each in reversed(found)])
    axes.set_ylim(-0.6, len(found) - 0.4)
    axes.set_xlabel("change of B, % (more is better)")
    return True


def _latency(figure: Any, sheet: Sheet) -> bool:
    cells = list(
        dict.fromkeys(block["cell"]["name"] for subject in sheet.subjects for block in subject.blocks if block.get("requests"))
    )
    if not cells:
        return False
    figure.set_figheight(2.4 * len(cells))
    grid = figure.subplots(len(cells), 2, squeeze=False)
    for row, cell in enumerate(cells):
        for column, (index, name) in enumerate(((0, "TTFT"), (2, "E2E"))):
            axes = grid[row][column]
            for colour, subject in zip(COLOURS, sheet.subjects, strict=False):
                values = sorted(
                    request[index]
                    for block in subject.blocks
                    if block["cell"]["name"] == cell
                    for request in block.get("requests") or ()
                )
                if values:
                    axes.step(
                        values,
                        [(at + 1) / len(values) for at in range(len(values))],
                        where="post",
                        color=colour,
                        label=subject.name,
                    )
            axes.set_title(f"{cell}: {name}", fontsize=9)
            axes.set_xlabel("ms")
            axes.set_ylim(0, 1)
    grid[0][0].legend(loc="lower right", fontsize=7)
    return True


def _telemetry(figure: Any, sheet: Sheet) -> bool:
    strips = [strip for strip in _STRIPS if any(strip[1](sample) is not None for sample in _samples(sheet))]
    if not strips:
        return False
    figure.set_figheight(1.5 * len(strips))
    grid = figure.subplots(len(strips), 1, squeeze=False, sharex=True)
    for (axes,), (name, value) in zip(grid, strips, strict=True):
        for colour, subject in zip(COLOURS, sheet.subjects, strict=False):
            axes.plot([], [], color=colour, label=subject.name)
            for block in subject.blocks:
                samples = [sample for sample in block.get("telemetry") or () if value(sample) is not None]
                seconds = [sample["at"] - samples[0]["at"] for sample in samples]
                axes.plot(seconds, [value(sample) for sample in samples], color=colour, alpha=0.6, linewidth=1)
        axes.set_ylabel(name, fontsize=8)
        axes.set_ylim(bottom=0)
    grid[-1][0].set_xlabel("s")
    grid[0][0].legend(loc="lower right", fontsize=7)
    return True


def _samples(sheet: Sheet) -> list[Json]:
    return [sample for subject in sheet.subjects for block in subject.blocks for sample in block.get("telemetry") or ()]


def _of_cards(key: str) -> Callable[[Json], float | None]:
    def mean(sample: Json) -> float | None:
        values = [card[key] for card in sample.get("cards") or () if card[key] is not None]
        return sum(values) / len(values) if values else None

    return mean


_STRIPS: Sequence[tuple[str, Callable[[Json], float | None]]] = (
    ("requests", lambda sample: sample.get("running")),
    ("load of host", lambda sample: sample.get("load")),
    ("SM clock, MHz", _of_cards("sm_mhz")),
    ("card, °C", _of_cards("celsius")),
    ("card, W", _of_cards("watts")),
)
"""What a telemetry strip shows, by its name: a value of a sample, or None where it has none."""


def _change(a: float, b: float, *, more: bool) -> float:
    return b / a - 1 if more else a / b - 1
