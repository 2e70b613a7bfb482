"""Readiness, proved in order: our process lives, it owns the port, it names our model, a real generation answers.

The engine's own "ready" line proves nothing: it appears before the port listens, and even when another server owns the port.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

from . import liveness, look
from .guard import POLL_S, Guard
from .net import Listener, listeners
from .proc import boottime, title
from .server import Server

# Looking again this soon after "not yet" costs little, and keeps the report within a second of the truth.
RETRY_S = 0.1

# A start that shows no sign of work for so long is looked at, and what it waits for is told, in seconds; it ends at the playbook's own deadline.
CALL_S = 60.0

# CPU time is compared over stretches of this length, in seconds: what only polls for a file or a lock must not look like work.
STRETCH_S = 5.0

# Bytes read or written since the last sign of work that are work too, however little CPU they take.
WORK_BYTES = 1 << 20

# A log that is silent for so long while the cards are busy at little power: ranks that spin in a collective burn CPU, and do nothing, in seconds.
SPIN_S = 120.0
SPIN_LOOK_S = 30.0

Silence = Callable[[float], None]
"""Called once for each silence, with its length so far in seconds."""


class NotReady(Exception):
    """The server lives but does not become ready. ``kind``: deadline, stalled, port_taken, wrong_identity, hung, slow, failing."""

    def __init__(self, kind: str, what: str, evidence: str) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.evidence = evidence


def wait(guard: Guard, server: Server, deadlines: Dict[str, float], on_silence: Silence = lambda seconds: None) -> float:
    """Wait until the server is proved ready.

    Returns:
        CLOCK_BOOTTIME of the first generated answer, in seconds.
    Raises:
        NotReady, guard.Died, wire.Cancelled
    """
    patience = Patience(guard, deadlines, on_silence)
    _owns_port(guard, server, patience)
    guard.enter("listening", f"port {server.port}")
    _names_our_model(guard, server, patience, deadlines["generate_s"])
    guard.enter("generating")
    return _generates(guard, server, patience, deadlines["generate_s"])


class Patience:
    """The two deadlines of a start: the whole of it, and the longest stretch without any sign of work.

    A sign of work is a log line, a process that uses its processor, or bytes that are read or written.
    """

    def __init__(self, guard: Guard, deadlines: Dict[str, float], on_silence: Silence = lambda seconds: None) -> None:
        self._guard = guard
        self._start_s = deadlines["start_s"]
        self._stall_s = deadlines["stall_s"]
        self._call_s = min(CALL_S, self._stall_s / 2)
        self._stretch_s = min(STRETCH_S, max(0.5, self._stall_s / 4))
        self._on_silence = on_silence
        self._began = self._moved = self._spoke = self._looked = boottime()
        self._log_bytes = guard.log_bytes
        self._ticks: Dict[int, int] = {}
        self._bytes: Optional[int] = None
        self._called = False
        self._spin_looked = 0.0
        self._spins = False
        self._answer = ""

    def answered(self, evidence: str) -> None:
        """Remember what came of the last question to the server: it tells more than the log."""
        self._answer = evidence

    def check(self) -> None:
        """Raises NotReady when a deadline has passed."""
        now = boottime()
        if now - self._began > self._start_s:
            raise NotReady("deadline", f"not ready after {self._start_s:g} s", self._evidence())
        self._look(now)
        silent = now - (self._spoke if self._spins else self._moved)
        if silent >= self._call_s and not self._called:
            self._called = True
            self._on_silence(silent)
        if silent >= self._stall_s:
            how = "no log line, while the cards only spin," if self._spins else "no log line and no CPU use"
            raise NotReady("stalled", f"{how} for {self._stall_s:g} s", self._evidence())

    def _look(self, now: float) -> None:
        if self._guard.log_bytes != self._log_bytes:
            self._log_bytes = self._guard.log_bytes
            self._spoke, self._spins = now, False
            self._moves(now)
            return
        if now - self._looked < self._stretch_s:
            return
        if self._works(now - self._looked):
            self._moves(now)
        self._looked = now
        if now - self._spoke >= SPIN_S and now - self._spin_looked >= SPIN_LOOK_S:
            self._spin_looked = now
            self._spins = look.cards_spin()

    def _moves(self, now: float) -> None:
        self._moved, self._called, self._bytes = now, self._spins and self._called, None

    def _works(self, seconds: float) -> bool:
        """Whether a process used more than an idle one's share of its processor since the last look, or data has flowed."""
        tree = self._guard.tree()
        ticks = {stat.pid: stat.utime + stat.stime for stat in tree}
        idle = 2 + liveness.IDLE_SHARE * liveness.CLOCK_TICKS * seconds
        # A process that is new has worked for as long as it lives.
        busy = any(used - self._ticks.get(pid, 0) > idle for pid, used in ticks.items())
        self._ticks = ticks
        moved = look.bytes_moved(stat.pid for stat in tree)
        if self._bytes is None or moved < self._bytes:
            self._bytes = moved
        return busy or moved - self._bytes >= WORK_BYTES

    def _evidence(self) -> str:
        log = f"last phase: {self._guard.phase}; last log line: {self._guard.last_line or '(none)'}"
        return "; ".join(filter(None, [self._answer, liveness.stopped(self._guard.tree(), title), log]))


def _owns_port(guard: Guard, server: Server, patience: Patience) -> None:
    while True:
        guard.poll()
        patience.check()
        found = listeners(server.port, likely=(guard.record.pid,))
        if not found:
            continue
        if _ours(guard, found):
            return
        # The port of a process that is just ending seems to be a stranger's, and its death is the news.
        guard.expect_end()
        found = listeners(server.port, likely=(guard.record.pid,))
        if found and not _ours(guard, found):
            # A listener of another user has no pid that we may see; it is as foreign as one that has.
            raise NotReady("port_taken", f"port {server.port} was taken by another process", found[0].who)


def _ours(guard: Guard, found: List[Listener]) -> bool:
    pids = {stat.pid for stat in guard.tree()}
    return any(listener.pid in pids for listener in found)


def _names_our_model(guard: Guard, server: Server, patience: Patience, timeout: float) -> None:
    # The answer crosses to the scheduler and back: one that never comes says as much as a generation that never comes.
    log = guard.service.server_log(guard.record.release)
    while True:
        before = liveness.sample(guard.record, log)
        info = guard.during(lambda: server.info(timeout))
        if info.value is not None:
            wrong = server.mismatch(info.value)
            if wrong:
                raise NotReady("wrong_identity", "the server does not name this release's model and arguments", wrong)
            return
        if info.timed_out:
            after = liveness.sample(guard.record, log)
            state, evidence = liveness.judge(before, after, timeout, liveness.CLOCK_TICKS, title, "word of what it serves")
            if state == liveness.HUNG:
                raise NotReady("hung", "the server listens but does not say what it serves", evidence)
            patience.answered(evidence)
        guard.poll(RETRY_S)
        patience.check()


def _generates(guard: Guard, server: Server, patience: Patience, timeout: float) -> float:
    while True:
        verdict = liveness.check(server, guard.record, guard.service.server_log(guard.record.release), timeout, guard.during)
        if verdict.state == liveness.SERVING:
            return boottime()
        if verdict.state == liveness.HUNG:
            raise NotReady("hung", "the server listens but does not generate", verdict.evidence)
        # Slow: work goes on, the start's own deadline decides. Failing: 503 while it warms up; an error that stays meets the same deadline.
        patience.answered(verdict.evidence)
        guard.poll(POLL_S if verdict.state == liveness.SLOW else RETRY_S)
        patience.check()
