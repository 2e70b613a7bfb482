"""Progress as plain lines, for logs and pipes: ``[  12.3s] weights 40% loading``."""

from __future__ import annotations

from collections.abc import Callable

from gpuops.report import narrate
from gpuops.report.narrate import Clock, Event, Phase
from gpuops.report.style import Paint

# Within a phase, a line for this much progress, or after this many seconds: enough to see that it lives, not a flood.
STEP = 0.10
PAUSE_S = 5.0


class PlainProgress:
    """Writes one line for each thing that happens.

    Args:
        write: takes one line, without its newline.
    """

    def __init__(self, write: Callable[[str], None], paint: Paint, *, verbose: bool = False) -> None:
        self._write = write
        self._paint = paint
        self._verbose = verbose
        self._clock = Clock()
        self._told: Phase | None = None
        self._told_at = 0.0

    def hear(self, event: Event) -> None:
        self._clock.hear(event)
        if event["event"] == "phase":
            self._phase()
        for line in narrate.lines(event, self._paint, verbose=self._verbose):
            self._line(line)

    def _phase(self) -> None:
        phase = self._clock.phase
        assert phase is not None
        if not self._worth(phase):
            return
        self._told, self._told_at = phase, self._clock.now
        self._line(narrate.describe(phase))

    def _worth(self, phase: Phase) -> bool:
        told = self._told
        if told is None or told.name != phase.name or told.began != phase.began:
            return True
        if phase.name == "probes" or phase == told:
            # Each probe has its own line.
            return False
        if (phase.progress or 0.0) - (told.progress or 0.0) >= STEP - 1e-9:
            return True
        return self._clock.now - self._told_at >= PAUSE_S

    def _line(self, text: str) -> None:
        self._write(f"{self._paint.dim(f'[{self._clock.elapsed:7.1f}s]')} {text}")
