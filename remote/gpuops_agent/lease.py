"""The confirm lease: a rollout goes on only while its controller is there, and counts only when the controller confirms it.

After deploy-rs ("magic rollback"): the timer runs on the host, so a closed laptop, a cut link or a killed controller ends with the known-good release
serving, whatever state the rollout was in. The time is CLOCK_BOOTTIME, which no change of the wall clock moves, and belongs to one boot id.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Optional, Tuple

from . import locks
from .files import read_json, write_json
from .paths import Root, Service
from .proc import boot_id, boottime
from .wire import AgentError

RESTORE, FINISH = "restore", "finish"


class Leash:
    """Why a rollout shall undo itself: somebody asked for it, or its controller has gone.

    Called often (``leash()``), it is the ``cancelled`` of everything that waits. ``kind`` and ``reason`` say why it pulled.
    """

    def __init__(self, service: Service, order: Dict[str, Any]) -> None:
        self._folder = service.operation(order["op"])
        self._lease_s = lease_seconds(order)
        self._until = 0.0
        self._seen: Optional[Tuple[int, int]] = None
        self.kind = ""
        self.reason = ""

    @property
    def leased(self) -> bool:
        """Whether this rollout needs a controller."""
        return self._lease_s is not None

    def __call__(self) -> bool:
        if (self._folder / "cancel").exists():
            self.kind, self.reason = "cancelled", "cancelled before its verdict"
        elif self._lease_s is not None and self._expired():
            self.kind, self.reason = "controller_lost", f"its controller was lost: no sign of life for {self._lease_s:g} s"
        return bool(self.kind)

    def confirmed(self) -> bool:
        """Whether the controller has confirmed the verified candidate."""
        return (self._folder / "confirm.json").exists()

    def _expired(self) -> bool:
        # Asked twenty times a second: the file is read only when another one has taken its place.
        path = self._folder / "lease.json"
        try:
            status = path.stat()
            seen = (status.st_ino, status.st_mtime_ns)
        except OSError:
            return True
        if seen != self._seen:
            self._seen, self._until = seen, until(read_json(path))
        return boottime() > self._until


def lease_seconds(order: Dict[str, Any]) -> Optional[float]:
    """How long the host waits for a silent controller; None when the order finishes alone."""
    if order.get("on_controller_lost", FINISH) != RESTORE:
        return None
    return float(order["deadlines"].get("lease_s") or 60.0)


def begin(service: Service, order: Dict[str, Any]) -> None:
    """Grant the first lease: the order that has just come in is a sign of life."""
    seconds = lease_seconds(order)
    if seconds is not None:
        _grant(service, order["op"], seconds)


def renew(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The `renew` verb: the controller is there. ``renewed`` is False when the operation does not run (any more)."""
    service, op = root.service(args["service"]), args["op"]
    order = _live_order(service, op)
    seconds = lease_seconds(order) if order else None
    if seconds is None:
        return {"renewed": False}
    _grant(service, op, seconds)
    return {"renewed": True, "lease_s": seconds}


def confirm(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The `confirm` verb, over a connection of its own: the controller can still reach the host, and wants this release.

    Raises:
        AgentError: the operation does not run; its outcome tells the rest.
    """
    service, op = root.service(args["service"]), args["op"]
    if _live_order(service, op) is None:
        raise AgentError(f"operation {op} does not run (any more)", next="gpuops attach shows how it ended", kind="no_operation")
    write_json(service.operation(op) / "confirm.json", {"at": time.time()})
    return {"confirmed": True}


def until(value: Optional[Dict[str, Any]]) -> float:
    """When the lease ends. One that is missing, unreadable or of another boot has ended: without proof of a controller there is none."""
    if value is None or value.get("boot_id") != boot_id() or not isinstance(value.get("until"), (int, float)):
        return 0.0
    return float(value["until"])


def _grant(service: Service, op: str, seconds: float) -> None:
    write_json(service.operation(op) / "lease.json", {"boot_id": boot_id(), "until": boottime() + seconds})


def _live_order(service: Service, op: str) -> Optional[Dict[str, Any]]:
    holder = locks.owner(service)
    if holder is None or holder.get("op") != op:
        return None
    return read_json(service.operation(op) / "order.json")
