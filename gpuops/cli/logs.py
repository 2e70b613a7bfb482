"""Show or follow a release's server log.

The log is that of the current release, or of the newest. Following survives
a lost link, and ends when the server ends; Ctrl-C leaves. Secrets that the
host keeps are redacted.

\b
Examples:
  gpuops logs -n 50
  gpuops logs -f
  gpuops logs --release 7 -n 0 | grep -i error
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb


@verb
def main(
    talk: Talk,
    where: Where,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="The last N lines; 0 for all of it.")] = 100,
    release: Annotated[
        int | None, typer.Option(metavar="N", help="The release; the current one if absent.", show_default=False)
    ] = None,
) -> None:
    from gpuops.rollout.follow import follow_log

    def show(text: str, offset: int) -> None:
        if talk.json:
            talk.give({"text": text, "offset": offset})
        else:
            talk.raw(text)

    target = places.target(where, talk)
    try:
        ...
    except KeyboardInterrupt:
        return
