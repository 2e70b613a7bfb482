"""One rollout a service: a `flock` held by the live runner, and a file beside it that says who.

The kernel drops the lock when its holder dies, so a crashed rollout never blocks the next one.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any, Dict, Optional

from .files import read_json, write_json
from .paths import Service
from .proc import Identity, alive


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
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise Held(read_json(service.lock_owner) or {}) from error
    write_json(service.lock_owner, owner)
    return fd


def owner(service: Service) -> Optional[Dict[str, Any]]:
    """The live holder's owner file, or None when nobody holds the lock.

    It asks for the holder's identity instead of trying the lock, which could make somebody's honest attempt fail.
    """
    value = read_json(service.lock_owner)
    if value is None or not isinstance(value.get("runner"), dict):
        return None
    return value if alive(Identity.from_json(value["runner"])) else None
