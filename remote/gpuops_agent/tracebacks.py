"""Follow the Python tracebacks in a log, line by line: which frames the line stands under, and which line is the exception."""

from __future__ import annotations

import collections
import re
from typing import Deque, List

_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
# What may end a traceback: a name with dots, or one in camel case with a colon. Python prints it at the margin of its frames.
_EXCEPTION = re.compile(r"^(?:(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*(?::|$)|_?[A-Z]\w*[a-z]\w*(?:: |:?$))")
# An exception passes through some dozens of frames; of an endless recursion the last ones tell enough.
_FRAMES = 60
_SOURCE = 300


def is_head(text: str) -> bool:
    """Whether a traceback begins with this line."""
    return _HEAD in text


class Tracebacks:
    """The traceback that a log is in the midst of.

    Attributes:
        frames: of the latest traceback, the outermost first: ``FILE:LINE in FUNCTION: SOURCE``. They stay until the next traceback or record, since
            an exception's words may go on for many lines.
        raised: whether the last line taken was the exception that its frames led to.
        worded: the same, or it goes on with the exception's words, which a colon had announced.
    """

    def __init__(self) -> None:
        self._frames: Deque[str] = collections.deque(maxlen=_FRAMES)
        self._place = ""
        self._open = False
        self._source_next = False
        self._announces = False
        self.raised = self.worded = False

    @property
    def frames(self) -> List[str]:
        return list(self._frames)

    @property
    def innermost(self) -> str:
        """File, line and function of the innermost frame; empty where there is none."""
        return self._place

    def forget(self) -> None:
        """A record of the log begins: what stood before it is none of its own."""
        self._frames.clear()
        self._place = ""
        self._open = self._source_next = self.raised = self.worded = False

    def take(self, text: str) -> bool:
        """One line without what loggers put before it. Whether it is a part of a traceback that says nothing by itself: a frame or its source."""
        announced = self.worded and self._announces
        self.raised = self.worded = False
        if is_head(text):
            self._frames.clear()
            self._open, self._source_next = True, False
            return False
        frame = _FRAME.match(text)
        if frame:
            self._place = f"{frame['file']}:{frame['line']}" + (f" in {frame['function']}" if frame["function"] else "")
            self._frames.append(self._place)
            self._source_next = True
            return True
        if self._source_next and text.startswith("    "):
            self._source_next = False
            self._frames[-1] += f": {text.strip()[:_SOURCE]}"
            return True
        self._source_next = False
        if self._open and self._frames and _EXCEPTION.match(text):
            self._open = False
            self.raised = True
        self.worded = self.raised or announced
        self._announces = text.rstrip().endswith(":")
        return False
