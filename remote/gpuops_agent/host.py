"""The `hello` verb: who this host is."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
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
        "python": platform.python_version(),
        "hostname": platform.node(),
        "boot_id": boot_id(),
        "uid": os.getuid(),
        "user": _user(),
        "root": str(root.path),
        "disk_free": shutil.disk_usage(root.path).free,
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
