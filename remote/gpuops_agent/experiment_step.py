"""One step of a trial: an ``up`` that is neither promoted nor undone, with its own time, and measured where that is asked for."""

from __future__ import annotations

import random as numbers
import secrets as random
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from . import attempt, bench, block, load_client, measurements
from .attempt import Failure, Up
from .experiment_plan import FAILED, PASSED, TIMEOUT, UNFIT
from .files import read_json
from .guard import Guard
from .lease import Leash
from .load_run import Cell
from .paths import Service
from .proc import boottime
from .recorder import Recorder
from .releases import GOOD, VERIFIED, Release
from .rollout import Rollout
from .server import of_release
from .way_back import Outcome, as_failure, told, where
from .wire import AgentError, Cancelled, unheard

STEP_DEADLINE, OUT_OF_TIME = "step_deadline", "out_of_time"

_DRIVER = Path("/proc/driver/nvidia/version")


class OutOfTime(Exception):
    """The trial's own time is over; the step that ran has no verdict."""


class StepLeash(Leash):
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


class Step(Rollout):
    """An ``up`` that is neither promoted nor undone: whoever plays the trial says what comes next."""

    def __init__(
        self,
        service: Service,
        order: Dict[str, Any],
        recorder: Recorder,
        leash: StepLeash,
        measured: Optional[Dict[str, Any]],
        tried: bool,
    ) -> None:
        super().__init__(service, order, recorder)
        self._leash = leash
        self._tried = tried
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
            OutOfTime, wire.Cancelled; Failure: what runs cannot be stopped.
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
            raise OutOfTime()
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
