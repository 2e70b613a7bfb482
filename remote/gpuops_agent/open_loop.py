"""An open loop: requests come at a rate (Poisson), whether or not those before them are answered; and goodput, what of them is good enough.

Which client sends them was decided by what exists. The engine's own does (``--request-rate``), on its native route, and tells enough of every request
to count goodput here; so AIPerf is optional. What AIPerf alone tells is when each request was sent: the engine's clients sleep from one request to
the next, so that delays add up, and keep no times of sending. A cell that needs those says ``client: aiperf`` (``aiperf_client``).

Asked rate: the playbook's. Achieved rate: gaps between requests / the time from the first that was sent to the last. Of the engine's clients only a
lower bound is known: they tell requests in the order of sending, and the last was sent no later than the run's end less its own E2E. Nothing in an
open loop waits for the server, so a rate that is not achieved is the client's fault, or chance: the time that n gaps drawn at random take has a
standard deviation of 1 / sqrt(n) of its mean.

Goodput: requests a second of the whole run that meet every limit. A request's TTFT and E2E are as ever; its ITL is the mean one, which is its TPOT.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Optional

from .load_run import Cell, Request, Run

# What a limit of a playbook's cell is held against, in seconds.
LIMITS: Mapping[str, Callable[[Request], float]] = {
    "ttft_ms": lambda request: request.ttft,
    "itl_ms": lambda request: request.tpot,
    "e2e_ms": lambda request: request.e2e,
}

# Below this share of the asked rate a client has fallen behind, unless chance explains it: 99 % of draws take less than so many deviations more.
BEHIND = 0.95
DEVIATIONS = 2.33


def figures(run: Run, cell: Cell) -> Dict[str, Any]:
    """What a valid run adds to its figures, by the definitions above; null for what its cell does not ask.

    ``{rate: {asked, achieved, at_least}, goodput: {req_s, share}}``: requests a second; ``at_least``: the achieved one is a lower bound; ``share`` of
    the requests.
    """
    return {
        "rate": _rate(run, cell.rate) if cell.rate else None,
        "goodput": _goodput(run, cell.goodput) if cell.goodput else None,
    }


def notes(run: Run, cell: Cell) -> List[str]:
    """Whether requests came more slowly than asked, and why; [] when they did not."""
    achieved = achieved_rate(run)
    if not cell.rate or achieved is None or achieved >= BEHIND * cell.rate:
        return []
    told = f"requests were sent at {achieved:.3g} a second, of {cell.rate:.3g} asked"
    chance = DEVIATIONS / math.sqrt(len(run.requests) - 1)
    if achieved >= cell.rate / (1 + chance):
        return [
            f"{told}: {len(run.requests)} arrivals drawn at random may miss their rate by as much; more requests miss it by less"
        ]
    return [f"{told}: the client fell behind, and the figures are those of the lower rate"]


def achieved_rate(run: Run) -> Optional[float]:
    """Requests a second, as they were sent; None for fewer than two."""
    gaps = len(run.requests) - 1
    if gaps < 1:
        return None
    span = max(run.sent) - min(run.sent) if run.sent else run.duration_s - run.requests[-1].e2e
    return gaps / span if span > 0 else None


def _rate(run: Run, asked: float) -> Dict[str, Any]:
    return {"asked": asked, "achieved": achieved_rate(run), "at_least": run.sent is None}


def _goodput(run: Run, limits: Mapping[str, float]) -> Dict[str, float]:
    good = sum(all(LIMITS[name](request) * 1e3 <= limit for name, limit in limits.items()) for request in run.requests)
    return {"req_s": good / run.duration_s, "share": good / len(run.requests)}
