"""What a load generator saw of one run: plain records, and the figures made of them.

Definitions, the same for every client: TTFT is from sending a request to its first token. ITL is the gap between two tokens; a gap between
chunks that carry several tokens is divided among them. TPOT is (last token - first token) / (tokens - 1) of a request. E2E is from sending a
request to its last token. Throughput is all tokens generated / the run's duration; per user it is 1 / TPOT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence

PERCENTILES = (50, 95, 99)

# Requests of a cell that does not say how many: four waves, and never so few that a percentile is a single request.
WAVES, FEWEST = 4, 16

NATIVE, COMPLETIONS, CHAT = "native", "completions", "chat"
PATHS = (NATIVE, COMPLETIONS, CHAT)


@dataclass(frozen=True)
class Cell:
    """A point at which the server is measured: so many requests of so many tokens, so many of them at a time.

    ``cold``: the prefix cache is emptied before, and no token of a prompt may come from it.
    """

    name: str
    concurrency: int
    input_tokens: int
    output_tokens: int
    requests: int
    cold: bool = True

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "Cell":
        """A cell as a playbook says it (``bench.cells``)."""
        requests = value.get("requests") or max(WAVES * value["concurrency"], FEWEST)
        return cls(value["name"], value["concurrency"], value["input"], value["output"], requests, value["cold"])

    def to_json(self) -> Dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Request:
    """One request as the client saw it. Times in seconds; ``gaps`` are the times between tokens, in order; ``error`` is empty without one.

    ``finish`` is the finish reason, and None from a client that does not tell it.
    """

    tokens: int
    ttft: float
    gaps: List[float] = field(default_factory=list)
    text: str = ""
    error: str = ""
    finish: Any = None

    @property
    def e2e(self) -> float:
        return self.ttft + sum(self.gaps)

    @property
    def tpot(self) -> float:
        """0 for an answer of one token, which has none."""
        return sum(self.gaps) / (self.tokens - 1) if self.tokens > 1 else 0.0


@dataclass(frozen=True)
class Run:
    """One run of a client. ``completed`` counts what the client takes for success; ``failure`` says why there is no result at all.

    ``per_token``: the gaps are between tokens; else between chunks, which may carry several.
    """

    client: str
    path: str
    completed: int
    duration_s: float
    requests: List[Request]
    per_token: bool = True
    cpu_s: float = 0.0
    failure: str = ""

    @property
    def tokens(self) -> int:
        return sum(request.tokens for request in self.requests)


def figures(run: Run, cell: Cell) -> Dict[str, Any]:
    """The figures of a valid run, by the definitions above: times in milliseconds, throughput in tokens a second."""
    told = run.requests
    gaps = [gap for request in told for gap in request.gaps]
    tpots = [request.tpot for request in told if request.tokens > 1]
    ttfts = [request.ttft for request in told]
    median_tpot = percentile(tpots, 50) if tpots else 0.0
    return {
        "ttft_ms": _spread(ttfts),
        "itl_ms": _spread(gaps),
        "tpot_ms": _spread(tpots),
        "e2e_ms": _spread([request.e2e for request in told]),
        "output_tok_s": run.tokens / run.duration_s,
        "input_tok_s": cell.input_tokens * len(told) / run.duration_s,
        "user_tok_s": 1.0 / median_tpot if median_tpot else None,
        "duration_s": run.duration_s,
        "client_cores": run.cpu_s / run.duration_s,
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile by linear interpolation between the nearest ranks (as numpy's default); ``share`` in percent."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(seconds: Sequence[float]) -> Any:
    """Percentiles in milliseconds; None where there is nothing to measure (gaps of one-token answers)."""
    return {f"p{share}": percentile(seconds, share) * 1e3 for share in PERCENTILES} if seconds else None
