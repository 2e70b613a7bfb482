"""Stop a run and prove that it is gone.

TERM to the server, drain deadline, KILL; the supervisor sweeps what it inherited; then everything that is still known to belong to
the run gets TERM and KILL too, which is all there is when the supervisor had died before. Every signal goes to a verified identity
(``membership.py``). The proof is what is left: no process, the port free, the shared memory gone. Foreign processes are named, never touched.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import cards, files, gpus, net, proc, releases, shm, xid
from .ask import Silent
from .cards import Released
from .gpus import GpuProcess
from .membership import Members
from .paths import Service
from .proc import Identity
from .records import ServerRecord, read_run, read_server, server_alive, supervisor_alive, supervisor_identity
from .shm import Segment
from .watch import SWEEP_GRACE_S
from .wire import AgentError

_LOOK_S = 0.2
"""How often the members are looked up while the server drains: what it forks meanwhile shall be known."""
_POLL_S = 0.05
_IDENTITY_S = 2.0
_CARDS_S = 10.0
"""Seconds that the driver has to take back the memory of processes that have ended."""


@dataclass(frozen=True)
class Sent:
    """A signal that was sent."""

    signal: str
    pid: int
    command: str


@dataclass(frozen=True)
class Survivor:
    """A process of the run that lives on; ``state`` is that of ``/proc/PID/stat``."""

    pid: int
    start: int
    command: str
    state: str


@dataclass(frozen=True)
class Holder:
    """Who listens on the run's port; ``pid`` is None for another user's process."""

    pid: Optional[int]
    command: str


@dataclass(frozen=True)
class Proof:
    """What a stop achieved.

    Args:
        clean: no process of the run is left, its port is free, and its shared memory and the cards' are gone.
        pid: the server that was stopped; None when none ran.
        signals: the signals sent, in order (those of the supervisor's own sweep are in supervisor.log).
        seconds: how long it took.
        survivors: processes of the run that live on, a supervisor that does not end among them.
        stuck: those of the survivors that hang in the kernel (state D): no signal ends them; often a GPU driver call.
        port_held: who listens on the port of the last run, ours or foreign.
        gpu_held: memory that the cards' driver still books on processes of the run.
        cards: each card of the service, and what is left on it; none where no driver tells.
        xids: the kernel's Xid lines since the server's start, asked for when something is stuck: they say why, and whether only a reboot helps.
        shm_left: names of the run's segments in ``/dev/shm`` that could not be removed, or that a foreign process has mapped.
    """

    clean: bool
    pid: Optional[int]
    signals: Tuple[Sent, ...]
    seconds: float
    survivors: Tuple[Survivor, ...]
    stuck: Tuple[Survivor, ...]
    port_held: Tuple[Holder, ...]
    shm_left: Tuple[str, ...]
    gpu_held: Tuple[GpuProcess, ...] = ()
    cards: Tuple[Released, ...] = ()
    xids: Tuple[str, ...] = ()

    def to_json(self) -> Dict[str, Any]:
        return {**dataclasses.asdict(self), "cards": [card.to_json() for card in self.cards]}


def stop(service: Service, *, drain_s: float, kill_s: float = 10.0, note: Callable[[str], None] = lambda _text: None) -> Proof:
    """End the service's run, however much of it is left, and prove it. Nothing running is a clean stop with ``pid`` None.

    Args:
        drain_s: seconds that the server has between TERM and KILL.
        kill_s: seconds after a KILL until what still lives is reported instead.
        note: gets a line for every step, for whoever follows.
    """
    return _Stop(service, note).run(drain_s, kill_s)


class _Stop:
    def __init__(self, service: Service, note: Callable[[str], None]) -> None:
        self._service = service
        self._note = note
        self._members = Members(service)
        self._sent: List[Sent] = []
        self._segments: Set[Segment] = set()

    def run(self, drain_s: float, kill_s: float) -> Proof:
        began = time.monotonic()
        server = server_alive(self._service)
        living = self._members.living()
        self._collect_segments(living)
        if server is not None:
            self._end_server(server.identity, living.get(server.identity, "server"), drain_s, kill_s)
            self._end_supervisor(SWEEP_GRACE_S + kill_s, kill_s)
        else:
            self._tell_supervisor(signal.SIGTERM)
            self._end_supervisor(drain_s + SWEEP_GRACE_S + kill_s, kill_s)
        self._sweep(kill_s)
        return self._prove(server, began)

    def _end_server(self, server: Identity, command: str, drain_s: float, kill_s: float) -> None:
        # Ranks end before their server when it drains: from here on that is no loss.
        self._tell_supervisor(signal.SIGUSR1)
        for number, patience in ((signal.SIGTERM, drain_s), (signal.SIGKILL, kill_s)):
            self._note(f"{number.name} to the server (pid {server.pid}); it has {patience:g} s to end")
            self._send(server, number, command)
            if self._ended(server, patience):
                return

    def _tell_supervisor(self, number: signal.Signals) -> None:
        supervisor = self._supervisor()
        if supervisor is not None:
            self._send(supervisor, number, "supervisor")

    def _end_supervisor(self, patience: float, kill_s: float) -> None:
        """Let the supervisor sweep and go. One that hangs is ended, and its sweep is ours."""
        supervisor = self._supervisor()
        if supervisor is None or self._ended(supervisor, patience):
            return
        self._note(f"the supervisor (pid {supervisor.pid}) did not finish in {patience:g} s: KILL")
        self._members.living()
        self._send(supervisor, signal.SIGKILL, "supervisor")
        self._ended(supervisor, kill_s)

    def _supervisor(self) -> Optional[Identity]:
        """Who holds the lock. A supervisor that has just taken it writes its identity within an instant."""
        deadline = time.monotonic() + _IDENTITY_S
        while supervisor_alive(self._service) and time.monotonic() < deadline:
            identity = supervisor_identity(self._service)
            if identity is not None:
                return identity
            time.sleep(_POLL_S)
        return None

    def _ended(self, identity: Identity, patience: float) -> bool:
        """Wait for the end of a process, and learn meanwhile whom the run forks."""
        deadline = time.monotonic() + patience
        while not proc.wait_gone(identity, min(_LOOK_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
            self._members.living()
        return True

    def _sweep(self, kill_s: float) -> None:
        """TERM, grace, KILL to whatever of the run still lives, and to what it forks meanwhile."""
        for number, patience in ((signal.SIGTERM, SWEEP_GRACE_S), (signal.SIGKILL, kill_s)):
            deadline = time.monotonic() + patience
            told: Set[Identity] = set()
            living = self._members.living()
            while living and time.monotonic() < deadline:
                for identity in living.keys() - told:
                    told.add(identity)
                    self._note(f"{number.name} to what is left of the run: {living[identity]} (pid {identity.pid})")
                    self._send(identity, number, living[identity])
                proc.wait_gone(next(iter(living)), _POLL_S)
                living = self._members.living()

    def _send(self, identity: Identity, number: signal.Signals, command: str) -> None:
        try:
            if proc.send(identity, number):
                self._sent.append(Sent(number.name, identity.pid, command))
        except AgentError as error:
            self._note(f"{error.what}: {error.evidence}")

    def _collect_segments(self, living: Dict[Identity, str]) -> None:
        run = read_run(self._service)
        self._segments |= run.shm
        if run.shm_before is not None:
            self._segments |= shm.held(identity.pid for identity in living) - run.shm_before

    def _prove(self, server: Optional[ServerRecord], began: float) -> Proof:
        self._segments |= read_run(self._service).shm
        living = self._members.living()
        survivors = tuple(_survivor(identity, command) for identity, command in living.items())
        supervisor = self._supervisor()
        if supervisor is not None:
            survivors += (_survivor(supervisor, "supervisor"),)
        port_held = self._port_held(living, stopped=server is not None)
        shm_left = self._remove_segments(living)
        gpu_held, on_cards = self._cards_released()
        stuck = tuple(survivor for survivor in survivors if survivor.state == "D")
        clean = not (survivors or port_held or shm_left or gpu_held)
        if clean:
            # It names nothing any more: from now on the port is anybody's.
            self._service.server_file.unlink(missing_ok=True)
        return Proof(
            clean=clean,
            pid=server.pid if server is not None else None,
            signals=tuple(self._sent),
            seconds=round(time.monotonic() - began, 3),
            survivors=survivors,
            stuck=stuck,
            port_held=port_held,
            shm_left=shm_left,
            gpu_held=gpu_held,
            cards=on_cards,
            xids=tuple(xid.recent(server.started_boot)) if stuck and server is not None else (),
        )

    def _cards_released(self) -> Tuple[Tuple[GpuProcess, ...], Tuple[Released, ...]]:
        """What the driver still books on processes of the run, on any card; and what is left on each card of the service."""
        record = read_server(self._service)
        release = releases.load(self._service, record.release) if record is not None else None
        run = read_run(self._service)
        ended = {identity.pid for identity, _ in run.processes} | {rank.pid for rank in run.lost}
        # A number that somebody else has by now names nobody of the run.
        ours = self._members.pids | {pid for pid in ended if proc.read_stat(pid) is None}
        deadline = time.monotonic() + _CARDS_S
        while True:
            try:
                known = gpus.ask_cards()
                there = gpus.ask_processes(known)
            except (Silent, ValueError, KeyError):
                return (), ()
            held = tuple(each for each in there if each.pid in ours)
            if not held or time.monotonic() >= deadline:
                break
            time.sleep(_LOOK_S)
        own = cards.of_release(release.document, known) if release is not None else frozenset()
        return held, tuple(cards.released(own, known, there, ours))

    def _port_held(self, living: Dict[Identity, str], stopped: bool) -> Tuple[Holder, ...]:
        """Who listens on the run's port. When this stop has ended no server, a stranger had the time to take the port: that is none of the run's."""
        record = read_server(self._service)
        if record is None or record.boot_id != proc.boot_id():
            return ()
        ours = {identity.pid: command for identity, command in living.items()}
        there = net.listeners(record.port, likely=ours)
        return tuple(Holder(each.pid, ours.get(each.pid or 0, each.command)) for each in there if stopped or each.pid in ours)

    def _remove_segments(self, living: Dict[Identity, str]) -> Tuple[str, ...]:
        here = self._segments & shm.segments()
        if not here:
            return ()
        ours = {identity.pid for identity in living}
        foreign = shm.held(stat.pid for stat in proc.processes() if stat.pid not in ours)
        left = {segment for segment in here if segment in foreign or not shm.remove(segment)}
        names = tuple(sorted(segment.name for segment in left))
        if left:
            self._note(f"left in /dev/shm, as another process holds it or it may not be removed: {', '.join(names)}")
            self._remember(left)
        return names

    def _remember(self, segments: Set[Segment]) -> None:
        """Write down what the supervisor had not found: the processes that held it are gone, so the next stop could not find it either."""
        run = read_run(self._service)
        if segments <= run.shm or supervisor_alive(self._service):
            return
        try:
            files.write_json(self._service.processes_file, dataclasses.replace(run, shm=run.shm | segments).to_json())
        except AgentError as error:
            self._note(f"{error.what}: {error.evidence}")


def _survivor(identity: Identity, command: str) -> Survivor:
    stat = proc.read_stat(identity.pid)
    return Survivor(identity.pid, identity.start, command, stat.state if stat else "?")
