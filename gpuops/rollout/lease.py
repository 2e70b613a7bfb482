"""The controller's side of leases: signs of life while a rollout or a comparison runs, and the confirmation at a rollout's end.

Renewals travel over a connection of their own, in a thread of their own: the connection that follows the rollout may hang for reasons
that have nothing to do with the controller, and must not be used by two threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from gpuops.errors import GpuopsError, OutcomeUnknown, TransportError
from gpuops.rollout.session import Session

# Three renewals fit into a lease: one may be lost, one may be late.
RENEWALS_A_LEASE = 3

# Seconds between attempts to confirm; the host waits as long as the lease holds.
CONFIRM_AGAIN_S = 1.0


class Renewer:
    """Keeps one lease alive until :meth:`stop`. A renewal that fails is made up for by the next one.

    Args:
        connect: opens a new session to the host.
        lease_s: the lease's length in seconds, as the host told it.
        verb: the agent's verb that renews it, with its arguments.
    """

    def __init__(self, connect: Callable[[], Session], lease_s: float, verb: str, **args: Any) -> None:
        self._connect = connect
        self._verb = verb
        self._args = args
        self._every_s = lease_s / RENEWALS_A_LEASE
        self._stopped = threading.Event()
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._run, name="gpuops-lease", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more. Does not wait for a renewal that hangs: the thread is a daemon."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._session = self._session or self._connect()
                self._session.agent.call(self._verb, **self._args)
            except GpuopsError:
                self._drop()
        self._drop()

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.agent.transport.close()


def confirm(connect: Callable[[], Session], service: str, op: str, lease_s: float) -> None:
    """Confirm a verified candidate over a fresh connection, trying again for as long as a lease lasts.

    Raises:
        GpuopsError: the host is not reached in time (it restores by itself), or the operation has ended.
    """
    retrying = Retrying(
        stop=stop_after_delay(lease_s),
        wait=wait_fixed(CONFIRM_AGAIN_S),
        retry=retry_if_exception_type((OutcomeUnknown, TransportError)),
        reraise=True,
    )
    retrying(_confirm_once, connect, service, op)


def _confirm_once(connect: Callable[[], Session], service: str, op: str) -> None:
    with connect() as session:
        session.agent.call("confirm", service=service, op=op)
