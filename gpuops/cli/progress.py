"""Which view of an operation's events a verb shows: JSON lines, a moving line on a terminal, plain lines, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from gpuops.cli.talk import OutputLost, Talk, losing
from gpuops.report.narrate import Event

Listener = Callable[[Event], None]


def tenths(talk: Talk, what: str) -> Callable[[int, int], None]:
    """Tells every tenth of what has crossed the link; called with the bytes that have, and those of all."""
    from gpuops.report.words import size

    told = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done == total or done / total >= told + 0.1:
            told = done / total
            talk.note(f"{what}: {size(done)} of {size(total)}")

    return progress


@contextmanager
def shown(talk: Talk) -> Iterator[Listener]:
    """A listener to an operation's events, and its view for as long as the block runs. An output that is lost ends neither."""
    if talk.json:
        yield lambda event: _give(talk, event)
    elif talk.quiet:
        yield lambda event: None
    elif sys.stderr.isatty():
        with _live(talk) as listener:
            yield listener
    else:
        from gpuops.report.plain import PlainProgress

        yield PlainProgress(talk.note, talk.err_paint, verbose=talk.verbose).hear


@contextmanager
def drawn(view: AbstractContextManager[None], hear: Listener) -> Iterator[Listener]:
    """A listener that draws on standard error. A terminal that has gone ends the drawing, not the block."""

    def listener(event: Event) -> None:
        with suppress(OutputLost), losing(sys.stderr):
            hear(event)

    with suppress(OutputLost), losing(sys.stderr):
        view.__enter__()
    try:
        yield listener
    finally:
        with suppress(OutputLost), losing(sys.stderr):
            view.__exit__(None, None, None)


def _give(talk: Talk, event: Event) -> None:
    if event["event"] != "outcome":
        with suppress(OutputLost):
            talk.give(event)


@contextmanager
def _live(talk: Talk) -> Iterator[Listener]:
    from rich.console import Console

    from gpuops.report.live import LiveProgress

    progress = LiveProgress(Console(stderr=True, highlight=False), talk.err_paint, verbose=talk.verbose)
    with drawn(progress.shown(), progress.hear) as listener:
        yield listener
