"""Stop the current release and start it again; a good one by the short gate.

Restarts the known-good release when no release is current. When the release
does not come up, the known-good one is restored (exit code 10).

\b
Examples:
  gpuops restart
  gpuops restart -p prod.yaml --reason "new driver"
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

    return play_simple(talk, where, "restart", reason=reason, lock_wait=lock_wait)
