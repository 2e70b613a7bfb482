"""Playing a trial: steps one after the other, none of which is promoted, and the known-good release at the end, whatever happens.

One operation holds the service from the first step to the last and back. So everything that undoes a rollout undoes a trial too: a cancelled one, one
whose controller is lost, and one whose runner dies end with the known-good release serving (``recovery`` knows it as any other cut rollout). Between
steps nothing is restored: a candidate stays until the next one takes its place.

A step is an ``up`` of its own (``experiment_step``). What the steps need from outside (runtime, model, build, a cache with its kernels) is made
ready before the first of them stops anything.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

from . import ahead, hooks, releases
from .attempt import Failure
from .experiment_plan import PASSED, Plan, left, next_step
from .experiment_step import OUT_OF_TIME, OutOfTime, Step, StepLeash
from .prepare import Prepared, Work, cache_identity, prepare
from .proc import boottime
from .records import server_alive
from .releases import Release
from .rollout import Rollout
from .way_back import Outcome, as_failure, told
from .wire import RESTORED, AgentError, Cancelled

# Builds that are tried at a time before the first step: compiling their kernels takes one core each, and the server that still serves needs some too.
_AT_ONCE = 4

_Made = Tuple[str, Dict[str, Any], Prepared]
"""What is there for a step: its name, its order, and what was prepared for it."""


class Experiment(Rollout):
    """A trial's order: ``experiment: {name, mode, stop, find, done, budget_s}`` and ``steps: [{name, deadline_s, bench, order}]``."""

    def play(self) -> Outcome:
        """Play the steps that have no verdict yet, and go back. Raises AgentError when there is nothing to go back to."""
        cut = self._debt()
        try:
            self._pay(cut)
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
            tried = self._make_ready_ahead([step for step in self.order["steps"] if step["name"] not in verdicts], until)
            while True:
                name = next_step(plan, verdicts)
                if name is None:
                    return self._home(results)
                self.tell("step", step=name, number=len(verdicts) + 1, of=len(steps))
                result = self._step(steps[name], until, tried=name in tried)
                verdicts[name] = result["verdict"]
                results.append(result)
                self.tell("tried", **result)
        except OutOfTime:
            remaining = ", ".join(left(plan, verdicts))
            return self._home(results, Failure(OUT_OF_TIME, f"its time of {said['budget_s']:g} s is over; left: {remaining}"))
        except Cancelled:
            return self._home(results, Failure(self._leash.kind, self._leash.reason))
        except Exception as error:
            return self._home(results, as_failure(error))

    def _make_ready_ahead(self, steps: List[Dict[str, Any]], until: Optional[float]) -> Set[str]:
        """Make what the steps need while the old server still serves: after a step that failed nobody does.

        What cannot be made is told in its step's turn. Returns the names of the steps whose builds have been tried.

        Raises:
            OutOfTime, wire.Cancelled
        """
        leash = StepLeash(self.service, self.order, self._leash, inf, until)
        try:
            return self._made_ready(steps, leash)
        except Cancelled:
            if leash.kind == OUT_OF_TIME:
                raise OutOfTime() from None
            raise

    def _made_ready(self, steps: List[Dict[str, Any]], leash: StepLeash) -> Set[str]:
        made: List[_Made] = []
        for step in steps:
            order = step["order"]
            with suppress(AgentError):
                work = self._work(order, "prepare.log", leash)
                made.append((step["name"], order, prepare(self.service.root, order["prepare"], order["engine"], work)))
        # A cache that is kept apart begins as a copy of its build's own: what is compiled there is compiled once, and not for every step.
        apart = [each for each in made if each[1].get("cache_apart")]
        first = [each for each in made if not each[1].get("cache_apart")]
        there = {cache_identity(prepared, order).key for _, order, prepared in first}
        for _, order, prepared in apart:
            own = {**order, "cache_apart": ""}
            if prepared.build is not None and cache_identity(prepared, own).key not in there:
                there.add(cache_identity(prepared, own).key)
                first.append(("", own, prepared))
        return self._try_builds(first, leash) | self._try_builds(apart, leash)

    def _try_builds(self, made: List[_Made], leash: StepLeash) -> Set[str]:
        """Make the caches and try the builds, some at a time. Returns the names of those whose build passed."""
        caches: Dict[int, Path] = {}
        for number, (_, order, prepared) in enumerate(made):
            with suppress(AgentError):
                caches[number] = ahead.make_cache(self.service, order, prepared, None, self._work(order, "prepare.log", leash))
        tried = set()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            waiting = {}
            for number, cache in caches.items():
                name, order, prepared = made[number]
                heard: List[Tuple[str, Dict[str, Any]]] = []
                alone = self._work(order, f"prepare-{number}.log", leash)
                work = replace(alone, emit=partial(_keep, heard), at_once=min(_AT_ONCE, len(caches)))
                waiting[pool.submit(ahead.try_build, order, prepared, cache, work)] = (name, heard)
            for done in as_completed(waiting):
                name, heard = waiting[done]
                for event, fields in heard:
                    self.tell(event, **fields)
                with suppress(AgentError):
                    done.result()
                    tried.add(name)
        return tried

    def _work(self, order: Dict[str, Any], log: str, leash: StepLeash) -> Work:
        folder = self.service.operation(self.tell.op)
        return Work(self.tell, folder / log, leash, boottime() + order["deadlines"]["prepare_s"])

    def _step(self, said: Dict[str, Any], until: Optional[float], *, tried: bool) -> Dict[str, Any]:
        """One step's result. Raises OutOfTime, wire.Cancelled; Failure when what runs cannot be stopped."""
        if until is not None and boottime() >= until:
            raise OutOfTime()
        order = {**self.order, **said["order"], "kind": "up", "trial": True, "op": self.tell.op}
        leash = StepLeash(self.service, self.order, self._leash, boottime() + float(said["deadline_s"]), until)
        step = Step(self.service, order, self.tell, leash, said.get("bench"), tried)
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


def _keep(heard: List[Tuple[str, Dict[str, Any]]], name: str, /, **fields: Any) -> None:
    """An Emit for the threads that try builds: an operation's events are written by one thread only."""
    heard.append((name, fields))
