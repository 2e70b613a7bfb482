"""One rollout a service: a `flock` held by the live runner, and a file beside it that says who.

The kernel drops the lock when its holder dies, so a crashed rollout never blocks the next one.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any, Dict, Optional

from .files import read_json, write_json
from .paths import Service
from .proc import Identity, alive
from .recorder import outcome

# How long a runner may take between the lock and its owner file, or between its outcome and its end, in seconds.
PATIENCE_S = 5.0


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
