"""Who asks: the name that a host writes down beside what it was asked to do."""

from __future__ import annotations

import getpass
import socket


def me() -> str:
    """``user@machine`` of this process."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
