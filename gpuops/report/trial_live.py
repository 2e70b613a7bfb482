"""A trial on a terminal: the table of its steps above the moving line of the one that runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from gpuops.report.live import LiveProgress
from gpuops.report.narrate import Event
from gpuops.report.style import Paint
from gpuops.report.trials import table


class TrialProgress(LiveProgress):
    """As :class:`LiveProgress`, with a table. ``results`` are those of steps that were played before."""

    def __init__(
        self, console: Console, paint: Paint, names: Sequence[str], results: Sequence[dict[str, Any]], *, verbose: bool = False
    ) -> None:
        super().__init__(console, paint, verbose=verbose)
        self._names = names
        self._results = list(results)
        self._step: str | None = None
        self._began = time.monotonic()

    def hear(self, event: Event) -> None:
        if event["event"] == "step":
            self._step, self._began = event["step"], time.monotonic()
        elif event["event"] == "tried":
            self._step = None
            self._results.append(dict(event))
        super().hear(event)

    def _draw(self) -> Group:
        lines = table(self._names, self._results, self._step, time.monotonic() - self._began, self._paint)
        return Group(*(Text.from_ansi(line, no_wrap=True, overflow="ellipsis") for line in lines), super()._draw())
