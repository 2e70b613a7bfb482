"""Measure the running server at some cells, and hold the figures against the known-good release's.

The load comes from the engine's own client, in the server's runtime, over
the host's loopback. A run that cannot be believed, or that something on the
host has spoiled, has no figures but the reasons. What was measured is kept
with the release on the host.

Cells are those of the playbook named with -p, else of the release's
playbook. Exit code: 0 all cells valid, 1 not.

\b
Examples:
  gpuops bench
  gpuops bench -p prod.yaml --cell c1 --cell c64
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.progress import shown
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit


@verb
def main(
    talk: Talk,
    where: Where,
    cell: Annotated[list[str] | None, typer.Option("--cell", metavar="NAME", help="Only this cell. May be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Of the prompts.", show_default="a fresh one")] = None,
) -> int:
    from gpuops.engines.measuring import load_words
    from gpuops.playbook.measuring import Bench
    from gpuops.report import bench as report
    from gpuops.rollout import who

    target = places.target(where, talk)
    wanted = places.load(where, talk).model.bench if where.playbook is not None else None
    with places.session(target, where, talk) as session, shown(talk) as listener:
        result = session.agent.call(
            "bench",
            on_event=listener,
            service=session.service(),
            by=who.me(),
            load=load_words(),
            cells=_cells(wanted),
            default_cells=_cells(Bench()),
            only=list(cell or ()),
            deadline_s=(wanted or Bench()).deadline_s,
            seed=seed,
        )
    if talk.json:
        talk.give(result)
    else:
        talk.say(report.lines(result, talk.out_paint))
    return Exit.OK if result["valid"] else Exit.FAILURE


def _cells(bench: Any) -> list[dict[str, Any]] | None:
    return None if bench is None else [cell.model_dump(mode="json", exclude_none=True) for cell in bench.cells]
