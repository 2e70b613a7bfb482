"""Readiness, proved in order: our process lives, it owns the port, it names our model, a real generation answers.

The engine's own "ready" line proves nothing: it appears before the port listens, and even when another server owns the port.
"""

from __future__ import annotations

from typing import Dict, List

from . import liveness
from .guard import POLL_S, Guard
from .net import Listener, listeners
from .proc import boottime
from .server import Server

# Looking again this soon after "not yet" costs little, and keeps the report within a second of the truth.
RETRY_S = 0.1

# How long the end of a server is waited for whose port seems to be a stranger's, in seconds.
_DYING_S = 1.0


class NotReady(Exception):
    """The server lives but does not become ready. ``kind``: deadline, stalled, port_taken, wrong_identity, hung, slow, failing."""

    def __init__(self, kind: str, what: str, evidence: str) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.evidence = evidence


def wait(guard: Guard, server: Server, deadlines: Dict[str, float]) -> float:
    """Wait until the server is proved ready.

    Returns:
        CLOCK_BOOTTIME of the first generated answer, in seconds.
    Raises:
        NotReady, guard.Died, wire.Cancelled
    """
    patience = Patience(guard, deadlines)
    _owns_port(guard, server, patience)
    guard.enter("listening", f"port {server.port}")
    _names_our_model(guard, server, patience)
    guard.enter("generating")
    return _generates(guard, server, patience, deadlines["generate_s"])


class Patience:
    """The two deadlines of a start: the whole of it, and the longest stretch without any sign of work."""

    def __init__(self, guard: Guard, deadlines: Dict[str, float]) -> None:
        self._guard = guard
        self._start_s = deadlines["start_s"]
        self._stall_s = deadlines["stall_s"]
        self._began = self._moved = boottime()
        self._seen = (0, 0)
        self._answer = ""

    def answered(self, evidence: str) -> None:
        """Remember what the server last said when it was asked to generate: it tells more than the log."""
        self._answer = evidence

    def check(self) -> None:
        """Raises NotReady when a deadline has passed."""
        now = boottime()
        if now - self._began > self._start_s:
            raise NotReady("deadline", f"not ready after {self._start_s:g} s", self._evidence())
        if now - self._moved < self._stall_s:
            self._look(now)
            return
        self._look(now)
        if now - self._moved >= self._stall_s:
            raise NotReady("stalled", f"no log line and no CPU use for {self._stall_s:g} s", self._evidence())

    def _look(self, now: float) -> None:
        log_bytes = self._guard.log_bytes
        if log_bytes != self._seen[0]:
            self._seen, self._moved = (log_bytes, self._guard.cpu_ticks()), now
            return
        if now - self._moved < 1.0:
            return
        ticks = self._guard.cpu_ticks()
        if ticks > self._seen[1] + 2:
            self._seen, self._moved = (log_bytes, ticks), now

    def _evidence(self) -> str:
        log = f"last phase: {self._guard.phase}; last log line: {self._guard.last_line or '(none)'}"
        return f"{self._answer}; {log}" if self._answer else log


def _owns_port(guard: Guard, server: Server, patience: Patience) -> None:
    while True:
        guard.poll()
        patience.check()
        found = listeners(server.port, likely=(guard.record.pid,))
        if not found:
            continue
        if _ours(guard, found):
            return
        # A process that is just ending has let go of its descriptors: its port seems to be a stranger's, and its death is the news.
        guard.poll(_DYING_S)
        found = listeners(server.port, likely=(guard.record.pid,))
        if found and not _ours(guard, found):
            # A listener of another user has no pid that we may see; it is as foreign as one that has.
            raise NotReady("port_taken", f"port {server.port} was taken by another process", found[0].who)


def _ours(guard: Guard, found: List[Listener]) -> bool:
    pids = {stat.pid for stat in guard.tree()}
    return any(listener.pid in pids for listener in found)


def _names_our_model(guard: Guard, server: Server, patience: Patience) -> None:
    while True:
        info = guard.during(server.info)
        if info is not None:
            wrong = server.mismatch(info)
            if wrong:
                raise NotReady("wrong_identity", "the server does not name this release's model and arguments", wrong)
            return
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
