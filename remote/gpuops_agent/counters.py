"""The server's own counters (Prometheus text): what it says that it has generated, whoever asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from . import http
from .server import Server

TIMEOUT_S = 10.0

_LINE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_RANK = re.compile(r'tp_rank="(\d+)"')


@dataclass(frozen=True)
class Counters:
    """Tokens and requests since the server's start, and how many requests run and wait now."""

    generated: float
    prompt: float
    cached: float
    aborted: float
    running: float
    queued: float

    def to_json(self) -> Dict[str, float]:
        return dict(vars(self))


def read(server: Server, words: Mapping[str, Any], timeout: float = TIMEOUT_S) -> Optional[Counters]:
    """The counters now; None when the server publishes none. ``words`` is ``load`` of the engine's facts; ``timeout`` in seconds."""
    answer = http.get(server.host, server.port, words["metrics"], timeout, server.headers)
    return parse(answer.body.decode("utf-8", "replace"), words["counters"]) if answer.status == 200 else None


def parse(text: str, names: Mapping[str, str]) -> Optional[Counters]:
    """The counters of a page; ``names`` are the engine's words for ours. None when the page does not count generated tokens.

    Values of one metric are added up, but for tensor-parallel ranks, which all count the same requests. A counter that nothing has raised yet is
    absent from the page, and zero.
    """
    by_rank: Dict[str, Dict[str, float]] = {}
    ours = {theirs: name for name, theirs in names.items()}
    for line in text.splitlines():
        found = _LINE.match(line)
        name = ours.get(found.group("name")) if found else None
        if found is None or name is None:
            continue
        rank = _RANK.search(found.group("labels") or "")
        values = by_rank.setdefault(name, {})
        key = rank.group(1) if rank else ""
        values[key] = values.get(key, 0.0) + float(found.group("value"))
    if "generated" not in by_rank:
        return None
    return Counters(**{name: max(by_rank.get(name, {"": 0.0}).values()) for name in Counters.__dataclass_fields__})
