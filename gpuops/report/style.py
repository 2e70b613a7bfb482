"""Colour and columns, without a library: a verb that prints ten lines need not load one."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

# SGR parameters (ECMA-48, 8.3.117).
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

# The narrowest terminal that a table is made for, in columns.
WIDTH = 80


class Paint:
    """Styles text when switched on: ``paint.green("good")``; returns it as it is otherwise."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def bold(self, text: str) -> str:
        return self.styled("bold", text)

    def dim(self, text: str) -> str:
        return self.styled("dim", text)

    def red(self, text: str) -> str:
        return self.styled("red", text)

    def green(self, text: str) -> str:
        return self.styled("green", text)

    def yellow(self, text: str) -> str:
        return self.styled("yellow", text)

    def styled(self, style: str, text: str) -> str:
        return f"\033[{_CODES[style]}m{text}\033[0m" if self.on and text else text


PLAIN = Paint(False)


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Colour only on a terminal that can show it, and never with NO_COLOR set to anything (https://no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def wrapped(text: str, indent: str = "") -> list[str]:
    """Prose as lines of a terminal's :data:`WIDTH`."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def fields(pairs: Sequence[tuple[str, str]], width: int = 11) -> list[str]:
    """Indented ``name  value`` lines; a value of several lines stays in its column."""
    lines = []
    for name, value in pairs:
        first, *more = value.splitlines() or [""]
        lines.append(f"  {name.ljust(width)} {first}")
        lines.extend(f"  {' ' * width} {line}" for line in more)
    return lines
