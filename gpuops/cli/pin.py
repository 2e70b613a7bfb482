"""Keep a release, and all that it uses, from being pruned.

A pinned release can be restored for as long as it is pinned, however many
come after it. Pinning it again replaces the reason.

\b
Examples:
  gpuops pin 7 --reason "the figures of the report"
  gpuops history
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
    release: Annotated[int, typer.Argument(metavar="RELEASE", min=1, help="Its number.", show_default=False)],
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it stands in the history.", show_default=False)] = None,
) -> None:
    from gpuops.rollout import who

    with places.session(places.target(where, talk), where, talk) as session:
        service = session.service()
        told = session.agent.call("pin", service=service, release=release, by=who.me(), reason=reason)
    if talk.json:
        talk.give(told)
    else:
        talk.say([f"release {release} of {service} is pinned; gpuops unpin {release} ends that"])
