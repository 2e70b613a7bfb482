"""Playing a trial: steps one after the other, none of which is promoted, and the known-good release at the end, whatever happens.

One operation holds the service from the first step to the last and back. So everything that undoes a rollout undoes a trial too: a cancelled one, one
whose controller is lost, and one whose runner dies end with the known-good release serving (``recovery`` knows it as any other cut rollout). Between
steps nothing is restored: a candidate stays until the next one takes its place.

A step is an ``up`` of its own: through every gate, with its own time, and measured where that is asked for. What the steps need from outside
(runtime, model, build) is made ready before the first of them stops anything.
"""

from __future__ import annotations

import random as numbers
import secrets as random
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from . import ahead, attempt, bench, block, hooks, load_client, measurements, recovery, releases
from .attempt import Failure, Up
from .experiment_plan import FAILED, PASSED, TIMEOUT, UNFIT, Plan, left, next_step
from .files import read_json
from .guard import Guard
from .lease import Leash
from .load_run import Cell
from .paths import Service
from .prepare import Work, prepare
from .proc import boottime
from .recorder import Recorder
from .records import server_alive
from .releases import GOOD, VERIFIED, Release
from .rollout import Rollout
from .server import of_release
from .way_back import Outcome, as_failure, told, where
from .wire import RESTORED, AgentError, Cancelled, unheard

STEP_DEADLINE, OUT_OF_TIME = "step_deadline", "out_of_time"

_DRIVER = Path("/proc/driver/nvidia/version")


class Experiment(Rollout):
    """A trial's order: ``experiment: {name, mode, stop, find, done, budget_s}`` and ``steps: [{name, deadline_s, bench, order}]``."""

    def play(self) -> Outcome:
        """Play the steps that have no verdict yet, and go back. Raises AgentError when there is nothing to go back to."""
        cut = recovery.close_cut_operations(self.service, self.tell.op)
        try:
            if cut:
                self.tell("note", text="an earlier rollout was cut: recovering from it first")
                self._recover(cut)
                self._touched = False
            self._must_have_a_way_back()
            return self._steps()
        finally:
            self._reserve.give_back()

    def _must_have_a_way_back(self) -> None:
        if releases.load(self.service, releases.known_good(self.service)) is None:
            raise AgentError(
                "a trial ends with the known-good release, and there is none",
                evidence=f"service {self.service.name} has no release that was promoted",
                next="gpuops up with the trial's base playbook, then the trial",
                kind="no_release",
            )

    def _steps(self) -> Outcome:
        said = self.order["experiment"]
        steps = {step["name"]: step for step in self.order["steps"]}
        plan = Plan(said["mode"], tuple(steps), said["stop"], said["find"])
        verdicts: Dict[str, str] = dict(said.get("done") or {})
        until = boottime() + float(said["budget_s"]) if said.get("budget_s") else None
        results: List[Dict[str, Any]] = []
        try:
            for step in self.order["steps"]:
                if step["name"] not in verdicts:
                    self._prepare_ahead(step["order"])
            while True:
                name = next_step(plan, verdicts)
                if name is None:
                    return self._home(results)
                self.tell("step", step=name, number=len(verdicts) + 1, of=len(steps))
                result = self._step(steps[name], until)
                verdicts[name] = result["verdict"]
                results.append(result)
                self.tell("tried", **result)
        except _OutOfTime:
            remaining = ", ".join(left(plan, verdicts))
            return self._home(results, Failure(OUT_OF_TIME, f"its time of {said['budget_s']:g} s is over; left: {remaining}"))
        except Cancelled:
            return self._home(results, Failure(self._leash.kind, self._leash.reason))
        except Exception as error:
            return self._home(results, as_failure(error))

    def _prepare_ahead(self, order: Dict[str, Any]) -> None:
        """Make what a step needs while the old server still serves: after a step that failed nobody does. What cannot be made is told in its turn."""
        log = self.service.operation(self.tell.op) / "prepare.log"
        work = Work(self.tell, log, self._leash, boottime() + order["deadlines"]["prepare_s"])
        with suppress(AgentError):
            prepared = prepare(self.service.root, order["prepare"], order["engine"], work)
            ahead.make_cache(self.service, order, prepared, None, work)

    def _step(self, said: Dict[str, Any], until: Optional[float]) -> Dict[str, Any]:
        """One step's result. Raises _OutOfTime, wire.Cancelled; Failure when what runs cannot be stopped."""
        if until is not None and boottime() >= until:
            raise _OutOfTime()
        order = {**self.order, **said["order"], "kind": "up", "trial": True, "op": self.tell.op}
        leash = _StepLeash(self.service, self.order, self._leash, boottime() + float(said["deadline_s"]), until)
        step = _Step(self.service, order, self.tell, leash, said.get("bench"))
        began = boottime()
        try:
            result = step.result()
        finally:
            self._touched = self._touched or step.touched
        return {"step": said["name"], **result, "seconds": round(boottime() - began, 3)}

    def _home(self, results: List[Dict[str, Any]], cut: Optional[Failure] = None) -> Outcome:
        """The known-good release serves and has been probed. Not to be cancelled."""
        good = releases.load(self.service, releases.known_good(self.service))
        assert good is not None, "it was there when the trial began, and only this operation could change that"
        fields: Dict[str, Any] = {"steps": results, "complete": cut is None}
        if self._touched and not self._is_home(good, results):
            try:
                self._stop()
            except Failure as stuck:
                return self._nobody_serves(good.number, stuck, next_default="gpuops status", **fields)
            up = self._bring_back(good, cut.reason if cut else "the trial is over")
            if isinstance(up, Failure):
                return self._nobody_serves(good.number, up, **fields)
            self._hook_warns(hooks.AFTER_RESTORE, good, outcome="restored", reason="the trial is over")
        if cut is None:
            return self._outcome("tried", 0, release=good.number, **fields)
        return self._outcome(
            "trial_cut", RESTORED, release=good.number, **fields, **told(cut, next_default="gpuops trial FILE --resume")
        )

    def _is_home(self, good: Release, results: List[Dict[str, Any]]) -> bool:
        """Whether the last step was the known-good release itself, which has just passed its gates, and lives."""
        record, last = server_alive(self.service), results[-1] if results else {}
        return (
            record is not None
            and record.release == good.number == last.get("release")
            and releases.current(self.service) == good.number
            and last["verdict"] == PASSED
        )


class _OutOfTime(Exception):
    """The trial's own time is over; the step that ran has no verdict."""


class _StepLeash(Leash):
    """The trial's leash, and the step's own time. ``until``: the end of the trial's."""

    def __init__(self, service: Service, order: Dict[str, Any], whole: Leash, deadline: float, until: Optional[float]) -> None:
        super().__init__(service, order)
        self._whole, self._deadline, self._end = whole, deadline, until

    def __call__(self) -> bool:
        now = boottime()
        if self._whole():
            self.kind, self.reason = self._whole.kind, self._whole.reason
        elif self._end is not None and now > self._end:
            self.kind, self.reason = OUT_OF_TIME, "the trial's time is over"
        elif now > self._deadline:
            self.kind, self.reason = STEP_DEADLINE, "the step took longer than its own deadline"
        return bool(self.kind)


class _Step(Rollout):
    """An ``up`` that is neither promoted nor undone: whoever plays the trial says what comes next."""

    def __init__(
        self, service: Service, order: Dict[str, Any], recorder: Recorder, leash: _StepLeash, measured: Optional[Dict[str, Any]]
    ) -> None:
        super().__init__(service, order, recorder)
        self._leash = leash
        self._bench = measured
        self._launched = 0.0
        self._found: Dict[str, Any] = {}
        self._failure: Optional[Failure] = None

    @property
    def touched(self) -> bool:
        """Whether this step has asked a server to stop."""
        return self._touched

    def result(self) -> Dict[str, Any]:
        """``{verdict, release, ready_s, probes, blocks, fingerprint, ...}``.

        Raises:
            _OutOfTime, wire.Cancelled; Failure: what runs cannot be stopped.
        """
        try:
            outcome = self._up()
        except AgentError as error:
            # Nothing of it was started; what ran before still runs.
            return {"verdict": UNFIT, **self._found, **_why(as_failure(error))}
        except Cancelled:
            return self._ended()
        number = outcome["release"]
        self._found = {"release": number, **self._found, **_evidence(self.service, number)}
        if self._failure is None:
            return {"verdict": PASSED, **self._found}
        return self._ended() if self._leash.kind else {"verdict": FAILED, **self._found, **_why(self._failure)}

    def _ended(self) -> Dict[str, Any]:
        """A step that was ended from outside: only its own deadline is a verdict on it."""
        if self._leash.kind == OUT_OF_TIME:
            raise _OutOfTime()
        if self._leash.kind != STEP_DEADLINE:
            raise Cancelled()
        return {"verdict": TIMEOUT, **self._found, **_why(Failure(STEP_DEADLINE, self._leash.reason))}

    def _bring_up(
        self,
        release: Release,
        *,
        fast: bool,
        cancelled: Callable[[], bool],
        on_ready: Callable[[], None] = lambda: None,
        insist: bool = True,
    ) -> Up:
        self._launched = boottime()
        return super()._bring_up(release, fast=fast, cancelled=cancelled, on_ready=on_ready, insist=insist)

    def _now_ready(self, release: Release, was_good: bool) -> None:
        self._found["ready_s"] = round(boottime() - self._launched, 3)
        super()._now_ready(release, was_good)

    def _measured(self, release: Release, up: Up, *, fast: bool) -> Optional[Dict[str, Any]]:
        """Measure the step's cells, where it has some; a block that cannot be believed has no figures, and fails nothing."""
        if self._bench:
            with self._looked_after(release, up) as guard:
                self._found["blocks"] = [self._block(guard, release, Cell.from_json(cell)) for cell in self._bench["cells"]]
        return None

    def _block(self, guard: Guard, release: Release, cell: Cell) -> Dict[str, Any]:
        """A cell's figures; why there are none when it could not be measured, which says nothing of the step."""
        try:
            return self._measure(guard, release, cell)
        except AgentError as error:
            why = f"{error.what}: {error.evidence}".rstrip(": ")
            return {"cell": cell.to_json(), "client": "", "valid": False, "faults": [why], "figures": None}

    def _measure(self, guard: Guard, release: Release, cell: Cell) -> Dict[str, Any]:
        assert self._bench is not None
        self.tell("phase", phase="bench", progress=None, detail=cell.name)
        words = self._bench["load"]
        log = self.service.server_log(release.number)
        client = load_client.find(release, words)
        target = block.Target(of_release(self.service, release), guard.record, release, log, words, client)
        draw, deadline_s = numbers.Random(random.randbits(63)), float(self._bench["deadline_s"])
        measured = guard.during(lambda: bench.measure(target, cell, draw, deadline_s, unheard))
        kept = {**measured, "release": release.number, "launch": bench.launch_of(guard.record), "by": str(self.order.get("by"))}
        self._anyhow(lambda: measurements.append(self.service, release.number, kept))
        return {key: kept[key] for key in ("cell", "client", "valid", "faults", "figures")}

    def _promote(self, release: Release, up: Up, was_good: bool, speed: Optional[Dict[str, Any]]) -> Outcome:
        """It passed; it takes nobody's place, so nobody has to confirm it."""
        if not was_good:
            self._mark(release, VERIFIED)
            self._mark(release, GOOD, "it passed its gates in a trial")
        return self._outcome("launched", 0, release=release.number, **where(up))

    def _give_up(self, candidate: Release, state: str, failure: Failure, was_good: bool) -> Outcome:
        """Mark the candidate and stop it. Raises Failure when it cannot be stopped: then nothing else can be started either."""
        self._failure = failure
        reason = f"{failure.reason}: {failure.evidence}".rstrip(": ")
        marked = was_good or self._anyhow(lambda: attempt.mark(self.service, self.tell, candidate.number, state, reason))
        self._stop()
        self._reserve.give_back()
        if not marked:
            self._anyhow(lambda: attempt.mark(self.service, self.tell, candidate.number, state, reason))
        return {"release": candidate.number}


def _why(failure: Failure) -> Dict[str, Any]:
    return told(failure, next_default="gpuops logs")


def _evidence(service: Service, number: int) -> Dict[str, Any]:
    """What the release's folder holds of a start: the probes' and the rungs' verdicts, the kernels' proof, and what was really there."""
    folder = service.release(number)
    gates = read_json(folder / "gates.json") or {}
    proof, rungs = gates.get("proof"), (gates.get("ladder") or {}).get("rungs")
    try:
        driver: Optional[str] = _DRIVER.read_text(errors="replace").splitlines()[0]
    except (OSError, IndexError):
        driver = None
    return {
        "probes": [{key: probe.get(key) for key in ("name", "passed", "gate")} for probe in gates.get("probes") or ()],
        **({"proof": proof} if proof else {}),
        **({"ladder": rungs} if rungs else {}),
        "fingerprint": {**(read_json(folder / "fingerprint.json") or {}), "driver": driver},
    }
