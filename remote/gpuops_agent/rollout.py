"""Playing one order: the only way in which a running server changes.

Whatever happens after the old server was asked to stop, a rollout ends in one of few ways: the candidate is promoted; the known-good release serves
again; or the outcome says that nobody serves, and why.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from . import attempt, preflight, recovery, releases, stop
from .attempt import Failure, Up
from .files import write_json
from .guard import Died, Guard
from .paths import Service
from .prepare import Prepared, Work, fingerprint, prepare, resolve
from .proc import boottime
from .recorder import Recorder
from .records import server_alive
from .releases import BAD, GOOD, READY, STARTING, UNKNOWN, VERIFIED, Release
from .server import of_release
from .wire import FAILURE, NOTHING_TO_RESTORE, REFUSED, RESTORE_FAILED, RESTORED, AgentError, Cancelled

Outcome = Dict[str, Any]


class Rollout:
    """One operation's order, the service it is for, and where it tells what happens."""

    def __init__(self, service: Service, order: Dict[str, Any], recorder: Recorder) -> None:
        self.service = service
        self.order = order
        self.tell = recorder
        self.deadlines: Dict[str, float] = order["deadlines"]
        self._touched = False  # whether the server that ran before has been asked to stop

    def play(self) -> Outcome:
        """Play the order to its end. Raises AgentError for what failed before anything was touched."""
        recovery.close_cut_operations(self.service, self.tell.op)
        kinds = {"up": self._up, "down": self._down, "restart": self._restart, "restore": self._restore_asked}
        try:
            return kinds[self.order["kind"]]()
        except Cancelled:
            return self._outcome(
                "cancelled", RESTORED if self._serving() else NOTHING_TO_RESTORE, reason="cancelled before anything was touched"
            )

    def failed(self, error: AgentError) -> Outcome:
        """The outcome of an order that ended in an error."""
        kind = "refused" if error.code == REFUSED else "failed"
        return self._outcome(kind, error.code, reason=error.what, evidence=error.evidence, next=error.next, kind=error.kind)

    # The four kinds of order.

    def _up(self) -> Outcome:
        unchanged = self._unchanged()
        if unchanged is not None:
            return unchanged
        preflight.port_is_ours(self.service, preflight.remembered_port(self.service, self.order["candidate"]["port"]))
        work = Work(
            self.tell,
            self.service.operation(self.tell.op) / "prepare.log",
            self.tell.cancelled,
            boottime() + self.deadlines["prepare_s"],
        )
        prepared = prepare(self.service.root, self.order["prepare"], work)
        release = self._same_and_good(prepared)
        if release is None:
            release = self._stage(prepared)
        preflight.port_is_ours(self.service, release.document["port"])
        return self._replace(release)

    def _down(self) -> Outcome:
        number = releases.current(self.service)
        running = server_alive(self.service)
        try:
            proof = self._stop()
        except Failure as stuck:
            return self._outcome("failed", FAILURE, release=number, **_told(stuck, next_default="gpuops status"))
        releases.unpoint(self.service, self.service.current)
        if running is None and proof.pid is None:
            return self._outcome("not_running", 0, release=number)
        return self._outcome("stopped", 0, release=number, proof=proof.to_json())

    def _restart(self) -> Outcome:
        release = releases.load(self.service, releases.current(self.service) or releases.known_good(self.service))
        if release is None:
            raise AgentError("there is no release to restart", next="gpuops up", code=FAILURE, kind="no_release")
        preflight.port_is_ours(self.service, release.document["port"])
        return self._replace(release)

    def _restore_asked(self) -> Outcome:
        release = preflight.restore_target(self.service, self.order.get("release"), force=bool(self.order.get("force")))
        preflight.port_is_ours(self.service, release.document["port"])
        try:
            self._stop()
        except Failure as stuck:
            return self._outcome(
                "restore_failed", RESTORE_FAILED, release=release.number, **_told(stuck, next_default="gpuops status")
            )
        return self._restore(release, f"asked for by {self.order.get('by')}", asked=True)

    # Their parts, in the order in which they are played.

    def _unchanged(self) -> Optional[Outcome]:
        """The outcome when the wanted release already serves and proves it; None when there is something to do."""
        release = releases.load(self.service, releases.current(self.service))
        record = server_alive(self.service)
        if release is None or record is None or record.release != release.number or release.spec != self.order["spec"]:
            return None
        if releases.state(self.service, release.number)["state"] != GOOD:
            return None
        try:
            with Guard(
                self.service, record, release.document["engine"], self.tell.cancelled, lambda name, **fields: None
            ) as guard:
                attempt.gate(guard, of_release(self.service, release), release, self.tell, fast=True)
        except (Failure, Died) as error:
            self.tell("note", text=f"release {release.number} runs but does not answer right: {getattr(error, 'reason', error)}")
            return None
        return self._outcome("unchanged", 0, release=release.number)

    def _same_and_good(self, prepared: Prepared) -> Optional[Release]:
        """The newest good release of exactly this content: it is started again, no new number is needed."""
        for number in reversed(releases.numbers(self.service)):
            release = releases.load(self.service, number)
            if release is None or release.spec != self.order["spec"] or releases.state(self.service, number)["state"] != GOOD:
                continue
            if release.document["model"]["identity"] == prepared.model.identity:
                return release
        return None

    def _stage(self, prepared: Prepared) -> Release:
        preflight.enough_disk(self.service.root.path)
        port = preflight.port_of(self.service, self.order["candidate"]["port"], self.order["candidate"]["bind"])
        release = releases.stage(self.service, resolve(self.service.root, self.order, prepared, port))
        write_json(release.path / "fingerprint.json", fingerprint(self.service.root, prepared))
        self.tell("staged", release=release.number, spec=release.spec)
        return release

    def _replace(self, candidate: Release) -> Outcome:
        """Stop what runs, start the candidate, gate it, promote it; or restore."""
        was_good = releases.state(self.service, candidate.number)["state"] == GOOD
        try:
            self._stop()
            releases.point(self.service, self.service.current, candidate.number)
            if not was_good:
                attempt.mark(self.service, self.tell, candidate.number, STARTING)
            up = attempt.bring_up(self.service, candidate, self.tell, fast=was_good, cancelled=self.tell.cancelled)
            return self._promote(candidate, up)
        except Cancelled:
            return self._give_up(candidate, UNKNOWN, Failure("cancelled", "cancelled before its verdict"), was_good)
        except Failure as failure:
            return self._give_up(candidate, BAD, failure, was_good)
        except Exception as error:
            if not self._touched:
                raise
            return self._give_up(candidate, UNKNOWN, _as_failure(error), was_good)

    def _promote(self, release: Release, up: Up) -> Outcome:
        attempt.mark(self.service, self.tell, release.number, READY)
        attempt.mark(self.service, self.tell, release.number, VERIFIED)
        releases.point(self.service, self.service.good, release.number)
        attempt.mark(self.service, self.tell, release.number, GOOD)
        return self._outcome("promoted", 0, release=release.number, pid=up.record.pid, port=up.record.port)

    def _give_up(self, candidate: Release, state: str, failure: Failure, was_good: bool) -> Outcome:
        """Mark the candidate, stop it, and bring the known-good release back.

        A release that was good stays good in its record: this launch failed, which says nothing of the content.
        """
        if not was_good:
            attempt.mark(self.service, self.tell, candidate.number, state, f"{failure.reason}: {failure.evidence}".rstrip(": "))
        try:
            self._stop()
        except Failure as stuck:
            return self._outcome(
                "restore_failed", RESTORE_FAILED, release=candidate.number, **_told(stuck, next_default="gpuops status")
            )
        good = releases.load(self.service, releases.known_good(self.service))
        if good is None or good.number == candidate.number:
            releases.unpoint(self.service, self.service.current)
            code = RESTORE_FAILED if good is not None else NOTHING_TO_RESTORE
            name = "restore_failed" if good is not None else "nothing_to_restore"
            return self._outcome(
                name, code, release=candidate.number, **_told(failure, next_default=f"gpuops logs --release {candidate.number}")
            )
        return self._restore(good, failure.reason, failed=candidate, failure=failure)

    def _restore(
        self,
        good: Release,
        because: str,
        *,
        asked: bool = False,
        failed: Optional[Release] = None,
        failure: Optional[Failure] = None,
    ) -> Outcome:
        """Start a release by the fast path: ready, and one probe. Not to be cancelled: this is the way back."""
        self.tell("restoring", release=good.number, because=because)
        releases.point(self.service, self.service.current, good.number)
        try:
            up = attempt.bring_up(self.service, good, self.tell, fast=True, cancelled=lambda: False)
        except Exception as error:
            trouble = _as_failure(error)
            self.tell("note", text=f"release {good.number} did not come back: {trouble.reason}")
            return self._outcome(
                "restore_failed", RESTORE_FAILED, release=good.number, **_told(trouble, next_default="gpuops logs")
            )
        told = _told(failure, next_default=f"gpuops logs --release {failed.number}") if failure and failed else {}
        code = 0 if asked else RESTORED
        return self._outcome(
            "restored",
            code,
            release=good.number,
            failed=failed.number if failed else None,
            pid=up.record.pid,
            port=up.record.port,
            **told,
        )

    def _stop(self) -> stop.Proof:
        """Stop whatever runs for this service, with proof. Raises Failure when something of it cannot be stopped."""
        self._touched = True
        record = server_alive(self.service)
        if record is not None:
            self.tell("phase", phase="stop", progress=None, detail=f"pid {record.pid}")
            self.tell("stopping", release=record.release, pid=record.pid)
        proof = stop.stop(self.service, drain_s=self.deadlines["stop_s"], note=lambda text: self.tell("note", text=text))
        if proof.pid is not None:
            self.tell("stopped", release=record.release if record else None, proof=proof.to_json())
        if not proof.clean:
            raise Failure(
                "not_stopped", "the old server could not be stopped", str(proof.to_json()), "look at these processes on the host"
            )
        return proof

    def _serving(self) -> bool:
        return server_alive(self.service) is not None

    def _outcome(self, name: str, code: int, **fields: Any) -> Outcome:
        record = server_alive(self.service)
        running = {"pid": record.pid, "port": record.port} if record else {}
        return {
            "outcome": name,
            "code": code,
            "known_good": releases.known_good(self.service),
            "serving": record is not None,
            **running,
            **fields,
        }


def _as_failure(error: Exception) -> Failure:
    if isinstance(error, Failure):
        return error
    if isinstance(error, AgentError):
        return Failure(error.kind, error.what, error.evidence, error.next)
    return Failure("bug", f"the agent failed: {error!r}")


def _told(failure: Failure, next_default: str) -> Dict[str, Any]:
    return {"reason": failure.reason, "evidence": failure.evidence, "next": failure.next or next_default, "kind": failure.kind}
