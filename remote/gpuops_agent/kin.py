"""Whose processes a supervisor watches: those of a server that it started, or of one that it adopted.

The two differ in what the kernel tells. A child's end comes with its status, and its orphans come to the subreaper. Of an adopted
server a pidfd tells that it ended and nothing more, and its processes have to be recognised (``membership.py``).
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Protocol, Set

from . import proc
from .exits import Ending, decode
from .membership import Members
from .paths import Service
from .proc import Identity, Stat
from .tree import Tree


class Kin(Protocol):
    """The processes of one run, seen from its supervisor."""

    adopted: bool
    server: Identity

    @property
    def ever(self) -> Set[int]:
        """The pids of all processes that were ever seen in the run."""

    @property
    def descriptors(self) -> List[int]:
        """What becomes readable when the server ends, besides the arrival of SIGCHLD."""

    @property
    def ending(self) -> Optional[Ending]:
        """How the server ended; None while it lives."""

    @property
    def gone(self) -> bool:
        """Whether nothing of the run is left, as far as :meth:`reap` has seen."""

    def scan(self) -> Dict[int, Stat]:
        """The members that live now, by pid."""

    def reap(self) -> None:
        """Take note of what has ended since the last look."""

    def ending_of(self, pid: int) -> Ending:
        """How a process ended that :meth:`reap` has collected since :meth:`forget`."""

    def forget(self) -> None:
        """Drop the endings that nobody asked for."""


class Children:
    """A server that is a child of this process, a subreaper."""

    adopted = False

    def __init__(self, server: Identity) -> None:
        self.server = server
        self.ending: Optional[Ending] = None
        self.gone = False
        self.descriptors: List[int] = []
        self._tree = Tree(os.getpid())
        self._endings: Dict[int, Ending] = {}

    @property
    def ever(self) -> Set[int]:
        return self._tree.ever

    def scan(self) -> Dict[int, Stat]:
        return self._tree.scan()

    def reap(self) -> None:
        """Collect every child that has ended: the server, and the orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.gone = True
                return
            if pid == 0:
                return
            if pid == self.server.pid:
                self.ending = decode(status)
            else:
                self._endings[pid] = decode(status)

    def ending_of(self, pid: int) -> Ending:
        return self._endings.get(pid, (None, None))

    def forget(self) -> None:
        self._endings.clear()


class Adopted:
    """A server that somebody else started, or whose first supervisor died."""

    adopted = True

    def __init__(self, service: Service, server: Identity) -> None:
        self.server = server
        self.ending: Optional[Ending] = None
        self.ever: Set[int] = set()
        self._members = Members(service)
        self._pidfd = proc.open_pidfd(server)

    @property
    def descriptors(self) -> List[int]:
        return [] if self._pidfd is None else [self._pidfd]

    @property
    def gone(self) -> bool:
        return self.ending is not None and not self._members.living()

    def scan(self) -> Dict[int, Stat]:
        living = {identity.pid: proc.read_stat(identity.pid) for identity in self._members.living()}
        self.ever |= living.keys()
        return {pid: stat for pid, stat in living.items() if stat is not None and stat.living}

    def reap(self) -> None:
        if self.ending is None and (self._pidfd is None or proc.wait_exit(self._pidfd, 0)):
            self.ending = (None, None)
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None

    def ending_of(self, pid: int) -> Ending:
        return None, None

    def forget(self) -> None:
        pass
