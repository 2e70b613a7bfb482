"""The supervisor's life after the server has started: watch the tree, note what is lost, and sweep at the end.

All waiting is one ``poll`` over the descriptors of the ranks and the wakeup pipe of our signals, so that an exit is handled when
it happens; the timeout only paces the scans of the tree. Nothing here may end the supervisor early: what fails is logged.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Set, Tuple

from . import exits, files, proc, shm
from .kin import Kin
from .paths import Service
from .proc import Identity
from .records import ExitRecord, LostRank, RunProcesses
from .shm import Segment
from .wire import AgentError

_STARTUP_S = 300.0
"""Seconds after the launch in which processes come and go quickly."""
_SCAN_STARTUP_S = 0.2
_SCAN_S = 1.0
_SHM_LOOKS = 5
"""How many scans look for the holder of a new segment before it counts as foreign."""
_TITLE_LENGTH = 300
_SETTLE_S = 0.05
"""Seconds that a server has to show that it ends, when a further rank of it has ended."""

SWEEP_GRACE_S = 5.0
"""Seconds between TERM and KILL for what the server left behind."""
SWEEP_KILL_S = 20.0
"""Seconds after KILL until a process counts as stuck in the kernel."""


@dataclass(frozen=True)
class Subject:
    """What is watched: the release that a server runs for a service.

    Args:
        rank_patterns: regular expressions on process titles; a process of such a title is a rank.
        redact: takes the secrets out of a title.
    """

    service: Service
    release: int
    rank_patterns: List[str]
    redact: Callable[[str], str]


class Watch:
    """One server, from its launch (or adoption) to the last of its descendants.

    Args:
        on_scan: called with every scan of the tree while the server lives.
        left_over: what an earlier supervisor wrote down and this one takes over; its lost ranks count as this run's.
    """

    def __init__(self, subject: Subject, kin: Kin, left_over: RunProcesses, on_scan: Callable[[], None] = lambda: None) -> None:
        self._on_scan = on_scan
        self._subject = subject
        self._kin = kin
        self._patterns = [re.compile(pattern) for pattern in subject.rank_patterns]
        self._left_over = left_over
        self._titles: Dict[Identity, str] = {}
        self._ranks: Dict[int, Tuple[Identity, str]] = {}  # by pidfd
        self._watched: Set[Identity] = set()
        self._lost: List[LostRank] = list(left_over.lost)
        self._shm: Set[Segment] = set(left_over.shm)
        self._shm_looks: Dict[Segment, int] = {}
        self._written: Optional[RunProcesses] = None
        self._ended = False
        self._stop_announced = False
        self._wakeup = _signal_pipe()
        self._scan_at = 0.0
        self._began = time.monotonic()

    def until_exit(self) -> None:
        """Watch until the server has ended and ``exit.json`` says how."""
        how = "adopted" if self._kin.adopted else "runs"
        _log(f"server {self._kin.server.pid} of release {self._subject.release}: {how}")
        self._reap()
        while not self._ended:
            self._scan_when_due()
            self._wait(max(0.0, self._scan_at - time.monotonic()))
            self._reap()
            if not self._ended:
                self._note_lost_ranks()

    @property
    def asked_to_stop(self) -> bool:
        """Whether the server's end was announced, or passed on by us: then it did not die by itself."""
        return self._stop_announced

    def sweep(self) -> None:
        """End every process that the server left behind: TERM, grace, KILL, until none is left."""
        for pidfd in self._ranks:
            os.close(pidfd)
        self._ranks.clear()
        self._scan()
        for number, patience in ((signal.SIGTERM, SWEEP_GRACE_S), (signal.SIGKILL, SWEEP_KILL_S)):
            deadline = time.monotonic() + patience
            told: Set[Identity] = set()
            while time.monotonic() < deadline:
                self._reap()
                if self._kin.gone:
                    self._scan()
                    _log("swept: no process is left")
                    return
                for stat in self._kin.scan().values():
                    identity = proc.identity_of(stat)
                    if identity not in told:
                        told.add(identity)
                        _log(f"{number.name} to {stat.pid} ({stat.comm}), left behind by the server")
                        _tell(identity, number)
                self._wait(0.05)
        self._scan()
        _log(f"KILL did not end: {', '.join(str(identity.pid) for identity in self._titles)}")

    def _wait(self, timeout: float) -> None:
        """Sleep until a signal or the end of a rank, ``timeout`` seconds at most; take the signals in."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        for pidfd in (*self._ranks, *self._kin.descriptors):
            poll.register(pidfd, select.POLLIN)
        poll.poll(int(timeout * 1000) + 1)
        try:
            arrived = os.read(self._wakeup, 4096)
        except BlockingIOError:
            return
        if signal.SIGUSR1 in arrived:
            self._stop_announced = True
            _log("a stop was announced")
        if signal.SIGTERM in arrived and not self._ended:
            self._stop_announced = True
            _log("TERM: passed on to the server")
            _tell(self._kin.server, signal.SIGTERM)

    def _reap(self) -> None:
        self._kin.reap()
        if self._kin.ending is not None and not self._ended:
            self._server_ended(*self._kin.ending)

    def _server_ended(self, code: Optional[int], number: Optional[int]) -> None:
        self._ended = True
        server, service = self._kin.server, self._subject.service
        record = ExitRecord(
            pid=server.pid,
            release=self._subject.release,
            code=code,
            signal=number,
            at=round(time.time(), 3),
            boot=proc.boot_id(),
            last_lost_rank=self._lost[-1] if self._lost else None,
            adopted=self._kin.adopted,
        )
        how = f"signal {number}" if number is not None else f"status {code}" if code is not None else "nobody was told how"
        _log(f"server {server.pid} ended: {how}")
        try:
            files.write_json(service.exit_file, record.to_json())
        except (AgentError, OSError) as error:
            _log(f"could not write {service.exit_file}: {error}")

    def _note_lost_ranks(self) -> None:
        ended = [pidfd for pidfd in self._ranks if proc.wait_exit(pidfd, 0)]
        if ended and self._lost:
            # An engine that has lost a rank may end the others, and then itself.
            time.sleep(_SETTLE_S)
        for pidfd in ended:
            identity, title = self._ranks.pop(pidfd)
            code, number = self._kin.ending_of(identity.pid)
            if code is None and number is None:
                code, number = exits.of_other(identity.pid, pidfd)
            os.close(pidfd)
            if self._stop_announced:
                continue
            if proc.ending(self._kin.server):
                # A consequence, not a loss: how the server itself ended is the news, and it comes when the last of its threads has gone.
                _log(f"rank {title} ({identity.pid}) ended with its server")
                continue
            rank = LostRank(identity.pid, title, round(time.time(), 3), code, number)
            self._lost.append(rank)
            _log(f"lost rank {rank.title} ({rank.pid})")
        if ended:
            self._scan()
        self._kin.forget()

    def _scan_when_due(self) -> None:
        now = time.monotonic()
        if now < self._scan_at:
            return
        starting = now - self._began < _STARTUP_S and not self._kin.adopted
        self._scan_at = now + (_SCAN_STARTUP_S if starting else _SCAN_S)
        self._scan()
        try:
            self._on_scan()
        except Exception as error:
            _log(f"after a scan: {error!r}")

    def _scan(self) -> None:
        """Look at the tree, hold the ranks by pidfd, and write down what changed."""
        try:
            members = self._kin.scan()
            titles = {proc.identity_of(stat): self._title(stat.pid) for stat in members.values()}
            self._titles = titles
            for identity, title in titles.items():
                if identity not in self._watched and self._is_rank(members[identity.pid], title):
                    self._hold(identity, title)
            self._find_shm(members)
            self._write()
        except (AgentError, OSError) as error:
            _log(f"could not look at the processes: {error}")

    def _title(self, pid: int) -> str:
        return self._subject.redact(proc.title(pid))[:_TITLE_LENGTH]

    def _is_rank(self, stat: proc.Stat, title: str) -> bool:
        """Whether it is titled as a rank, and not only for the moment: what a rank forks is titled as the rank until it becomes another program."""
        if not any(pattern.search(title) for pattern in self._patterns):
            return False
        return self._title(stat.ppid) != title

    def _hold(self, identity: Identity, title: str) -> None:
        pidfd = proc.open_pidfd(identity)
        if pidfd is not None:
            self._ranks[pidfd] = (identity, title)
            self._watched.add(identity)

    def _find_shm(self, members: Dict[int, proc.Stat]) -> None:
        """Which of the segments that came since the launch are ours: held by a member, or named after one.

        Looking at a process' mappings is the dear part, so it is done only for segments that are new.
        """
        here = shm.segments()
        self._shm_looks = {segment: looks for segment, looks in self._shm_looks.items() if segment in here}
        open_questions = {
            segment
            for segment in here - (self._left_over.shm_before or frozenset()) - self._shm
            if self._shm_looks.setdefault(segment, 0) < _SHM_LOOKS
        }
        self._shm &= here
        if not open_questions:
            return
        ours = shm.held(members) | {segment for segment in open_questions if shm.pid_in_name(segment) in self._kin.ever}
        self._shm |= open_questions & ours
        for segment in open_questions - ours:
            self._shm_looks[segment] += 1

    def _write(self) -> None:
        old = [
            (identity, title)
            for identity, title in self._left_over.processes
            if identity not in self._titles and proc.alive(identity)
        ]
        run = RunProcesses(
            processes=tuple(sorted([*old, *self._titles.items()], key=lambda item: item[0].pid)),
            lost=tuple(self._lost),
            shm=frozenset(self._shm),
            shm_before=self._left_over.shm_before,
        )
        if run != self._written:
            files.write_json(self._subject.service.processes_file, run.to_json())
            self._written = run


def _signal_pipe() -> int:
    """A descriptor that becomes readable when a signal arrives, and yields the signal's number."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda _number, _frame: None)
    return read


def _tell(identity: Identity, number: int) -> None:
    try:
        proc.send(identity, number)
    except AgentError as error:
        _log(f"{error.what}: {error.evidence}")


def _log(text: str) -> None:
    try:
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} [{os.getpid()}] {text}\n".encode("utf-8", "surrogateescape"))
    except OSError:  # a full disk is no reason to leave the server alone
        pass
