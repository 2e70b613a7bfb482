"""What a supervisor takes over from what the last one wrote down (``processes.json``), so that nothing of a run is forgotten."""

from __future__ import annotations

import dataclasses

from . import proc, shm
from .records import RunProcesses


def for_new_server(old: RunProcesses) -> RunProcesses:
    """What a new run takes over from the last one, so that its stop still deals with it: processes that nothing could end, and
    shared memory that nothing could remove."""
    here = shm.segments()
    return RunProcesses(
        processes=tuple((identity, title) for identity, title in old.processes if proc.alive(identity)),
        shm=old.shm & here,
        shm_before=here - old.shm,
    )


def of_same_server(run: RunProcesses) -> RunProcesses:
    """What is left of what the last supervisor knew, of the same server: it is this run's own, its lost ranks too."""
    alive = tuple((identity, title) for identity, title in run.processes if proc.alive(identity))
    return dataclasses.replace(run, processes=alive, shm=run.shm & shm.segments())


def of_foreign_server(old: RunProcesses, server: int) -> RunProcesses:
    """The same as for a new server. Shared memory that lay there before the adoption is foreign, but for what is named after a
    process of the adopted ``server`` (a pid)."""
    run = for_new_server(old)
    kin = {server, *(stat.pid for stat in proc.descendants(server))}
    before = run.shm_before or frozenset()
    return dataclasses.replace(run, shm_before=frozenset(each for each in before if shm.pid_in_name(each) not in kin))
