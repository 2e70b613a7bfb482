"""List the releases and operations of the service, newest first.

\b
Examples:
  gpuops history
  gpuops history --limit 5 --json
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
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most N of each.")] = 20,
) -> None:
    import time

    from gpuops.report import history as report

    with places.session(places.target(where, talk), where, talk) as session:
        history = session.agent.call("history", service=session.service(), limit=limit)
    if talk.json:
        talk.give(history)
    else:
        talk.say(report.lines(history, time.time(), talk.out_paint))
