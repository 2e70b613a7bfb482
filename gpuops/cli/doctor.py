"""Look for what can end a server, spoil a start or lie to us, on the host.

Would a logout end the server? Is anything left over from a run that is over?
Are the disk, /dev/shm and the ports fit to serve? Are the cards healthy, and
would a restart heal them? Can the ranks talk to each other? It looks at much,
and changes nothing.

Exit code: 0 no check fails, 13 some check fails.

\b
Examples:
  gpuops doctor
  gpuops doctor --host gpu-box --port 30000 --json
  gpuops doctor --collective
"""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit


@verb
def main(
    talk: Talk,
    where: Where,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="N", help="Also look whether this port is free.", show_default=False)
    ] = None,
    collective: Annotated[
        bool,
        typer.Option(
            "--collective",
            help="Let the service's ranks add up numbers on its cards, by its own PyTorch, also while it serves: up to 3 minutes.",
        ),
    ] = False,
) -> int:
    from gpuops.report import doctor as report

    with places.session(places.target(where, talk), where, talk) as session:
        told = session.agent.call("doctor", service=session.target.service or None, port=port, collective=collective)
    if talk.json:
        talk.give(told)
    else:
        talk.say(report.lines(told, session.target.address.name, talk.out_paint, quiet=talk.quiet))
    return Exit.REFUSED if told["failed"] else Exit.OK
