"""Bring the service to where it should be after a crash, a cut rollout or a reboot.

A rollout whose runner died is undone, a `down` is finished, a server that died
is replaced by the known-good release. When all is well, nothing happens.

\b
Examples:
  gpuops recover
  gpuops recover --host gpu-box --reason "after the reboot"
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

    return play_simple(talk, where, "recover", reason=reason, lock_wait=lock_wait)
