"""The rows of the table of known failures, as they travel with an order (``engine["meaningful"]["signatures"]``, see ``gpuops/engines/failures``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional

FATAL, CONSEQUENCE, HINT = "fatal", "consequence", "hint"
UNKNOWN = "unknown"

HARDWARE, SPECIFIC, GENERAL = 3, 2, 1
"""Weights: the kernel's or the hardware's own words; a named mechanism; a mere exception or wrapper."""


@dataclass(frozen=True)
class Signature:
    """One row of the table.

    Attributes:
        name: the failure's class.
        weight: :data:`HARDWARE`, :data:`SPECIFIC` or :data:`GENERAL`.
        ends: the server never gets ready after this line, though its process may live on for minutes.
        stands: it counts even when the server goes on.
        opens: the exception that it announces follows it.
        lends: a wrapper that gives its class to a cause in it that has none of its own.
        only_in_exceptions: the words mean it only in an exception or an error record.
        in_warnings: the words mean it even in a warning.
        at: the words mean it only under a frame that this is found in, see :class:`Tracebacks`.
        raised_at: the words mean it only where this is found in the innermost frame.
        settles: it says what the mere exceptions before it, of the same record of the log, have come to.
    """

    name: str
    kind: str
    weight: int
    pattern: "re.Pattern[str]"
    what: str
    cure: str
    restart_cures: bool
    also: str = ""
    ends: bool = False
    stands: bool = False
    opens: bool = False
    lends: bool = False
    only_in_exceptions: bool = False
    in_warnings: bool = False
    at: "Optional[re.Pattern[str]]" = None
    raised_at: "Optional[re.Pattern[str]]" = None
    settles: bool = False


def signature(row: Mapping[str, Any]) -> Signature:
    """A row as it travels."""
    return Signature(
        name=row["class"],
        kind=row["kind"],
        weight=row["weight"],
        pattern=re.compile(row["pattern"]),
        what=row.get("what", ""),
        cure=row.get("cure", ""),
        restart_cures=bool(row.get("restart_cures")),
        also=row.get("also", ""),
        ends=bool(row.get("ends")),
        stands=bool(row.get("stands")),
        opens=bool(row.get("opens")),
        lends=bool(row.get("lends")),
        only_in_exceptions=row.get("only") == "exception",
        in_warnings=bool(row.get("in_warnings")),
        at=re.compile(row["at"]) if row.get("at") else None,
        raised_at=re.compile(row["raised_at"]) if row.get("raised_at") else None,
        settles=bool(row.get("settles")),
    )


def older(meaningful: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """The rows of a release that an older gpuops staged: causes and wrappers without a class."""
    return [
        {
            "class": UNKNOWN,
            "kind": CONSEQUENCE if row["wrapper"] else FATAL,
            "weight": GENERAL,
            "pattern": row["pattern"],
            "ends": bool(row.get("final")),
        }
        for row in meaningful.get("fatal", [])
    ]
