"""The `hello` verb: who this host is."""

from __future__ import annotations

import os
import pwd
import sys
from typing import Any, Dict

from . import PROTOCOL
from .paths import Root, own_zipapp
from .proc import boot_id


def hello(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Facts about the host that cost nothing to read."""
    return {"protocol": PROTOCOL, "agent": own_zipapp().stem, **facts(root)}


def facts(root: Root) -> Dict[str, Any]:
    """Host name, Python, boot id, user, ROOT, and the free bytes of ROOT's disk."""
    return {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "hostname": os.uname().nodename,
        "boot_id": boot_id(),
        "uid": os.getuid(),
        "user": _user(),
        "root": str(root.path),
        "disk_free": free_bytes(root),
    }


def free_bytes(root: Root) -> int:
    """What ROOT's disk still has for us."""
    disk = os.statvfs(root.path)
    return disk.f_bavail * disk.f_frsize


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
