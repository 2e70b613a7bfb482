"""Looking after a launched server while something is waited for.

Everything that waits on the server goes through a :class:`Guard`, so that its death, the loss of a rank or a cancelled rollout ends
the wait within :data:`POLL_S`, whatever was being waited for.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, List, Optional, TypeVar, Union

from . import ranks
from .diagnosis import Ending
from .logread import LogReader
from .logs import tail
from .paths import Service, own_zipapp
from .proc import Stat, boottime, descendants, ending, open_pidfd, read_stat, wait_exit
from .records import ExitRecord, LostRank, ServerRecord, lost_ranks, read_exit, supervisor_alive
from .supervisor import adopt
from .vault import Redactor
from .wire import AgentError, Cancelled, Emit

POLL_S = 0.05

# A start's phases, in order. What has been proved is never taken back by a log line that comes late.
PHASES = ("launch", "weights", "capture", "warm-up", "listening", "generating", "probes")

# The supervisor writes exit.json at once when it reaps the server; this is the patience with a busy host, in seconds.
EXIT_FILE_S = 60.0

# How long after a failed request the server may take to begin to end, in seconds.
DYING_S = 1.0

# How long a server that has said that it cannot start may take to end by itself, and to finish its traceback, in seconds.
SETTLE_S = 0.7

# How often the supervisor is looked for, in seconds.
SUPERVISED_S = 1.0

# The last words of a server that died while it served are looked for in so much of its log; nobody serves meanwhile.
LAST_BYTES = 1 << 20

T = TypeVar("T")


class Died(Exception):
    """The server, or one of its ranks, has ended, or has said that it cannot start. ``facts``: what, code, signal, phase, line."""

    def __init__(self, ending: Optional[Ending] = None, **facts: Any) -> None:
        super().__init__(facts["what"])
        self.facts = facts
        self.ending = ending or Ending(alive=False, code=facts["code"], signal=facts["signal"])


class Guard:
    """Eyes on one server: its process, its ranks, its log."""

    def __init__(
        self, service: Service, record: ServerRecord, engine: Dict[str, Any], cancelled: Callable[[], bool], emit: Emit
    ) -> None:
        self.service = service
        self.record = record
        self.log = LogReader(engine)
        self.log_bytes = 0
        self._floor = 0
        self._supervised_at = boottime()
        self._processes_seen = 0
        self._doomed_at: Optional[float] = None
        self._rank_facts = engine["ranks"]
        self._cancelled = cancelled
        self._emit = emit
        self._redact = Redactor(service.root)
        self._log_path = service.server_log(record.release)
        self._pidfd = open_pidfd(record.identity)

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    def poll(self, seconds: float = POLL_S) -> None:
        """Wait up to ``seconds`` for the server's end, and look at its log and ranks.

        Raises:
            Died, wire.Cancelled
        """
        ended = self._pidfd is None or wait_exit(self._pidfd, seconds)
        self.read_log()
        if ended:
            raise self._death()
        if self._has_lost_ranks():
            raise self._lost()
        if self._settled():
            # The process may live on for minutes, but after such a line it never serves.
            line = self._redact(self.log.doomed or "")
            raise Died(Ending(alive=True), what="the server cannot start", code=None, signal=None, phase=self.phase, line=line)
        self._keep_supervised()
        if self._cancelled():
            raise Cancelled()

    def expect_end(self) -> None:
        """Wait for the server's end where there is a sign of it: a cut connection, a port that is nobody's any more. Return when it lives on.

        A process lets go of its descriptors before it has ended, long before when it has gigabytes to give back.

        Raises:
            Died, wire.Cancelled
        """
        self.poll(DYING_S)
        deadline = boottime() + EXIT_FILE_S
        while ending(self.record.identity) and boottime() < deadline:
            self.poll()

    def during(self, call: Callable[[], T]) -> T:
        """Run a blocking call (HTTP with its own timeout) in a thread, and stop waiting for it when the server dies.

        Raises:
            Died, wire.Cancelled
        """
        results: List[T] = []
        errors: List[Exception] = []
        thread = threading.Thread(target=_call, args=(call, results, errors), daemon=True)
        thread.start()
        while True:
            thread.join(POLL_S)
            if not thread.is_alive():
                break
            self.poll(0)
        self.poll(0)
        if errors:
            raise errors[0]
        return results[0]

    @property
    def phase(self) -> str:
        """The furthest phase that was entered."""
        return PHASES[self._floor]

    @property
    def last_line(self) -> str:
        """The last log line that says something; empty before the first."""
        return self._redact(self.log.last_meaningful)

    def read_log(self) -> None:
        """Feed what the server wrote since the last look to the phase reader, and tell of new phases."""
        try:
            if os.stat(self._log_path).st_size <= self.log_bytes:
                return
            with self._log_path.open("rb") as file:
                file.seek(self.log_bytes)
                data = file.read()
        except OSError:
            return
        self.log_bytes += len(data)
        for mark in self.log.feed(data.decode("utf-8", "replace")):
            self.enter(mark.phase, mark.detail, mark.progress)

    def enter(self, phase: str, detail: str = "", progress: Optional[float] = None) -> None:
        """Tell of a phase, unless a later one has been entered."""
        rank = PHASES.index(phase) if phase in PHASES else self._floor
        if rank >= self._floor:
            self._floor = rank
            self._emit("phase", phase=phase, progress=progress, detail=detail)

    def cpu_ticks(self) -> int:
        """CPU time that the server and its descendants have used, in clock ticks."""
        return sum(stat.utime + stat.stime for stat in self.tree())

    def tree(self) -> List[Stat]:
        """The server and its living descendants."""
        own = read_stat(self.record.pid)
        return ([own] if own else []) + descendants(self.record.pid)

    def _settled(self) -> bool:
        """Whether the log says that the server cannot start, and has had its time to say why."""
        if self.log.doomed is None:
            return False
        now = boottime()
        if self._doomed_at is None:
            self._doomed_at = now
        return now >= self._doomed_at + SETTLE_S

    def _keep_supervised(self) -> None:
        """A supervisor that died is replaced: without one, the server's end would leave no record and its children no one."""
        now = boottime()
        if now < self._supervised_at + SUPERVISED_S:
            return
        self._supervised_at = now
        if supervisor_alive(self.service):
            return
        try:
            adopt(self.service, self.record, own_zipapp())
            self._emit("note", text="the supervisor had died; another one watches the server now")
        except AgentError as error:
            # It is just being replaced by somebody else, or the server has ended: the next look tells.
            self._emit("note", text=f"the supervisor has died: {error.what}")

    def _has_lost_ranks(self) -> bool:
        """Whether a rank is lost; the file is read only when it has changed, this runs twenty times a second."""
        try:
            changed = os.stat(self.service.processes_file).st_mtime_ns
        except OSError:
            return False
        if changed == self._processes_seen:
            return False
        self._processes_seen = changed
        return bool(lost_ranks(self.service))

    def _death(self) -> Died:
        ended = _exit_record(self.service, self.record)
        self.read_log()
        self.log.finish()
        what = f"the server (pid {self.record.pid}) {ranks.how(ended) if ended else 'is gone'}"
        lost = lost_ranks(self.service)
        if lost and self._several:
            # An engine ends itself when it has lost a rank: that loss is the cause.
            return self._died(f"{ranks.lost(lost, self._rank_facts)}; then {what}", lost[0], lost[0].title)
        return self._died(what, ended)

    def _lost(self) -> Died:
        if self._several:
            # Those that went with it are told with it.
            threading.Event().wait(2 * ranks.TOGETHER_S)
        lost = lost_ranks(self.service)
        return self._died(ranks.lost(lost, self._rank_facts), lost[0], lost[0].title)

    @property
    def _several(self) -> bool:
        return (self._rank_facts.get("schedulers") or 1) > 1

    def _died(self, what: str, ended: Union[ExitRecord, LostRank, None], rank: str = "") -> Died:
        signal, code = (ended.signal, ended.code) if ended else (None, None)
        line = self._redact(self.log.fatal) if self.log.fatal else self.last_line
        end = Ending(alive=False, code=code, signal=signal, rank=rank)
        return Died(end, what=what, code=code, signal=signal, phase=self.phase, line=line)


def last_words(service: Service, release: int, engine: Dict[str, Any]) -> str:
    """The line of a dead server's log that tells why it died, else its last meaningful one; secrets redacted."""
    reader = LogReader(engine)
    try:
        reader.feed(tail(service.server_log(release), LAST_BYTES))
    except OSError:
        return ""
    reader.finish()
    return Redactor(service.root)(reader.fatal or reader.last_meaningful)


def _call(call: Callable[[], T], results: List[T], errors: List[Exception]) -> None:
    try:
        results.append(call())
    except Exception as error:
        errors.append(error)


def _exit_record(service: Service, record: ServerRecord) -> Optional[ExitRecord]:
    """exit.json of this server. A supervisor that lives has yet to write it; without one, what is not there now never comes."""
    pause = threading.Event()
    deadline = boottime() + EXIT_FILE_S
    while True:
        # In this order: it writes the file before it lets go of its lock.
        supervised = supervisor_alive(service)
        ended = read_exit(service)
        if ended is not None and ended.pid == record.pid:
            return ended
        if not supervised or boottime() > deadline:
            return None
        pause.wait(POLL_S)
