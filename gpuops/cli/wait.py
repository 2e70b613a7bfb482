"""Wait until the service is ready, its rollout is promoted, or its server is dead.

ready: the current release generates. promoted: the running operation, or
the next one, has ended well; any other end gives that end's exit code.
dead: the server's process has ended; how is printed, with its last words.
Changes nothing, and survives a lost link.

Exit code: 0 it came true, 1 it did not in time, 10 and above as for `up`.

\b
Examples:
  gpuops wait && run-benchmark
  gpuops wait --for promoted --timeout 1800
  gpuops wait --for dead
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb


@verb
def main(
    talk: Talk,
    where: Where,
    what: Annotated[Literal["ready", "promoted", "dead"], typer.Option("--for", help="What to wait for.")] = "ready",
    timeout: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Give up after this time.", show_default="never")
    ] = None,
    op: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="With --for promoted: the operation; the running or the next one if absent.", show_default=False
        ),
    ] = None,
) -> int:
    from gpuops.cli.waiter import Waiter, concluded

    target = places.target(where, talk)
    with places.session(target, where, talk) as session:
        service = session.service()
        told = Waiter(session, places.connector(target, where, talk), talk.note).wait(service, what, timeout, op)
    return concluded(talk, what, told, service)
