"""Remove the lock that a person has put on the service.

A lock of somebody else needs --force.

\b
Examples:
  gpuops unlock
  gpuops unlock --force --reason "ann has left"
"""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb


@verb
def main(
    talk: Talk,
    where: Where,
    force: Annotated[bool, typer.Option("--force", help="Even a lock of somebody else.")] = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it stands in the journal.", show_default=False)] = None,
) -> int:
    from gpuops.rollout import who

    with places.session(places.target(where, talk), where, talk) as session:
        told = session.agent.call("unlock", service=session.service(), by=who.me(), reason=reason, force=force)
    if talk.json:
        talk.give(told)
        return 0
    held = told["unlocked"]
    talk.say([f"{told['service']} was not locked" if held is None else f"{told['service']} is unlocked; it was {held['by']}'s"])
    return 0
