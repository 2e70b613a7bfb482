"""The end of an A/B comparison that its controller did not bring about: what the runner does about it after an order was played."""

from __future__ import annotations

import time
from typing import Any, Dict

from . import ab_lease, comparisons, journal, liveness, probes, recovery, releases
from .ab_lease import Lease
from .asking import DOWN, RIGHT, WRONG
from .paths import Service
from .records import server_alive
from .server import of_release
from .way_back import Outcome
from .wire import RESTORE_FAILED, Emit

# Orders that the host gives itself, or a person who wants it to be as it should: a comparison that is alive goes on after them.
_RECOVERING = ("recover", "revive")


def settle(service: Service, order: Dict[str, Any], ended: Outcome, tell: Emit) -> Outcome:
    """Close the record of a comparison that is over by this order; returns the order's outcome, with what the probes said in it.

    A lost comparison is closed whatever its recovery has come to, else it would be begun again every second; it is left open only where the
    recovery had begun before the lease ran out, and another release serves.
    """
    lease = ab_lease.held(service)
    if lease is None or order.get("comparison"):
        # Also a launch that a comparison left behind which another process goes on with by now.
        return ended
    if order["kind"] not in _RECOVERING:
        if recovery.was_touched(service, order["op"]):
            _close(service, lease, f"{order['kind']} was ordered by {order.get('by')}", None)
        return ended
    if not lease.lost or (ended["code"] == 0 and not _at_home(service)):
        return ended
    verdict = _regated(service, tell)
    home = releases.known_good(service)
    restored = ended["outcome"] == "recovered"
    _close(service, lease, lease.reason, {"release": home, "restored": restored, "verdict": verdict, "at": round(time.time(), 3)})
    told = {**ended, "comparison": lease.comparison, "verdict": verdict}
    if ended["code"] != 0 or verdict == RIGHT:
        return told
    reason = f"release {home} serves again after comparison {lease.comparison}, and its probes say that it is {verdict}"
    return {**told, "outcome": "failed", "code": RESTORE_FAILED, "reason": reason, "next": "gpuops smoke"}


def _at_home(service: Service) -> bool:
    record = server_alive(service)
    return record is not None and record.release == releases.known_good(service)


def _regated(service: Service, tell: Emit) -> str:
    """Put every probe to the known-good release; the gates' record of its own rollout stays what it is."""
    release, record = releases.load(service, releases.known_good(service)), server_alive(service)
    if release is None or record is None or record.release != release.number:
        return DOWN
    server = of_release(service, release)
    check = liveness.check(server, record, service.server_log(release.number), release.document["deadlines"]["generate_s"])
    if check.state != liveness.SERVING:
        return DOWN
    results = []
    for probe in release.document["probes"]:
        began = time.monotonic()
        result = probes.run(server, probe, release.document["deadlines"]["probe_s"])
        results.append({**result, "seconds": round(time.monotonic() - began, 3)})
        tell("probe", **results[-1])
    return WRONG if probes.failed(results) else RIGHT


def _close(service: Service, lease: Lease, reason: str, back: Any) -> None:
    journal.write(service, "comparison_ended", comparison=lease.comparison, reason=reason)
    comparisons.close(service, lease, reason, back)
