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
from typing import Callable, Dict, List, Optional, Set, Tuple

from . import files, proc, shm
from .proc import Identity
from .records import ExitRecord, LaunchSpec, LostRank, RunProcesses
from .shm import Segment
from .tree import Tree
from .wire import AgentError

_STARTUP_S = 300.0
"""Seconds after the launch in which processes come and go quickly."""
_SCAN_STARTUP_S = 0.2
_SCAN_S = 1.0
_SHM_LOOKS = 5
"""How many scans look for the holder of a new segment before it counts as foreign."""
_TITLE_LENGTH = 300

SWEEP_GRACE_S = 5.0
"""Seconds between TERM and KILL for what the server left behind."""
SWEEP_KILL_S = 20.0
"""Seconds after KILL until a process counts as stuck in the kernel."""


class Watch:
    """One server, from its launch to the last of its descendants."""

    def __init__(self, spec: LaunchSpec, server: int, redact: Callable[[str], str], left_over: RunProcesses) -> None:
        self._spec = spec
        self._server = server
        self._redact = redact
        self._patterns = [re.compile(pattern) for pattern in spec.rank_patterns]
        self._left_over = left_over
        self._tree = Tree(os.getpid())
        self._titles: Dict[Identity, str] = {}
        self._ranks: Dict[int, Tuple[Identity, str]] = {}  # by pidfd
        self._watched: Set[Identity] = set()
        self._lost: List[LostRank] = []
        self._shm: Set[Segment] = set(left_over.shm)
        self._shm_looks: Dict[Segment, int] = {}
        self._statuses: Dict[int, int] = {}  # of the orphans that we reaped
        self._written: Optional[RunProcesses] = None
        self._ended = False
        self._childless = False
        self._stop_announced = False
        self._wakeup = _signal_pipe()
        self._scan_at = 0.0
        self._began = time.monotonic()

    def until_exit(self) -> None:
        """Watch until the server has ended and ``exit.json`` says how."""
        _log(f"server {self._server} of release {self._spec.release} runs")
        self._reap()
        while not self._ended:
            self._scan_when_due()
            self._wait(max(0.0, self._scan_at - time.monotonic()))
            self._reap()
            if not self._ended:
                self._note_lost_ranks()

    def sweep(self) -> None:
        """End every process that the server left behind: TERM, grace, KILL; reap until no child is left."""
        for pidfd in self._ranks:
            os.close(pidfd)
        self._ranks.clear()
        self._scan()
        for number, patience in ((signal.SIGTERM, SWEEP_GRACE_S), (signal.SIGKILL, SWEEP_KILL_S)):
            deadline = time.monotonic() + patience
            told: Set[Identity] = set()
            while time.monotonic() < deadline:
                self._reap()
                if self._childless:
                    self._scan()
                    _log("swept: no process is left")
                    return
                for stat in self._tree.scan().values():
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
        for pidfd in self._ranks:
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
            identity = proc.identify(self._server)
            if identity is not None:
                _tell(identity, signal.SIGTERM)

    def _reap(self) -> None:
        """Collect every child that has ended: the server, and the orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._server:
                self._server_ended(status)
            else:
                self._statuses[pid] = status

    def _server_ended(self, status: int) -> None:
        self._ended = True
        code, number = _decode(status)
        record = ExitRecord(
            pid=self._server,
            release=self._spec.release,
            code=code,
            signal=number,
            at=round(time.time(), 3),
            boot=proc.boot_id(),
            last_lost_rank=self._lost[-1] if self._lost else None,
        )
        _log(f"server {self._server} ended: " + (f"status {code}" if number is None else f"signal {number}"))
        try:
            files.write_json(self._spec.service.exit_file, record.to_json())
        except (AgentError, OSError) as error:
            _log(f"could not write {self._spec.service.exit_file}: {error}")

    def _note_lost_ranks(self) -> None:
        ended = [pidfd for pidfd in self._ranks if proc.wait_exit(pidfd, 0)]
        for pidfd in ended:
            identity, title = self._ranks.pop(pidfd)
            os.close(pidfd)
            if self._stop_announced:
                continue
            code, number = _decode(self._statuses[identity.pid]) if identity.pid in self._statuses else (None, None)
            rank = LostRank(identity.pid, title, round(time.time(), 3), code, number)
            self._lost.append(rank)
            _log(f"lost rank {rank.title} ({rank.pid})")
        if ended:
            self._scan()
        self._statuses.clear()

    def _scan_when_due(self) -> None:
        now = time.monotonic()
        if now < self._scan_at:
            return
        self._scan_at = now + (_SCAN_STARTUP_S if now - self._began < _STARTUP_S else _SCAN_S)
        self._scan()

    def _scan(self) -> None:
        """Look at the tree, hold the ranks by pidfd, and write down what changed."""
        try:
            members = self._tree.scan()
            titles = {proc.identity_of(stat): self._title(stat.pid) for stat in members.values()}
            self._titles = titles
            for identity, title in titles.items():
                if identity not in self._watched and any(pattern.search(title) for pattern in self._patterns):
                    self._hold(identity, title)
            self._find_shm(members)
            self._write()
        except (AgentError, OSError) as error:
            _log(f"could not look at the processes: {error}")

    def _title(self, pid: int) -> str:
        return self._redact(proc.title(pid))[:_TITLE_LENGTH]

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
        ours = shm.held(members) | {segment for segment in open_questions if shm.pid_in_name(segment) in self._tree.ever}
        self._shm |= open_questions & ours
        for segment in open_questions - ours:
            self._shm_looks[segment] += 1

    def _write(self) -> None:
        old = [(identity, title) for identity, title in self._left_over.processes if proc.alive(identity)]
        run = RunProcesses(
            processes=tuple(sorted([*old, *self._titles.items()], key=lambda item: item[0].pid)),
            lost=tuple(self._lost),
            shm=frozenset(self._shm),
            shm_before=self._left_over.shm_before,
        )
        if run != self._written:
            files.write_json(self._spec.service.processes_file, run.to_json())
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


def _decode(status: int) -> Tuple[Optional[int], Optional[int]]:
    """A wait status as (exit code, None) or (None, signal)."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _log(text: str) -> None:
    try:
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} [{os.getpid()}] {text}\n".encode("utf-8", "surrogateescape"))
    except OSError:  # a full disk is no reason to leave the server alone
        pass
