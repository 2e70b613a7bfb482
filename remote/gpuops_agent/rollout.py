"""Playing one order: the only way in which a running server changes.

Whatever happens after the old server was asked to stop, a rollout ends in one of few ways: the candidate is promoted; the known-good release serves
again; or the outcome says that nobody serves, and why.
"""

from __future__ import annotations

import dataclasses
import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from . import ahead, attempt, claims, hooks, ladder_gate, performance, preflight, probes, ready, recovery, releases, restarts
from .attempt import Failure, Up
from .files import write_json
from .guard import Died, Guard, last_words
from .lease import Leash
from .paths import Service, own_zipapp
from .prepare import Prepared, Work, fingerprint, prepare, resolve
from .proc import boot_id, boottime
from .ready import NotReady
from .recorder import Recorder
from .records import read_exit, server_alive, supervisor_alive
from .releases import BAD, GOOD, READY, STAGED, STARTING, UNKNOWN, VERIFIED, Release
from .restarts import Death
from .server import of_release
from .supervisor import adopt
from .way_back import Outcome, WayBack, as_failure, told, where
from .wire import FAILURE, NOTHING_TO_RESTORE, REFUSED, RESTORE_FAILED, RESTORED, AgentError, Cancelled, unheard


class Rollout(WayBack):
    """One operation's order, the service it is for, and where it tells what happens."""

    def __init__(self, service: Service, order: Dict[str, Any], recorder: Recorder) -> None:
        super().__init__(service, order, recorder)
        self._leash = Leash(service, order)
        self._tried = False  # whether this operation has tried the order's build already
        self._trial = bool(order.get("trial"))  # a launch to be looked at, which takes nobody's place as known-good

    def play(self) -> Outcome:
        """Play the order to its end. Raises AgentError for what failed before anything was touched."""
        cut = self._debt()
        kinds: Dict[str, Callable[[], Outcome]] = {
            "up": self._up,
            "down": self._down,
            "restart": self._restart,
            "relaunch": self._relaunch,
            "restore": self._restore_asked,
            "recover": lambda: self._recover(cut),
            "revive": self._revive,
        }
        try:
            if self.order["kind"] not in ("recover", "down"):
                self._pay(cut)
            return kinds[self.order["kind"]]()
        except Cancelled:
            if self._touched and not self._serving():
                why = f"{self._leash.reason or 'cancelled'}; what an earlier rollout left could not be brought back"
                return self._outcome("restore_failed", RESTORE_FAILED, reason=why, kind=self._leash.kind, next="gpuops logs")
            reason = f"{self._leash.reason or 'cancelled'}; nothing had been touched"
            code = RESTORED if self._serving() else NOTHING_TO_RESTORE
            return self._outcome("cancelled", code, reason=reason, kind=self._leash.kind)
        finally:
            self._reserve.give_back()

    def _pay(self, cut: List[str]) -> None:
        """First of all somebody serves again; only then is there time for something new."""
        if cut:
            self.tell("note", text="an earlier rollout was cut: recovering from it first")
            # When that fails nobody serves, and it was this order that stopped what had served.
            self._touched = self._recover(cut)["code"] != 0

    def failed(self, error: AgentError) -> Outcome:
        """The outcome of an order that ended in an error."""
        why = {"reason": error.what, "evidence": error.evidence, "next": error.next, "kind": error.kind}
        if self._touched and not self._serving():
            return self._outcome("restore_failed", RESTORE_FAILED, **why)
        return self._outcome("refused" if error.code == REFUSED else "failed", error.code, **why)

    def _up(self) -> Outcome:
        unchanged = None if self._trial else self._unchanged()
        if unchanged is not None:
            return unchanged
        port = preflight.remembered_port(self.service, self.order["candidate"]["port"])
        claims.check(self.service, port, claims.gpus_of(self.order["candidate"]))
        preflight.port_is_ours(self.service, port)
        work = Work(
            self.tell,
            self.service.operation(self.tell.op) / "prepare.log",
            self._leash,
            boottime() + self.deadlines["prepare_s"],
        )
        prepared = prepare(self.service.root, self.order["prepare"], self.order["engine"], work)
        again = self._same_and_good(prepared)
        ahead.make_ready(self.service, self.order, prepared, again, work, tried=self._tried)
        return self._replace(again or self._stage(prepared))

    def _down(self) -> Outcome:
        number = releases.current(self.service)
        running = server_alive(self.service)
        try:
            proof = self._stop()
        except Failure as stuck:
            return self._outcome("failed", FAILURE, release=number, **told(stuck, next_default="gpuops status"))
        releases.unpoint(self.service, self.service.current)
        if running is None and proof.pid is None:
            return self._outcome("not_running", 0, release=number)
        return self._outcome("stopped", 0, release=number, proof=proof.to_json())

    def _restart(self) -> Outcome:
        release = releases.load(self.service, releases.meant(self.service))
        if release is None:
            raise AgentError("there is no release to restart", next="gpuops up", code=FAILURE, kind="no_release")
        return self._replace(release)

    def _relaunch(self) -> Outcome:
        """Start a release once more, through every gate: each launch of a comparison is a launch."""
        return self._replace(preflight.restore_target(self.service, self.order["release"], force=False))

    def _restore_asked(self) -> Outcome:
        release = preflight.restore_target(self.service, self.order.get("release"), force=bool(self.order.get("force")))
        if self.order.get("comparison") and self._answers(release):  # a comparison's way home, and the host was quicker
            return self._outcome("unchanged", 0, release=release.number)
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
            self._hook_warns(hooks.AFTER_RESTORE, release, outcome="restored")
            return self._outcome("restored", 0, release=release.number, **where(up))
        if releases.known_good(self.service) in (None, release.number):
            return self._nobody_serves(release.number, up)
        return self._restore_known_good(release, up)

    def _recover(self, cut: List[str]) -> Outcome:
        """Bring the service to where it should be, after a cut rollout, a crash or a reboot."""
        facts = recovery.look(self.service, cut)
        if not cut and facts.running is not None and not self._answers(releases.load(self.service, facts.running)):
            # A process that lives and does not answer (a lost rank, a hang) serves nobody.
            facts = dataclasses.replace(facts, running=None)
        action = recovery.decide(facts)
        self.tell("note", text=f"recovery: {action}")
        good = releases.load(self.service, facts.good)
        if action == recovery.NOTHING or (action == recovery.RESTORE and facts.running == facts.good and self._answers(good)):
            self._supervise_again()
            return self._outcome("nothing_to_recover", 0, release=facts.current)
        if action == recovery.STOP or good is None:
            try:
                self._stop()
            except Failure as stuck:
                return self._nobody_serves(facts.running or 0, stuck, next_default="gpuops status")
            releases.unpoint(self.service, self.service.current)
            return self._outcome("stopped", 0, release=facts.current)
        return self._recovered(good, recovery.because(self.service, cut))

    def _revive(self) -> Outcome:
        """A server died while it served: start it again if its release's restart policy allows, else say why not."""
        release = releases.load(self.service, releases.current(self.service))
        ended = read_exit(self.service)
        if release is None or ended is None or ended.release != release.number or server_alive(self.service) is not None:
            return self._outcome("nothing_to_recover", 0)
        engine = release.document["engine"]
        death = Death(boottime(), boot_id(), ended.code, ended.signal, last_words(self.service, release.number, engine))
        known = restarts.record(self.service, release.number, death)
        incurable = [(row["pattern"], row["why"]) for row in engine["meaningful"].get("incurable", [])]
        decision = restarts.decide(release.document.get("restart") or {}, known, incurable)
        self.tell("note", text="; ".join(filter(None, [recovery.died(self.service), decision.reason])))
        if decision.wait_s is None:
            told_why = {"reason": f"not started again: {decision.reason}", "evidence": death.line, "next": "gpuops recover"}
            return self._outcome("not_restarted", FAILURE, release=release.number, **told_why)
        self._pause(decision.wait_s)
        return self._recovered(release, decision.reason)

    def _supervise_again(self) -> None:
        """A server that has lost its supervisor gets another one."""
        record = server_alive(self.service)
        if record is not None and not supervisor_alive(self.service):
            adopt(self.service, record, own_zipapp())
            self.tell("note", text="the server had no supervisor; it has one again")

    def _notes(self, name: str, /, **fields: Any) -> None:
        """An Emit for a server that is ready: its phases are no news, what happens to it is."""
        if name == "note":
            self.tell(name, **fields)

    def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until somebody asks for an end. Raises wire.Cancelled."""
        until, pause = boottime() + seconds, threading.Event()
        while boottime() < until:
            if self._leash():
                raise Cancelled()
            pause.wait(min(0.1, max(0.0, until - boottime())))

    # Their parts, in the order in which they are played.

    def _answers(self, release: Optional[Release]) -> bool:
        """Whether the release's server, which runs, proves itself by the short gate. Not to be cancelled: it is asked on the way back."""
        record = server_alive(self.service)
        if release is None or record is None or record.release != release.number:
            return False
        server = of_release(self.service, release)
        try:
            with Guard(self.service, record, release.document["engine"], lambda: False, unheard) as guard:
                ready.wait(guard, server, release.document["deadlines"])
                attempt.gate(guard, server, release, self.tell, fast=True)
        except (Failure, Died, NotReady):
            return False
        return True

    def _unchanged(self) -> Optional[Outcome]:
        """The outcome when the wanted release already serves and proves it; None when there is something to do."""
        release = releases.load(self.service, releases.current(self.service))
        record = server_alive(self.service)
        if release is None or record is None or record.release != release.number or release.spec != self.order["spec"]:
            return None
        if releases.state(self.service, release.number)["state"] != GOOD or releases.known_good(self.service) != release.number:
            # One that only a trial has started serves, and is nobody's choice yet.
            return None
        release = self._asked_as_ordered(release)
        server = of_release(self.service, release)
        try:
            with Guard(self.service, record, release.document["engine"], self._leash, unheard) as guard:
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
        """The release with the order's probes, deadlines, hooks and restarts: they are no content, and the playbook may have changed them."""
        candidate = self.order["candidate"]
        asked = {
            "probes": self.order["probes"],
            "deadlines": self.order["deadlines"],
            "hooks": candidate.get("hooks") or {},
            "restart": candidate.get("restart") or {},
        }
        proof = release.document.get("proof")
        if proof:
            asked["proof"] = {**proof, "required": candidate.get("proof") == "required"}
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
        claims.check(self.service, release.document["port"], claims.gpus_of(release.document))
        preflight.port_is_ours(self.service, release.document["port"])
        preflight.secrets_are_here(self.service, release)
        preflight.build_is_here(release)
        trouble = self._hook(hooks.BEFORE_STOP, release)
        if trouble is not None:
            raise AgentError(trouble, next="mend the hook; the running server was not touched", code=REFUSED, kind="hook")
        self._reserve.take()
        if self._leash():
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
            fast = was_good and not self._trial and not self._has_new_probes(candidate)
            up = self._bring_up(
                candidate,
                fast=fast,
                cancelled=self._leash,
                on_ready=lambda: self._now_ready(candidate, was_good),
            )
            self._put_to_the_ladder(candidate, up, fast=fast)
            speed = self._measured(candidate, up, fast=fast)
            return self._promote(candidate, up, was_good, speed)
        except Cancelled:
            return self._give_up(candidate, UNKNOWN, Failure(self._leash.kind, self._leash.reason), was_good)
        except Failure as failure:
            # What could not be proved to be fast is not bad.
            state = UNKNOWN if failure.kind == performance.NOT_PROVED else BAD
            return self._give_up(candidate, state, failure, was_good)
        except Exception as error:
            return self._give_up(candidate, UNKNOWN, as_failure(error), was_good)

    def _now_ready(self, release: Release, was_good: bool) -> None:
        """Between readiness and the probes. Raises Failure when the hook fails."""
        if not was_good:
            self._mark(release, READY)
        trouble = self._hook(hooks.AFTER_READY, release)
        if trouble is not None:
            raise Failure("hook", trouble)

    def _has_new_probes(self, candidate: Release) -> bool:
        stored = releases.load(self.service, candidate.number)
        return stored is None or stored.document["probes"] != candidate.document["probes"]

    def _put_to_the_ladder(self, release: Release, up: Up, *, fast: bool) -> None:
        """The ladder's rungs, where the order has them. Raises Failure, wire.Cancelled."""
        section = self.order.get("ladder")
        if section and not (fast and ladder_gate.has_passed(release, section)):
            with self._looked_after(release, up) as guard:
                ladder_gate.gate(guard, release, section, self.tell)

    def _measured(self, release: Release, up: Up, *, fast: bool) -> Optional[Dict[str, Any]]:
        """What the performance gate found; None when there is none for this launch. Raises Failure, wire.Cancelled."""
        section, good = self.order.get("performance"), releases.known_good(self.service)
        if not section or self._trial or (fast and performance.has_passed(release, section)):
            return None
        if good in (None, release.number):
            self.tell("note", text="the performance gate is left out: there is no other known-good release to compare with")
            return None
        with self._looked_after(release, up) as guard:
            return performance.gate(guard, release, section, self.tell, str(self.order.get("by")))

    def _promote(self, release: Release, up: Up, was_good: bool, speed: Optional[Dict[str, Any]]) -> Outcome:
        if not was_good:
            self._mark(release, VERIFIED)
        self._await_confirmation(release, up)
        if self._trial:
            if not was_good:
                self._mark(release, GOOD, "it passed its gates in a trial")
            return self._outcome("launched", 0, release=release.number, **where(up))
        releases.point(self.service, self.service.good, release.number)
        self._anyhow(lambda: self._mark(release, GOOD))
        found = {"performance": speed} if speed else {}
        self._hook_warns(hooks.AFTER_PROMOTE, release, outcome="promoted")
        return self._outcome("promoted", 0, release=release.number, **where(up), **found)

    def _await_confirmation(self, release: Release, up: Up) -> None:
        """With a lease, a verified candidate counts only when its controller says so. Raises wire.Cancelled, Failure (it died meanwhile)."""
        if not self._leash.leased:
            return
        self.tell("awaiting", release=release.number)
        with self._looked_after(release, up) as guard:
            while not self._leash.confirmed():
                guard.poll()

    @contextmanager
    def _looked_after(self, release: Release, up: Up) -> Iterator[Guard]:
        """Eyes on a candidate that has become ready. Raises Failure when it dies meanwhile."""
        with Guard(self.service, up.record, release.document["engine"], self._leash, self._notes) as guard:
            try:
                yield guard
            except Died as death:
                failure = Failure("died", str(death), str(death.facts.get("line") or ""))
                raise attempt.explained(failure, guard, release, self.tell, death.ending) from death

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
