"""Progress on a terminal: what has happened stays above as lines, what happens now is one moving line below."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gpuops.report import narrate
from gpuops.report.narrate import Clock, Event, Phase
from gpuops.report.style import Paint
from gpuops.report.words import duration

_BAR = 24
_FRAMES_PER_S = 8


class LiveProgress:
    """A listener that draws; :meth:`shown` keeps it on the screen."""

    def __init__(self, console: Console, paint: Paint, *, verbose: bool = False) -> None:
        self._console = console
        self._paint = paint
        self._verbose = verbose
        self._clock = Clock()
        self._heard_at = time.monotonic()
        self._spinner = Spinner("dots")

    @contextmanager
    def shown(self) -> Iterator[None]:
        with Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=_FRAMES_PER_S,
            transient=True,
            redirect_stdout=False,
        ):
            yield

    def hear(self, event: Event) -> None:
        ended = self._clock.hear(event)
        self._heard_at = time.monotonic()
        if ended is not None:
            took = duration(self._clock.now - ended.began)
            self._print(f"{self._paint.green('•')} {ended.name} {self._paint.dim(took)}")
        for line in narrate.lines(event, self._paint, verbose=self._verbose):
            self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def _draw(self) -> Group:
        phase = self._clock.phase
        if phase is None:
            return Group()
        row = Table.grid(padding=(0, 1))
        cells = [self._spinner, Text(phase.name, "bold"), *_bar(phase), Text(phase.detail), Text(self._time(phase), "dim")]
        for _ in cells:
            # One line, however narrow the terminal: a line that wraps cannot be drawn over.
            row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_row(*cells)
        return Group(row)

    def _time(self, phase: Phase) -> str:
        # The host's clock up to the last event, ours since then: the two are never subtracted from each other.
        silent = time.monotonic() - self._heard_at
        return f"{duration(self._clock.now - phase.began + silent)}, {duration(self._clock.elapsed + silent)} in all"


def _bar(phase: Phase) -> list[ProgressBar | Text]:
    if phase.progress is None:
        return []
    return [ProgressBar(total=1.0, completed=phase.progress, width=_BAR), Text(f"{phase.progress:4.0%}")]
