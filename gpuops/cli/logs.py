"""Show or follow a release's server log.

The log is that of the current release, or of the newest. Following survives
a lost link and ends when the server ends; Ctrl-C leaves. Secrets that the
host keeps are redacted.

\b
Examples:
  gpuops logs -n 50
  gpuops logs -f
  gpuops logs --release 7 -n 0 | grep -i error
"""

from __future__ import annotations

from collections.abc import Callable
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
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="The last N lines; 0 for all of it.")] = 100,
    release: Annotated[
        int | None, typer.Option(metavar="N", help="The release; the current one if absent.", show_default=False)
    ] = None,
) -> None:
    target = places.target(where, talk)
    show = _printer(talk)
    with places.session(target, where, talk) as session:
        try:
            service = session.service()
            if not follow:
                session.agent.call(
                    "logs",
                    on_event=lambda event: show(event["text"], event["offset"]),
                    service=service,
                    release=release,
                    lines=lines or None,
                )
                return
            from gpuops.cli.tail import Tail

            # Pinned: after a lost link another release may be current, and the offset is this one's.
            number = release if release is not None else session.status()["services"][0]["release"]
            Tail(session, places.connector(target, where, talk), show, talk.note).follow(service, number, lines or None)
            talk.note("the log ends here: the server that wrote it does not run")
        except KeyboardInterrupt:
            return


def _printer(talk: Talk) -> Callable[[str, int], None]:
    if talk.json:
        return lambda text, offset: talk.give({"text": text, "offset": offset})
    return lambda text, offset: talk.raw(text)
