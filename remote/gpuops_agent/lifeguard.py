"""What a supervisor does for its service besides watching the server, and a runner's deputy: calling a runner when nobody else can.

A rollout whose runner has died is undone at once, not only when somebody asks; a server that died by itself while it served is started again where
its release's restart policy says so. Both are ordinary operations, played by an ordinary runner under the service's lock.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Dict, Optional

from . import ab_lease, locks, releases, subreaper
from .detach import spawn
from .files import read_json, write_json
from .paths import Service, own_zipapp
from .proc import Identity, alive
from .recorder import outcome
from .recovery import was_touched
from .reserve import Reserve
from .wire import AgentError

# What holds a service's lock without a runner, and changes nothing of its server.
_ONLOOKERS = ("bench", "profile", "prune")

# How often it is looked whether one of them has let go, in seconds.
LOOK_S = 0.05


def look_after_rollout(service: Service) -> None:
    """Undo a rollout that was cut after it had touched the server, or a comparison that has lost its controller.

    Cheap when there is nothing to do: it is called with every scan.
    """
    if undo_cut(service):
        return
    lease = ab_lease.lost(service)
    if lease is not None and locks.owner(service) is None and locks.person(service) is None:
        _call(service, "recover", _deadlines(service), f"comparison {lease.comparison}: {lease.reason}")


def undo_cut(service: Service) -> bool:
    """Undo a rollout that was cut after it had touched the server; whether there was one."""
    op = _cut_operation(service)
    if op is None:
        return False
    call_recovery(service, op)
    return True


def call_recovery(service: Service, op: str) -> None:
    """Call a runner that finishes a cut operation. What keeps it from starting is said; whoever calls looks again."""
    order = read_json(service.operation(op) / "order.json") or {}
    _call(service, "recover", order.get("deadlines"), f"the runner of {op} died")


def server_ended(service: Service, release: int) -> None:
    """The server of ``release`` has ended by itself: start it again, where its release allows that; in a comparison, the known-good one at once."""
    lease = ab_lease.held(service)
    _until_alone(service)
    if releases.current(service) != release or locks.owner(service) is not None or locks.person(service) is not None:
        return
    if lease is not None:
        # Its controller will see it, if there is one; nobody comes after us to look at the lease.
        _call(service, "recover", _deadlines(service), f"a launch of comparison {lease.comparison} died")
        return
    found = releases.load(service, release)
    if found is None or not (found.document.get("restart") or {}).get("max"):
        return
    _call(service, "revive", found.document.get("deadlines"), "its server died while it served")


def _until_alone(service: Service) -> None:
    """A measurement of a server that has ended is about to fail, and to let go of the service's lock, at the latest with its process."""
    while (locks.owner(service) or {}).get("kind") in _ONLOOKERS:
        time.sleep(LOOK_S)


def _deadlines(service: Service) -> Optional[Dict[str, Any]]:
    found = releases.load(service, releases.current(service))
    return found.document.get("deadlines") if found is not None else None


def _cut_operation(service: Service) -> Optional[str]:
    """The operation that holds the owner file, when its runner is dead, it has no outcome, and it had touched the server."""
    value = read_json(service.lock_owner)
    try:
        runner = Identity.from_json(value["runner"]) if value is not None else None
    except (KeyError, TypeError, ValueError):
        return None
    op = value.get("op") if value is not None else None
    if runner is None or not isinstance(op, str) or alive(runner) or outcome(service, op) is not None:
        return None
    return op if was_touched(service, op) else None


def _call(service: Service, kind: str, deadlines: Optional[Dict[str, Any]], reason: str) -> None:
    op = f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(4).hex()}"
    order = {
        "version": 1,
        "kind": kind,
        "service": service.name,
        "op": op,
        "by": "supervisor",
        "reason": reason,
        "spec": None,
        "deadlines": deadlines or {"stop_s": 60.0},
    }
    folder = service.operation(op)

    def start() -> None:
        begun = False
        try:
            answer = spawn(service, "runner", {"service": service.name, "op": op}, own_zipapp(), str(folder / "runner.log"))
            begun = "held" not in answer  # else somebody was quicker
        finally:
            if not begun:
                # It is tried again with the next look: nothing may pile up.
                shutil.rmtree(folder, ignore_errors=True)

    try:
        folder.mkdir(parents=True)
        write_json(folder / "order.json", order, 0o600)
        # Not as our descendant: a stop would sweep it, and all that it starts.
        subreaper.outside(start)
    except (AgentError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        # What the cut rollout had kept back of a disk that is full now was kept for this.
        Reserve(service.reserve_file).give_back()
        print(f"{kind} could not be started: {error}", flush=True)
