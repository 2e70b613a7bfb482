"""The lease of an A/B comparison: launches that nobody promotes serve only while somebody plays on with it.

A launch has the lease of its rollout; between launches, and while one is measured, this one holds. Its controller renews it. When it runs out the
supervisor of the launch that serves calls a `recover`, and the known-good release serves again, by the normal way back (``lifeguard``, ``recovery``);
any other order that changes the server ends the comparison too, and its controller is refused from then on.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

from .files import read_json, write_json
from .lease import until
from .paths import Root, Service
from .proc import boot_id, boottime
from .wire import REFUSED, AgentError

TAKEN = "taken"


@dataclass(frozen=True)
class Lease:
    """Who plays which comparison. ``until`` is CLOCK_BOOTTIME; 0.0 when the file cannot be read or is of another boot: then it has run out."""

    comparison: str
    token: str
    seconds: float
    until: float

    @property
    def lost(self) -> bool:
        """Whether its controller has been silent for too long."""
        return boottime() > self.until

    @property
    def reason(self) -> str:
        return f"its controller was lost: no sign of life for {self.seconds:g} s"

    def is_of(self, order: Dict[str, Any]) -> bool:
        """Whether an order is the comparison's own."""
        return bool((order.get("comparison") or {}).get("token") == self.token)


def held(service: Service) -> Optional[Lease]:
    """The lease of the comparison that has not ended, lost or not; None without one. Cheap: a supervisor asks every second."""
    if not service.comparison_file.exists() and not _aside(service).exists():
        return None
    value = read_json(service.comparison_file)
    try:
        told = value or {}
        return Lease(str(told["comparison"]), str(told["token"]), float(told["lease_s"]), until(value))
    except (KeyError, TypeError, ValueError):
        return Lease("", "", 0.0, 0.0)


def lost(service: Service) -> Optional[Lease]:
    """The lease that has run out, if there is one."""
    lease = held(service)
    return lease if lease is not None and lease.lost else None


def grant(service: Service, comparison: str, token: str, seconds: float) -> None:
    """Give a comparison so many seconds from now on; the holder of :func:`alone` may."""
    value = {"comparison": comparison, "token": token, "lease_s": seconds, "boot_id": boot_id(), "until": boottime() + seconds}
    service.run.mkdir(parents=True, exist_ok=True)
    write_json(service.comparison_file, value)
    _aside(service).unlink(missing_ok=True)


def drop(service: Service) -> None:
    """The comparison has ended."""
    for file in (service.comparison_file, _aside(service)):
        file.unlink(missing_ok=True)


def renew(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The `ab.renew` verb: the controller is there. ``renewed`` is False when the comparison has ended, or its lease has run out already."""
    service = root.service(args["service"])
    with alone(service):
        lease = held(service)
        if lease is None or lease.token != args["token"] or lease.lost:
            return {"renewed": False}
        grant(service, lease.comparison, lease.token, lease.seconds)
    return {"renewed": True, "lease_s": lease.seconds}


def refuse_foreign(service: Service, order: Dict[str, Any]) -> None:
    """An order of a comparison is played only while that holds the lease; the way home also when it has run out.

    Raises:
        AgentError: it has ended, or another process goes on with it (code 13, kind ``taken``).
    """
    named = order.get("comparison")
    if not named:
        return
    lease = held(service)
    if lease is not None and lease.is_of(order) and not (lease.lost and order.get("trial")):
        return
    other = lease is not None and not lease.is_of(order)
    raise AgentError(
        f"another process goes on with comparison {named['id']}" if other else f"the host has ended comparison {named['id']}",
        evidence=lease.reason if lease is not None and not other else "its lease is held by nobody, or by somebody else",
        next=f"gpuops report --ab {named['id']}; gpuops ab --resume {named['id']}",
        code=REFUSED,
        kind=TAKEN,
    )


@contextmanager
def alone(service: Service) -> Iterator[None]:
    """Nobody else reads a record or lease in order to change it meanwhile."""
    service.root.locks.mkdir(parents=True, exist_ok=True)
    fd = os.open(service.comparison_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _aside(service: Service) -> Path:
    """Where an unreadable lease was put (``files.read_json``): a comparison is not forgotten with its text."""
    return service.comparison_file.with_name(service.comparison_file.name + ".unreadable")
