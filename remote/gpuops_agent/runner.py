"""The hidden verb `runner`: the process that plays one order, detached from whoever sent it."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any, BinaryIO, Dict

from . import ab_end, ab_lease, deputy, locks
from .detach import acknowledge, request
from .files import read_json, write_json
from .lease import lease_seconds
from .paths import Service, own_root
from .proc import identify
from .recorder import Recorder
from .rollout import Rollout
from .wire import FAILURE, AgentError


def main(stdin: BinaryIO) -> int:
    """Take the service's lock, acknowledge, play the order, store the outcome.

    The acknowledgement is ``{"op": ID}``, or ``{"held": OWNER}`` when another operation has the lock.
    """
    asked = request(stdin)
    service = own_root().service(asked["service"])
    op = asked["op"]
    order = read_json(service.operation(op) / "order.json")
    if order is None:
        acknowledge({"error": AgentError(f"operation {op} has no readable order").as_dict()})
        return FAILURE
    me = identify(os.getpid())
    assert me is not None, "this process has no /proc entry"
    owner = {
        "op": op,
        "kind": order["kind"],
        "spec": order.get("spec"),
        "trial": bool(order.get("trial")),
        "by": order.get("by"),
        "reason": order.get("reason"),
        "at": time.time(),
        "runner": me.to_json(),
    }
    try:
        write_json(service.operation(op) / "runner.json", me.to_json())
        lock = locks.acquire(service, owner)
    except locks.Held as held:
        acknowledge({"held": held.owner})
        return FAILURE
    except AgentError as error:
        acknowledge({"error": error.as_dict()})
        return error.code
    deputy.appoint(service, op, me)
    recorder = Recorder(service, op)
    recorder(
        "op",
        op=op,
        kind=order["kind"],
        service=service.name,
        by=order.get("by"),
        reason=order.get("reason"),
        lease_s=lease_seconds(order),
    )
    acknowledge({"op": op})
    ended = _play(_rollout(service, order, recorder))
    recorder.finish(_settled(service, order, ended, recorder))
    os.close(lock)
    return 0


def _rollout(service: Service, order: Dict[str, Any], recorder: Recorder) -> Rollout:
    if order["kind"] != "experiment":
        return Rollout(service, order, recorder)
    from .experiment import Experiment  # only a trial needs it

    return Experiment(service, order, recorder)


def _play(rollout: Rollout) -> Dict[str, Any]:
    try:
        ab_lease.refuse_foreign(rollout.service, rollout.order)
        return rollout.play()
    except AgentError as error:
        return rollout.failed(error)
    except Exception as error:
        # A defect of the agent must still end in a recorded outcome.
        traceback.print_exc(file=sys.stderr)
        where = traceback.format_exc().strip().splitlines()
        return rollout.failed(AgentError(f"the agent failed: {error!r}", evidence=" | ".join(where[-3:]), kind="bug"))


def _settled(service: Service, order: Dict[str, Any], ended: Dict[str, Any], recorder: Recorder) -> Dict[str, Any]:
    """The outcome, after a comparison that is over by this order was closed. What fails there does not change how the order has ended."""
    try:
        return ab_end.settle(service, order, ended, recorder)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        recorder("note", text=f"the comparison's record could not be closed: {error!r}")
        return ended
