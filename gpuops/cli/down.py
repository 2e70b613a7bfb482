"""Stop the service, with proof.

Waits for running requests up to the playbook's deadlines.stop_s. Afterwards
no process of the server lives, its port is free and its shared memory gone;
what cannot be stopped is named. The releases stay.

\b
Examples:
  gpuops down
  gpuops down -p prod.yaml --reason "maintenance"
"""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb


@verb
def main(
    talk: Talk,
    where: Where,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it stands in the history.", show_default=False)] = None,
) -> int:
    from gpuops.cli.operation import play_simple

    return play_simple(talk, where, "down", reason=reason)
