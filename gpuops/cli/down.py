"""Stop the service, with proof.

Waits for running requests up to the playbook's deadlines.stop_s. Afterwards
no process of the server lives, its port is free and its shared memory gone;
what cannot be stopped is named. The releases stay.

\b
Examples:
  gpuops down
  gpuops down -p prod.yaml --reason "maintenance"
"""

from __future__ import annotations

from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import LockWait, ReasonOption, verb


@verb
def main(
    talk: Talk,
    where: Where,
    reason: ReasonOption = None,
    lock_wait: LockWait = None,
) -> int:
    from gpuops.cli.operation import play_simple

    return play_simple(talk, where, "down", reason=reason, lock_wait=lock_wait)
