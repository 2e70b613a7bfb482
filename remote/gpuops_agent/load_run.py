"""What a load generator saw of one run: plain records, and the figures made of them.

Definitions, the same for every client: TTFT is from sending a request to its first token. ITL is the gap between two tokens; a gap between
chunks that carry several tokens is divided among them. TPOT is (last token - first token) / (tokens - 1) of a request. E2E is from sending a
request to its last token. Throughput is all tokens generated / the run's duration; per user it is 1 / TPOT. What
open loops add is in ``open_loop``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

PERCENTILES = (50, 95, 99)

# Requests of a cell that does not say how many: four waves, and never so few that a percentile is a single request; in an open loop those of a
# minute, and enough for arrivals drawn at random to come near their rate.
WAVES, FEWEST = 4, 16
OPEN_S, FEWEST_OPEN = 60, 64

NATIVE, COMPLETIONS, CHAT = "native", "completions", "chat"
PATHS = (NATIVE, COMPLETIONS, CHAT)


@dataclass(frozen=True)
class Cell:
    """A point at which the server is measured: so many requests of so many tokens.

    They are sent in a closed loop, ``concurrency`` of them at a time, or in an open one, ``rate`` a second (Poisson) however many are under way: one
    of the two is None. ``cold``: the prefix cache is emptied before, and no token of a prompt may come from it. ``goodput``: limits in milliseconds,
    by the names of ``open_loop.LIMITS``. ``client``: a load generator that is asked for by name; None is the best of the engine's own.
    """

    name: str
    concurrency: Optional[int]
    input_tokens: int
    output_tokens: int
    requests: int
    cold: bool = True
    rate: Optional[float] = None
    goodput: Optional[Mapping[str, float]] = None
    client: Optional[str] = None

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> "Cell":
        """A cell as a playbook says it (``bench.cells``)."""
        concurrency, rate = value.get("concurrency"), value.get("rate")
        least = max(math.ceil(OPEN_S * rate), FEWEST_OPEN) if rate else max(WAVES * value["concurrency"], FEWEST)
        requests = value.get("requests") or least
        return cls(
            value["name"],
            concurrency,
            value["input"],
            value["output"],
            requests,
            value["cold"],
            rate,
            value.get("goodput"),
            value.get("client"),
        )

    @property
    def at_most(self) -> int:
        """How many requests may be under way at a time."""
        return self.requests if self.concurrency is None else self.concurrency

    def to_json(self) -> Dict[str, Any]:
        """Without what it does not say: a cell that is measured as ever is the same as ever."""
        return {key: value for key, value in vars(self).items() if value is not None}


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

    ``per_token``: the gaps are between tokens; else between chunks, which may carry several. ``sent``: when each request was sent, in seconds after
    whatever; None from a client that does not tell.
    """

    client: str
    path: str
    completed: int
    duration_s: float
    requests: List[Request]
    per_token: bool = True
    cpu_s: float = 0.0
    failure: str = ""
    sent: Optional[Sequence[float]] = None

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
