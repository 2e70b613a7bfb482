"""Who may change a service: one rollout at a time, and none at all while a person has locked it.

A rollout's lock is a `flock` held by the live runner, and a file beside it that says who. The kernel drops the lock when its holder
dies, so a crashed rollout never blocks the next one. A person's lock is a file that stays until a person removes it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from . import journal
from .files import read_json, write_json
from .paths import Root, Service
from .proc import Identity, alive
from .recorder import outcome
from .wire import BEAT_S, REFUSED, AgentError

# How long a runner may take between the lock and its owner file, or between its outcome and its end, in seconds.
PATIENCE_S = 5.0

# How often a waiting order looks whether the rollout before it has ended, in seconds.
WAIT_LOOK_S = 0.1


class Held(Exception):
    """The lock is held by another live process; ``owner`` is what it wrote about itself."""

    def __init__(self, owner: Dict[str, Any]) -> None:
        super().__init__("held")
        self.owner = owner


def acquire(service: Service, owner: Dict[str, Any]) -> int:
    """Take the lock for the life of this process and write the owner file.

    Returns:
        the descriptor that holds the lock; it is not inherited by children.
    Raises:
        Held: another process has it.
    """
    service.root.locks.mkdir(parents=True, exist_ok=True)
    fd = os.open(service.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(service, fd)
        write_json(service.lock_owner, owner)
    except BaseException:
        os.close(fd)
        raise
    return fd


def owner(service: Service) -> Optional[Dict[str, Any]]:
    """The live holder's owner file, or None when nobody holds the lock, or only a runner that has told its outcome and is on its way out.

    It asks for the holder's identity instead of trying the lock, which could make somebody's honest attempt fail.
    """
    value = read_json(service.lock_owner)
    try:
        runner = Identity.from_json(value["runner"]) if value is not None else None
    except (KeyError, TypeError, ValueError):
        return None
    if value is None or runner is None or not alive(runner):
        return None
    op = value.get("op")
    return None if isinstance(op, str) and outcome(service, op) is not None else value


def busy(service: Service, holder: Dict[str, Any], *, waits: bool = False) -> AgentError:
    """Why an order is refused while another operation holds the lock (code 13).

    Args:
        holder: the lock's owner file.
        waits: the command can wait by itself (``--lock-wait``).
    """
    kind = holder.get("kind", "another operation")
    at = holder.get("at")
    begun = f"{time.time() - at:.0f} s ago" if isinstance(at, (int, float)) else "some time ago"
    return AgentError(
        f"service {service.name} is busy: {kind} is running",
        evidence=f"{kind} {holder.get('op')} by {holder.get('by', 'somebody')}, begun {begun}",
        next="gpuops attach to follow it, or wait until it has ended" + (": --lock-wait SECONDS" if waits else ""),
        code=REFUSED,
        kind="locked",
    )


def wait_free(service: Service, seconds: float, beat: Callable[[], None]) -> None:
    """Return once no rollout holds the service's lock; it may be taken again at any time. ``beat`` is called every :data:`BEAT_S`.

    Raises:
        AgentError: a person has locked the service, which is not waited for; or ``seconds`` are over. Code 13 both.
    """
    began = spoke = time.monotonic()
    while True:
        refuse_if_locked(service)
        holder = owner(service)
        if holder is None:
            return
        now = time.monotonic()
        if now - began >= seconds:
            raise busy(service, holder, waits=True)
        if now - spoke >= BEAT_S:
            beat()
            spoke = now
        time.sleep(WAIT_LOOK_S)


def lock(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The verb `lock {service, by, reason}`: nothing changes the server until somebody unlocks it. A rollout that runs is not hindered.

    Raises:
        AgentError: somebody else has locked it (code 13), or there is no such service.
    """
    service = root.service(args["service"])
    if not service.path.is_dir():
        raise AgentError(f"there is no service {service.name} to lock", evidence=str(root.services), next="gpuops status")
    held = person(service)
    if held is not None and held["by"] != args["by"]:
        raise _locked(service, held)
    said = {"by": args["by"], "reason": args["reason"], "at": round(time.time(), 3)}
    root.locks.mkdir(parents=True, exist_ok=True)
    write_json(service.person_lock, said)
    journal.write(service, "locked", **{key: said[key] for key in ("by", "reason")})
    return {"service": service.name, "locked": said, "running": (owner(service) or {}).get("op")}


def unlock(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The verb `unlock {service, by, reason?, force?}`: remove a person's lock; ``force`` also somebody else's.

    Raises:
        AgentError: it is somebody else's lock (code 13).
    """
    service = root.service(args["service"])
    held = person(service)
    if held is None:
        return {"service": service.name, "unlocked": None}
    if held["by"] != args["by"] and not args.get("force"):
        error = _locked(service, held)
        error.next = "ask them; or gpuops unlock --force"
        raise error
    for file in (service.person_lock, _aside(service)):
        file.unlink(missing_ok=True)
    journal.write(service, "unlocked", by=args["by"], reason=args.get("reason"), lock=held)
    return {"service": service.name, "unlocked": held}


def person(service: Service) -> Optional[Dict[str, Any]]:
    """The person's lock ``{by, reason, at}``, or None.

    A file that cannot be read is a lock by somebody unknown: a lock is not lost with its text.
    """
    value = read_json(service.person_lock)
    if value is None and not _aside(service).exists():
        return None
    value = value or {}
    return {
        "by": value.get("by", "somebody"),
        "reason": value.get("reason", "the lock's file is unreadable"),
        "at": value.get("at"),
    }


def refuse_if_locked(service: Service) -> None:
    """Raises AgentError (code 13, kind ``locked_by_person``) when a person has locked the service: who, why and when."""
    held = person(service)
    if held is not None:
        raise _locked(service, held)


def _aside(service: Service) -> Path:
    """Where an unreadable lock file was put (``files.read_json``)."""
    return service.person_lock.with_name(service.person_lock.name + ".unreadable")


def _locked(service: Service, held: Dict[str, Any]) -> AgentError:
    at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(held["at"])) if held["at"] else "an unknown time"
    return AgentError(
        f"service {service.name} is locked by {held['by']}: {held['reason']}",
        evidence=f"since {at}; {service.person_lock}",
        next="gpuops unlock, when they agree",
        code=REFUSED,
        kind="locked_by_person",
    )


def _lock(service: Service, fd: int) -> None:
    """Take the lock. A holder without a live owner is just coming (its file is not written yet) or going: that is waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            holder = owner(service)
            if holder is not None or time.monotonic() > deadline:
                raise Held(holder or {}) from error
        time.sleep(0.02)
