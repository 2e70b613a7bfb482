"""Delete from the host what no release that may be started again needs.

These releases stay: the current, the known-good and every pinned one, the
newest good ones, and as many of unknown worth; of a bad release the record
of what it did. Runtimes, builds, models and caches stay while one of the
good releases that stay uses them. Models that gpuops did not make are
never touched. Refused (13) while an operation runs on the host.

Exit code: 0 done, 1 something could not be deleted, 13 refused.

\b
Examples:
  gpuops prune --dry-run
  gpuops prune --keep 3
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
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many good releases of the service stay.")] = 5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go, and why.")] = False,
) -> int:
    from gpuops.report import prune as report
    from gpuops.rollout import who

    target = places.target(where, talk)
    with places.session(target, where, talk) as session:
        told = session.agent.call("prune", service=target.service or None, keep=keep, dry_run=dry_run, by=who.me())
    if talk.json:
        talk.give(told)
    else:
        talk.say(report.lines(told, target.address.name, talk.out_paint, verbose=talk.verbose))
    return Exit.FAILURE if told["failed"] else Exit.OK
