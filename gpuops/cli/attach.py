"""Follow the operation that is running, or read the last one again.

Ends as the operation ends, with its exit code. Ctrl-C only leaves: the host
goes on. --undo asks the host to undo the operation, and follows that.

\b
Examples:
  gpuops attach
  gpuops attach --op 20250131-101500-5f3a9c1e
  gpuops attach --undo
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
    op: Annotated[
        str | None, typer.Option(metavar="ID", help="The operation; the running or the last one if absent.", show_default=False)
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Ask the host to undo the running operation.")] = False,
) -> int:
    from gpuops.cli.operation import Operation

    with places.session(places.target(where, talk), where, talk) as session:
        service = session.service()
        operation = Operation(talk, where, session)
        try:
            if undo:
                op = operation.ask_to_undo(service, op)
            return operation.conclude(operation.follow(service, op), service)
        except KeyboardInterrupt:
            talk.note("left; the host goes on. gpuops attach follows again")
            return 0
