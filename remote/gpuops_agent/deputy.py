"""A runner's deputy: a process that outlives it, and calls somebody when it dies in the middle of its work.

While a server runs, its supervisor sees to that. Between two servers there is none, and a runner that dies then would leave nobody serving.
"""

from __future__ import annotations

import os
import sys
import time
import traceback

from . import lifeguard, proc
from .paths import Service
from .proc import Identity
from .records import supervisor_alive

# How often it is looked whether a supervisor that was there has left it to us, in seconds.
LOOK_S = 0.2

# Where the descriptors end that a runner can have inherited or opened (it has a few).
_DESCRIPTORS = 4096


def appoint(service: Service, runner: Identity) -> None:
    """Fork this process's deputy; called by the runner that holds the service's lock, before it has any thread. A fork that fails is said."""
    try:
        if os.fork():
            return
    except OSError as error:
        print(f"the runner has no deputy: {error}", file=sys.stderr, flush=True)
        return
    try:
        # What ends the runner's session or process group must not end us; and the service's lock is the runner's.
        os.setsid()
        os.closerange(3, _DESCRIPTORS)
        while not proc.wait_gone(runner, 3600.0):
            pass
        _see_to_it(service)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _see_to_it(service: Service) -> None:
    """Somebody must finish what was cut: the supervisor that is there, or else a runner that we call."""
    while lifeguard.cut_operation(service) is not None:
        if not supervisor_alive(service):
            lifeguard.undo_cut(service)
            return
        time.sleep(LOOK_S)
