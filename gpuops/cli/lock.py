"""Let nobody change the service until you unlock it.

Every order that would change the server is refused (exit code 13), and says
who locked it and why. A rollout that runs already goes on to its end.

\b
Examples:
  gpuops lock --reason "measuring until 18:00"
  gpuops lock -p prod.yaml --reason "ask ann before you touch this"
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
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; whoever is refused will read it.", show_default=False)],
) -> int:
    from gpuops.rollout import who

    with places.session(places.target(where, talk), where, talk) as session:
        told = session.agent.call("lock", service=session.service(), by=who.me(), reason=reason)
    if talk.json:
        talk.give(told)
        return 0
    talk.say([f"{told['service']} is locked by {told['locked']['by']}: {told['locked']['reason']}"])
    if told["running"]:
        talk.note(f"note: operation {told['running']} runs, and goes on to its end")
    return 0
