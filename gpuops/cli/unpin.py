"""Let a pinned release be pruned again.

\b
Examples:
  gpuops unpin 7
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
) -> None:
    from gpuops.rollout import who

    with places.session(places.target(where, talk), where, talk) as session:
        service = session.service()
        told = session.agent.call("unpin", service=service, release=release, by=who.me())
    if talk.json:
        talk.give(told)
    elif told["was"] is None:
        talk.say([f"release {release} of {service} was not pinned"])
    else:
        reason = f" ({told['was']['reason']})" if told["was"]["reason"] else ""
        talk.say([f"release {release} of {service} is no longer pinned; it was by {told['was']['by'] or 'somebody'}{reason}"])
