"""Following an operation to its outcome, across lost links and Ctrl-C.

The host plays the order whether we watch or not. So a lost link is answered by asking again, never by guessing; the first Ctrl-C
asks the host to undo and follows that; the second leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from gpuops.agent.client import Event, Listener, raised
from gpuops.errors import Exit, GpuopsError, OutcomeUnknown, TransportError
from gpuops.rollout.lease import Renewer, confirm
from gpuops.rollout.session import Session

# A host that does not answer after these attempts (about a minute with the waits) is left alone: it finishes by itself.
ATTEMPTS = 6
LONGEST_WAIT_S = 20.0

# The kind of an order that was to be undone and that the host does not know.
NOT_SEEN = "not_seen"

Json = dict[str, Any]


class Watcher:
    """Follows one operation, and is its controller: renews its lease, and confirms it when the candidate is verified.

    Events reach ``listener`` once each, however often the link is lost.

    Args:
        reconnect: opens a new session to the same host; the old one may be dead.
    """

    def __init__(self, session: Session, reconnect: Callable[[], Session], listener: Listener) -> None:
        self._session = session
        self._reconnect = reconnect
        self._listener = listener
        self._op: str | None = None
        self._ours = False
        self._order: Json | None = None
        self._lock_wait_s: float | None = None
        self._undoing = False
        self._service = ""
        self._lease_s = 0.0
        self._renewer: Renewer | None = None
        self._shown = 0
        self._seen = 0

    def run(self, order: Json, *, lock_wait_s: float | None = None) -> Json:
        """Hand the order to the host and follow it (or the equal rollout that is running already) to its outcome.

        Args:
            lock_wait_s: how long to wait for another rollout of the service to end.
        Raises:
            GpuopsError: refused, or failed before anything was touched.
            OutcomeUnknown: the link is lost and did not come back; the host goes on by itself.
        """
        self._op, self._ours, self._order = order["op"], True, order
        self._lock_wait_s = lock_wait_s
        return self._follow_through(self._send_order, order["service"])

    def attach(self, service: str, op: str | None = None) -> Json:
        """Follow an operation that is running, or the last one. It is not ours to undo: Ctrl-C only leaves (KeyboardInterrupt)."""
        self._op = op
        return self._follow_through(lambda: self._call("follow", service=service, op=op), service)

    def _send_order(self) -> Json:
        wait = {} if self._lock_wait_s is None else {"lock_wait_s": self._lock_wait_s}
        return self._call("run", order=self._order, **wait)

    def _follow_through(self, first: Callable[[], Json], service: str) -> Json:
        self._service = service
        try:
            return self._followed(first, service)
        finally:
            if self._renewer is not None:
                self._renewer.stop()

    def _followed(self, first: Callable[[], Json], service: str) -> Json:
        try:
            return first()
        except OutcomeUnknown as lost:
            if lost.kind in ("runner_died", "no_answer"):
                raise
            return self._again(service)
        except KeyboardInterrupt:
            if not self._ours:
                raise
            return self._undo(service)

    def _again(self, service: str) -> Json:
        retrying = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(max=LONGEST_WAIT_S),
            retry=retry_if_exception_type((OutcomeUnknown, TransportError)),
            reraise=True,
        )
        try:
            return retrying(self._reattach, service)
        except (OutcomeUnknown, TransportError) as error:
            if error.kind == NOT_SEEN:
                raise
            raise OutcomeUnknown(
                "the link is lost; the host carries on with the rollout by itself",
                evidence=error.evidence or error.what,
                next="gpuops attach when the host can be reached again",
            ) from error
        except KeyboardInterrupt:
            if not self._ours:
                raise
            if self._undoing:
                raise OutcomeUnknown(
                    "left while the host undoes the rollout by itself", next="gpuops attach, or gpuops status", kind="left"
                ) from None
            return self._undo(service)

    def _reattach(self, service: str) -> Json:
        self._session.agent.transport.close()
        self._session = self._reconnect()
        if self._undoing:
            return self._undone(service)
        if self._order is not None and self._op == self._order["op"]:
            # The order itself may have been lost with the link; one that did arrive is not played twice.
            return self._send_order()
        return self._call("follow", service=service, op=self._op)

    def _undone(self, service: str) -> Json:
        """Cancel and follow to the outcome. An order that the host does not know may still be on its way: it is cancelled before it comes."""
        agent = self._session.agent
        told = agent.call("cancel", service=service, op=self._op, before=True)
        if told.get("before"):
            return {
                "outcome": "cancelled",
                "code": int(Exit.NOTHING_TO_RESTORE if told["release"] is None else Exit.RESTORED),
                "kind": "cancelled",
                "op": self._op,
                "release": told["release"],
                "reason": "cancelled before the host had the order; nothing had been touched",
            }
        try:
            return self._call("follow", service=service, op=self._op)
        except GpuopsError as error:
            if error.kind != "no_operation":
                raise
            raise OutcomeUnknown(
                "the host has not seen the order yet; it may still arrive",
                evidence=error.what,
                next="gpuops status",
                kind=NOT_SEEN,
            ) from error

    def _undo(self, service: str) -> Json:
        """Ask the host to undo, and follow it; a second Ctrl-C leaves with exit code 12."""
        if self._op is None:
            raise KeyboardInterrupt
        self._listener({"event": "note", "text": "asking the host to undo; Ctrl-C again leaves it alone"})
        self._undoing = True
        return self._again(service)

    def _call(self, verb: str, **args: Any) -> Json:
        self._seen = 0
        return self._session.agent.call(verb, on_event=self._hear, **args)

    def _hear(self, event: Event) -> None:
        if event.get("attached"):
            # Another laptop, or an earlier call of ours, began it: from now on this is the operation.
            self._op = event["op"]
            self._listener(event)
            return
        self._op = event.get("op", self._op)
        self._seen += 1
        if self._seen <= self._shown:
            return
        self._shown = self._seen
        self._listener(event)
        if event["event"] == "op" and event.get("lease_s"):
            self._hold_lease(event["lease_s"])
        elif event["event"] == "awaiting" and not self._undoing:
            self._confirm()

    def _hold_lease(self, lease_s: float) -> None:
        assert self._op is not None
        self._lease_s = lease_s
        self._renewer = Renewer(self._reconnect, lease_s, "renew", service=self._service, op=self._op)
        self._renewer.start()

    def _confirm(self) -> None:
        """A failed confirmation is no error of ours: the host decides, and its outcome tells."""
        assert self._op is not None
        try:
            confirm(self._reconnect, self._service, self._op, self._lease_s)
        except GpuopsError as error:
            self._listener({"event": "note", "text": f"the release could not be confirmed: {error.what}"})


def hand_over(session: Session, order: Json) -> str:
    """Give an order to the host and hang up once it is being played; returns the operation's id (another one's when it attaches).

    Raises:
        GpuopsError: refused. OutcomeUnknown: the link was lost before the host said that it has it.
    """
    with session.agent.events("run", order=order) as events:
        for event in events:
            if event.get("event") == "op":
                return str(event["op"])
            if "error" in event and "event" not in event:
                raise raised(event["error"])
    raise OutcomeUnknown("the host did not say whether it has the order", next="gpuops status")


def raise_for(outcome: Json) -> None:
    """Turn an outcome that is no success into the error that the command ends with."""
    code = Exit(outcome["code"]) if outcome["code"] in set(Exit) else Exit.FAILURE
    if code == Exit.OK:
        return
    raise GpuopsError(
        headline(outcome),
        evidence=outcome.get("evidence", ""),
        next=outcome.get("next", "gpuops status"),
        code=code,
        kind=outcome["outcome"],
    )


def headline(outcome: Json) -> str:
    """One sentence that says how an operation ended."""
    reason = str(outcome.get("reason", ""))
    diagnosis = outcome.get("diagnosis")
    if diagnosis and diagnosis["class"] != "unknown":
        reason = f"{reason} ({diagnosis['class']}: {diagnosis['what']})"
    failed, release = outcome.get("failed"), outcome.get("release")
    which = f"release {failed or release}" if failed or release else "the candidate"
    texts = {
        "restored": f"{which} failed: {reason}. Release {release} (known-good) serves again",
        "restore_failed": f"release {release} did not come up: {reason}. Nothing serves: a person is needed",
        "nothing_to_restore": f"{which} failed: {reason}. There is no known-good release to restore, nothing serves",
        "cancelled": f"the rollout was cancelled: {reason}",
        "refused": reason,
        "failed": reason,
        "cut": f"the rollout was cut: {reason}",
    }
    return texts.get(outcome["outcome"], f"{outcome['outcome']}: {reason}")
