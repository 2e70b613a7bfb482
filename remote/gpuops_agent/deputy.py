"""A runner's deputy: a process that outlives it, and calls somebody when it dies in the middle of its work.

While a server runs, its supervisor sees to that. Between two servers there is none, and a runner that dies then would leave nobody serving.
"""

from __future__ import annotations

import os
import sys
import time
import traceback

from . import lifeguard, locks, proc, recovery
from .paths import Service
from .proc import Identity
from .recorder import outcome
from .records import supervisor_alive

# How often it is looked whether somebody else has finished the work, and for how long it is left to a supervisor that is there, in seconds.
LOOK_S, PATIENCE_S = 0.5, 3.0

# Where the descriptors end that a runner can have inherited or opened (it has a few).
_DESCRIPTORS = 4096


def appoint(service: Service, op: str, runner: Identity) -> None:
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
        see_to_it(service, op)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def see_to_it(service: Service, op: str) -> None:
    """Return once somebody has finished an operation whose runner is dead: the supervisor that is there, a person's order, or a runner called here.

    A runner that cannot be called (no process left, a full disk) is called again, for as long as nobody else comes. Whoever else holds the lock
    meanwhile, and only measures, is waited for.
    """
    left_to_others = time.monotonic() + PATIENCE_S
    while recovery.was_touched(service, op) and outcome(service, op) is None:
        alone = not supervisor_alive(service) or time.monotonic() > left_to_others
        if alone and locks.owner(service) is None:
            lifeguard.call_recovery(service, op)
        time.sleep(LOOK_S)
