"""Playing one order: the only way in which a running server changes.

Whatever happens after the old server was asked to stop, a rollout ends in one of few ways: the candidate is promoted; the known-good release serves
again; or the outcome says that nobody serves, and why.
"""

from __future__ import annotations

import dataclasses
import sys
import traceback
from typing import Any, Callable, Dict, Optional, Union

from . import attempt, preflight, probes, ready, recovery, releases, stop
from .attempt import Failure, Up
from .files import write_json
from .guard import Died, Guard
from .paths import Service
from .prepare import Prepared, Work, fingerprint, prepare, resolve
from .proc import boottime
from .ready import NotReady
from .recorder import Recorder
from .records import server_alive
from .releases import BAD, GOOD, READY, STAGED, STARTING, UNKNOWN, VERIFIED, Release
from .reserve import Reserve
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
        self._reserve = Reserve(service.reserve_file)
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
        finally:
            self._reserve.give_back()

    def failed(self, error: AgentError) -> Outcome:
        """The outcome of an order that ended in an error."""
        told = {"reason": error.what, "evidence": error.evidence, "next": error.next, "kind": error.kind}
        if self._touched and not self._serving():
            return self._outcome("restore_failed", RESTORE_FAILED, **told)
        return self._outcome("refused" if error.code == REFUSED else "failed", error.code, **told)

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
        return self._replace(self._same_and_good(prepared) or self._stage(prepared))

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
        return self._replace(release)

    def _restore_asked(self) -> Outcome:
        release = preflight.restore_target(self.service, self.order.get("release"), force=bool(self.order.get("force")))
        self._last_look(release)
        try:
            self._stop()
        except Failure as stuck:
            return self._nobody_serves(release.number, stuck, next_default="gpuops status")
        up = self._bring_back(release, f"asked for by {self.order.get('by')}")
        if isinstance(up, Up):
            if releases.state(self.service, release.number)["state"] == GOOD:
                # Somebody chose this one: from now on it is what a failed rollout goes back to.
                self._anyhow(lambda: releases.point(self.service, self.service.good, release.number))
            return self._outcome("restored", 0, release=release.number, **_where(up))
        if releases.known_good(self.service) in (None, release.number):
            return self._nobody_serves(release.number, up)
        return self._restore_known_good(release, up)

    # Their parts, in the order in which they are played.

    def _unchanged(self) -> Optional[Outcome]:
        """The outcome when the wanted release already serves and proves it; None when there is something to do."""
        release = releases.load(self.service, releases.current(self.service))
        record = server_alive(self.service)
        if release is None or record is None or record.release != release.number or release.spec != self.order["spec"]:
            return None
        if releases.state(self.service, release.number)["state"] != GOOD:
            return None
        release = self._asked_as_ordered(release)
        server = of_release(self.service, release)
        try:
            with Guard(self.service, record, release.document["engine"], self.tell.cancelled, _unheard) as guard:
                if not probes.required(release.document["probes"]):
                    ready.wait(guard, server, self.deadlines)
                attempt.gate(guard, server, release, self.tell, fast=True)
        except (Failure, Died, NotReady) as error:
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
                return self._asked_as_ordered(release)
        return None

    def _asked_as_ordered(self, release: Release) -> Release:
        """The release with the order's probes and deadlines: they are no part of its content, and the playbook may have changed them."""
        asked = {"probes": self.order["probes"], "deadlines": self.order["deadlines"]}
        return dataclasses.replace(release, document={**release.document, **asked})

    def _stage(self, prepared: Prepared) -> Release:
        preflight.enough_disk(self.service.root.path)
        port = preflight.port_of(self.service, self.order["candidate"]["port"], self.order["candidate"]["bind"])
        release = releases.stage(self.service, resolve(self.service.root, self.order, prepared, port))
        write_json(release.path / "fingerprint.json", fingerprint(self.service.root, prepared))
        self.tell("staged", release=release.number, spec=release.spec)
        return release

    def _last_look(self, release: Release) -> None:
        """What must hold at the last moment before the old server is asked to stop. Raises AgentError, wire.Cancelled."""
        preflight.port_is_ours(self.service, release.document["port"])
        preflight.secrets_are_here(self.service, release)
        self._reserve.take()
        if self.tell.cancelled():
            raise Cancelled()

    def _replace(self, candidate: Release) -> Outcome:
        """Stop what runs, start the candidate, gate it, promote it; or restore."""
        before = releases.state(self.service, candidate.number)["state"]
        was_good = before == GOOD
        try:
            self._last_look(candidate)
        except (AgentError, Cancelled) as error:
            if before == STAGED:
                why = f"never started: {str(error) or 'cancelled'}"
                self._anyhow(lambda: self._mark(candidate, UNKNOWN, why))
            raise
        try:
            self._stop()
        except Failure as stuck:
            # It says nothing of the candidate, which never ran.
            return self._give_up(candidate, UNKNOWN, stuck, was_good)
        try:
            releases.point(self.service, self.service.current, candidate.number)
            if not was_good:
                self._mark(candidate, STARTING)
            fast = was_good and not self._has_new_probes(candidate)
            up = attempt.bring_up(self.service, candidate, self.tell, fast=fast, cancelled=self.tell.cancelled)
            return self._promote(candidate, up, was_good)
        except Cancelled:
            return self._give_up(candidate, UNKNOWN, Failure("cancelled", "cancelled before its verdict"), was_good)
        except Failure as failure:
            return self._give_up(candidate, BAD, failure, was_good)
        except Exception as error:
            return self._give_up(candidate, UNKNOWN, _as_failure(error), was_good)

    def _has_new_probes(self, candidate: Release) -> bool:
        stored = releases.load(self.service, candidate.number)
        return stored is None or stored.document["probes"] != candidate.document["probes"]

    def _promote(self, release: Release, up: Up, was_good: bool) -> Outcome:
        if not was_good:
            self._mark(release, READY)
            self._mark(release, VERIFIED)
        releases.point(self.service, self.service.good, release.number)
        self._mark(release, GOOD)
        return self._outcome("promoted", 0, release=release.number, **_where(up))

    def _give_up(self, candidate: Release, state: str, failure: Failure, was_good: bool) -> Outcome:
        """Mark the candidate, stop it, and bring the known-good release back.

        A release that was good stays good in its record: this launch failed, which says nothing of the content.
        """
        reason = f"{failure.reason}: {failure.evidence}".rstrip(": ")
        marked = was_good or self._anyhow(lambda: self._mark(candidate, state, reason))
        try:
            self._stop()
        except Failure as stuck:
            return self._nobody_serves(candidate.number, stuck, next_default="gpuops status")
        # Only now: a candidate that lived would have eaten this room too.
        self._reserve.give_back()
        if not marked:
            self._anyhow(lambda: self._mark(candidate, state, reason))
        return self._restore_known_good(candidate, failure)

    def _restore_known_good(self, failed: Release, failure: Failure) -> Outcome:
        """Nothing runs: start the known-good release. It may be the one that just failed; then it gets this second chance, by its own probes."""
        good = releases.load(self.service, releases.known_good(self.service))
        logs = f"gpuops logs --release {failed.number}"
        if good is None:
            self._anyhow(lambda: releases.unpoint(self.service, self.service.current))
            told = _told(failure, next_default=logs)
            return self._outcome("nothing_to_restore", NOTHING_TO_RESTORE, release=failed.number, **told)
        up = self._bring_back(good, failure.reason)
        if isinstance(up, Failure):
            return self._nobody_serves(good.number, up, failed=failed.number)
        told = _told(failure, next_default=logs)
        return self._outcome("restored", RESTORED, release=good.number, failed=failed.number, **_where(up), **told)

    def _bring_back(self, release: Release, because: str) -> Union[Up, Failure]:
        """Start a release by the fast path: ready, and one probe. Not to be cancelled: this is the way back.

        A release that does not come back is stopped again: nobody serves rather than somebody who answers wrong.
        """
        self._reserve.give_back()
        self.tell("restoring", release=release.number, because=because)
        self._anyhow(lambda: releases.point(self.service, self.service.current, release.number))
        try:
            return attempt.bring_up(self.service, release, self.tell, fast=True, cancelled=lambda: False)
        except Exception as error:
            trouble = _as_failure(error)
        self.tell("note", text=f"release {release.number} did not come back: {trouble.reason}")
        try:
            self._stop()
        except Failure as stuck:
            self.tell("note", text=f"{stuck.reason}: {stuck.evidence}")
        return trouble

    def _stop(self) -> stop.Proof:
        """Stop whatever runs for this service, with proof. Raises Failure when something of it cannot be stopped."""
        self._touched = True
        record = server_alive(self.service)
        if record is not None:
            self.tell("phase", phase="stop", progress=None, detail=f"pid {record.pid}")
            self.tell("stopping", release=record.release, pid=record.pid)
        try:
            proof = stop.stop(self.service, drain_s=self.deadlines["stop_s"], note=lambda text: self.tell("note", text=text))
        except AgentError as error:
            raise Failure(
                "not_stopped", f"the old server could not be stopped: {error.what}", error.evidence, error.next
            ) from error
        if proof.pid is not None:
            self.tell("stopped", release=record.release if record else None, proof=proof.to_json())
        if proof.shm_left and not (proof.survivors or proof.port_held):
            # A pity, but no reason to leave nobody serving.
            self.tell("note", text=f"left in /dev/shm: {', '.join(proof.shm_left)}")
        elif not proof.clean:
            raise _not_stopped(proof)
        return proof

    def _mark(self, release: Release, state: str, reason: str = "") -> None:
        attempt.mark(self.service, self.tell, release.number, state, reason)

    def _anyhow(self, write: Callable[[], None]) -> bool:
        """Bookkeeping on the way back: a disk that takes no record must not keep the known-good release from serving."""
        try:
            write()
        except AgentError as error:
            self.tell("note", text=f"{error.what}: {error.evidence}")
            return False
        return True

    def _serving(self) -> bool:
        return server_alive(self.service) is not None

    def _nobody_serves(self, number: int, trouble: Failure, *, next_default: str = "gpuops logs", **fields: Any) -> Outcome:
        told = _told(trouble, next_default=next_default)
        return self._outcome("restore_failed", RESTORE_FAILED, release=number, **fields, **told)

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


def _unheard(name: str, /, **fields: Any) -> None:
    """An Emit for a server that has long been ready: its phases are no news."""


def _where(up: Up) -> Dict[str, int]:
    return {"pid": up.record.pid, "port": up.record.port}


def _not_stopped(proof: stop.Proof) -> Failure:
    if proof.survivors:
        who = ", ".join(f"pid {each.pid}: {each.command} (state {each.state})" for each in proof.survivors)
        return Failure(
            "not_stopped", "the old server could not be stopped", f"still alive: {who}", "look at these processes on the host"
        )
    who = ", ".join(f"pid {each.pid}: {each.command}" if each.pid else each.command for each in proof.port_held)
    return Failure(
        "port_taken", "the old server has ended, but its port is not free", f"held by {who}", "stop that process, then gpuops up"
    )


def _as_failure(error: Exception) -> Failure:
    if isinstance(error, Failure):
        return error
    if isinstance(error, AgentError):
        return Failure(error.kind, error.what, error.evidence, error.next)
    # A defect of the agent: the whole story goes to runner.log, its end to the outcome.
    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    where = traceback.format_exception(type(error), error, error.__traceback__)
    return Failure("bug", f"the agent failed: {error!r}", where[-2].strip().replace("\n", " | ") if len(where) > 1 else "")


def _told(failure: Failure, next_default: str) -> Dict[str, Any]:
    return {"reason": failure.reason, "evidence": failure.evidence, "next": failure.next or next_default, "kind": failure.kind}
