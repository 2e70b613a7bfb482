"""The way back: stopping whatever runs, with proof, and bringing a release up again.

What is here must work when everything else has failed: bookkeeping that the disk does not take is noted and passed over, and nothing of it can be
cancelled.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Union

from . import attempt, caches, hooks, recovery, releases, stop
from .attempt import Failure, Up
from .paths import Service
from .recorder import Recorder
from .records import server_alive
from .releases import Release
from .reserve import Reserve
from .wire import NOTHING_TO_RESTORE, RESTORE_FAILED, RESTORED, AgentError

Outcome = Dict[str, Any]

# Kinds of failure that say little of a release that was good: killed by somebody, out of memory, no process left.
_WORTH_ANOTHER_START = ("died", "no_supervisor")

# Classes that say no more, of a server that lives: it waits for a rank, which somebody killed before it was known to be one.
_RANK_GONE = ("rank_died", "stall_missing_rank")

# A hook's time, in seconds, for orders that do not say.
HOOK_S = 60.0


class WayBack:
    """What every order needs of one service, whatever its kind."""

    def __init__(self, service: Service, order: Dict[str, Any], recorder: Recorder) -> None:
        self.service = service
        self.order = order
        self.tell = recorder
        self.deadlines: Dict[str, float] = order["deadlines"]
        self._reserve = Reserve(service.reserve_file)
        self._before = releases.current(service)
        self._touched = False  # whether the server that ran before has been asked to stop

    def _debt(self) -> List[str]:
        """:func:`recovery.close_cut_operations`: what this order has to finish first."""
        # A reserve that is there was left by what was cut, perhaps on a disk that is full: this is what it was kept back for.
        self._reserve.give_back()
        return recovery.close_cut_operations(self.service, self.tell.op)

    def _restore_known_good(self, failed: Release, failure: Failure) -> Outcome:
        """Nothing runs: start the known-good release. It may be the one that just failed; then it gets this second chance, by its own probes."""
        good = releases.load(self.service, releases.known_good(self.service))
        logs = f"gpuops logs --release {failed.number}"
        if good is None:
            self._anyhow(lambda: releases.unpoint(self.service, self.service.current))
            return self._outcome(
                "nothing_to_restore", NOTHING_TO_RESTORE, release=failed.number, **told(failure, next_default=logs)
            )
        up = self._bring_back(good, failure.reason)
        if isinstance(up, Failure):
            return self._nobody_serves(good.number, up, failed=failed.number)
        why = told(failure, next_default=logs)
        self._hook_warns(hooks.AFTER_RESTORE, good, outcome="restored", reason=failure.reason)
        return self._outcome("restored", RESTORED, release=good.number, failed=failed.number, **where(up), **why)

    def _bring_up(
        self,
        release: Release,
        *,
        fast: bool,
        cancelled: Callable[[], bool],
        on_ready: Callable[[], None] = lambda: None,
        insist: bool = True,
    ) -> Up:
        """:func:`attempt.bring_up`, and once more with a fresh JIT cache when the words of the death say that the cache is damaged.

        A damaged cache kills every start in the same way, and no restart heals it; the old one is kept aside for whoever wants to know.
        """

        def bring_up() -> Up:
            return attempt.bring_up(
                self.service, release, self.tell, fast=fast, cancelled=cancelled, on_ready=on_ready, insist=insist
            )

        try:
            return bring_up()
        except Failure as failure:
            patterns = release.document["engine"]["meaningful"].get("poisoned", [])
            cache = Path(release.document["cache"]) if release.document.get("cache") else None
            if failure.kind != "died" or cache is None or not any(re.search(pattern, failure.evidence) for pattern in patterns):
                raise
            self._stop()
            aside = caches.reset(cache, self.tell.op, failure.evidence)
            self.tell("cache_reset", release=release.number, cache=str(cache), kept=str(aside), because=failure.evidence)
            return bring_up()

    def _bring_back(self, release: Release, because: str) -> Union[Up, Failure]:
        """Start a release by the fast path: ready, and one probe. Not to be cancelled: this is the way back.

        A release that does not come back is stopped again: nobody serves rather than somebody who answers wrong. One that died or lost a rank, or
        whose supervisor died, has a second start: it was good, so something from outside may have ended it.
        """
        self._reserve.give_back()
        self.tell("restoring", release=release.number, because=because)
        self._anyhow(lambda: releases.point(self.service, self.service.current, release.number))
        came = self._try_back(release)
        if isinstance(came, Failure) and (came.kind in _WORTH_ANOTHER_START or (came.diagnosis or {}).get("class") in _RANK_GONE):
            self.tell("note", text=f"release {release.number} is started once more")
            came = self._try_back(release)
        return came

    def _try_back(self, release: Release) -> Union[Up, Failure]:
        try:
            # It has proved its kernels when it was promoted; now serving counts.
            return self._bring_up(release, fast=True, cancelled=lambda: False, insist=False)
        except Exception as error:
            trouble = as_failure(error)
        self.tell("note", text=f"release {release.number} did not come back: {trouble.reason}")
        try:
            self._stop()
        except Failure as stuck:
            self.tell("note", text=f"{stuck.reason}: {stuck.evidence}")
        return trouble

    def _recovered(self, release: Release, because: str) -> Outcome:
        """What is left of the server ends, with proof, and the release serves again."""
        try:
            self._stop()
        except Failure as stuck:
            return self._nobody_serves(release.number, stuck, next_default="gpuops status")
        up = self._bring_back(release, because)
        if isinstance(up, Failure):
            return self._nobody_serves(release.number, up)
        return self._outcome("recovered", 0, release=release.number, reason=because, **where(up))

    def _stop(self) -> stop.Proof:
        """Stop whatever runs for this service, with proof. Raises Failure when something of it cannot be stopped."""
        if not self._touched:
            self._anyhow(lambda: recovery.touch(self.service, self.tell.op))
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
        if proof.pid is not None or proof.signals:
            # Without a server there may still have been what it left behind: ending that takes its time, and is told.
            self.tell("stopped", release=record.release if record else None, proof=proof.to_json())
        elif proof.cards:
            # It had ended by itself: what it left on its cards is told all the same.
            self.tell("note", text="; ".join(card.text for card in proof.cards))
        if proof.shm_left and not (proof.survivors or proof.port_held or proof.gpu_held):
            # A pity, but no reason to leave nobody serving.
            self.tell("note", text=f"left in /dev/shm: {', '.join(proof.shm_left)}")
        elif not proof.clean:
            raise _not_stopped(proof)
        return proof

    def _hook(self, name: str, release: Release, **told: Any) -> Optional[str]:
        """Run one of the release's hooks; what went wrong, in one line, or None. ``told``: further variables, in lower case."""
        record = server_alive(self.service)
        env = {
            "GPUOPS_OPERATION": self.tell.op,
            "GPUOPS_PREVIOUS_RELEASE": _text(self._before),
            "GPUOPS_KNOWN_GOOD": _text(releases.known_good(self.service)),
            "GPUOPS_PID": _text(record.pid if record else None),
            **{f"GPUOPS_{key.upper()}": _text(value) for key, value in told.items()},
        }
        return hooks.run(self.service, release, name, self.tell, env, float(self.deadlines.get("hook_s") or HOOK_S))

    def _hook_warns(self, name: str, release: Release, **told: Any) -> None:
        """A hook whose failure changes nothing: it is shown, and noted."""
        trouble = self._hook(name, release, **told)
        if trouble is not None:
            self.tell("note", text=f"{trouble} (only a warning)")

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
        why = told(trouble, next_default=next_default)
        return self._outcome("restore_failed", RESTORE_FAILED, release=number, **fields, **why)

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


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def where(up: Up) -> Dict[str, Any]:
    """What an outcome carries of a server that came up."""
    proof = {key: up.proof[key] for key in ("build", "state", "text")} if up.proof else None
    return {"pid": up.record.pid, "port": up.record.port, **({"proof": proof} if proof else {})}


def told(failure: Failure, next_default: str) -> Dict[str, Any]:
    """What an outcome carries of a failure; ``class`` and ``diagnosis`` where the classifier had a word for it."""
    why = {"reason": failure.reason, "evidence": failure.evidence, "next": failure.next or next_default, "kind": failure.kind}
    if failure.diagnosis is None:
        return why
    return {**why, "class": failure.diagnosis["class"], "diagnosis": failure.diagnosis}


def as_failure(error: Exception) -> Failure:
    if isinstance(error, Failure):
        return error
    if isinstance(error, AgentError):
        return Failure(error.kind, error.what, error.evidence, error.next)
    # A defect of the agent: the whole story goes to runner.log, its end to the outcome.
    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    where = traceback.format_exception(type(error), error, error.__traceback__)
    return Failure("bug", f"the agent failed: {error!r}", where[-2].strip().replace("\n", " | ") if len(where) > 1 else "")


def _not_stopped(proof: stop.Proof) -> Failure:
    if proof.gpu_held and not proof.survivors:
        who = ", ".join(f"GPU {each.gpu}: {each.used_mib} MiB by pid {each.pid}" for each in proof.gpu_held)
        return Failure("not_stopped", "the old server has ended, but its GPU memory is not free", who, "gpuops doctor")
    if proof.survivors:
        who = ", ".join(f"pid {each.pid}: {each.command} (state {each.state})" for each in proof.survivors)
        if proof.xids:
            # Stuck in the kernel: no signal ends it, and the driver has said why.
            who = f"{who}; {' | '.join(proof.xids[-3:])}"
        return Failure(
            "not_stopped", "the old server could not be stopped", f"still alive: {who}", "look at these processes on the host"
        )
    who = ", ".join(f"pid {each.pid}: {each.command}" if each.pid else each.command for each in proof.port_held)
    return Failure(
        "port_taken", "the old server has ended, but its port is not free", f"held by {who}", "stop that process, then gpuops up"
    )
