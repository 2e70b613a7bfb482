"""Say what `up` would do, and change nothing.

\b
Examples:
  gpuops plan playbooks/local.yaml
  gpuops plan -p prod.yaml --set server.flags.tp=4
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
    named: Annotated[str | None, typer.Argument(metavar="PLAYBOOK", help="The playbook, as with -p.", show_default=False)] = None,
) -> None:
    from gpuops.report import plan as report
    from gpuops.rollout.desired import build_tree, order
    from gpuops.rollout.plan import plan

    where = places.find(places.with_argument(where, named), talk)
    loaded = places.load(where, talk)
    wanted = order(loaded, tree=build_tree(loaded))
    with places.session(places.target_of(loaded, where), where, talk) as session:
        status = session.status()["services"][0]
        history = session.agent.call("history", service=wanted["service"])
    found = plan(wanted, status, history)
    if talk.json:
        talk.give(found.to_json())
    else:
        talk.say(report.lines(found, session.target.address.name, talk.out_paint))
