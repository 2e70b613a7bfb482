"""The living descendants of one process, looked up again and again at little cost."""

from __future__ import annotations

from typing import Dict, List, Optional, Set

from . import proc
from .proc import Stat

_FULL_SCAN_EVERY = 64


class Tree:
    """All living descendants of a subreaper.

    A big host has thousands of processes that never become ours, so those are read once and remembered. That is sound because a
    process can only enter the tree by being born in it: orphans of the tree come to the subreaper, others never do. The memory is
    dropped now and then, should a number have passed from a foreign process to one of ours between two scans.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._members: Dict[int, Stat] = {}
        self._foreign: Set[int] = set()
        self._ever: Set[int] = set()
        self._scans = 0

    @property
    def ever(self) -> Set[int]:
        """The pids of all processes that were ever seen in the tree."""
        return self._ever

    def scan(self) -> Dict[int, Stat]:
        """The members that live now, by pid. Zombies are not among them."""
        numbers = set(proc.pids())
        self._foreign = self._foreign & numbers if self._scans % _FULL_SCAN_EVERY else set()
        self._scans += 1
        before = self._members
        fresh = {stat.pid: stat for stat in map(proc.read_stat, numbers - self._foreign - {self._root}) if stat is not None}
        self._members = {pid: stat for pid, stat in fresh.items() if pid in before and before[pid].start == stat.start}
        for pid in fresh:
            self._place(pid, fresh, before)
        self._members = {pid: stat for pid, stat in self._members.items() if stat.living}
        self._ever.update(self._members)
        return self._members

    def _place(self, pid: int, fresh: Dict[int, Stat], before: Dict[int, Stat]) -> None:
        """Follow the parents of ``pid`` up to something known, and file the whole chain under it."""
        chain: List[int] = []
        ours: Optional[bool] = None
        while ours is None:
            if pid == self._root or pid in self._members:
                ours = True
            elif pid == 0 or pid in self._foreign:
                ours = False
            elif pid in fresh and pid not in chain:
                chain.append(pid)
                pid = fresh[pid].ppid
            elif pid in before:  # a member that ended while we were reading: its children are ours
                ours = True
            else:  # an unknown parent has just gone: the next scan will tell
                return
        if ours:
            self._members.update((each, fresh[each]) for each in chain)
        else:
            self._foreign.update(chain)
