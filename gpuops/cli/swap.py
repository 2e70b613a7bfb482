"""Put another build under the running service: same runtime, model and flags.

Shows the plan and the outage to expect, from this service's own history.
Then everything that needs no card is done while the old server serves: the
build is sent and checked, imported by the runtime's Python, its kernels are
compiled into its cache for the host's cards, the weights are read ahead.
Only then the old server stops. The rollout's gates hold, and the build's
plugin must prove on every rank that its kernels serve. Else the known-good
release comes back.

The playbook may say nothing else than what runs, the build aside; with
--with-playbook-changes that is changed too. A later `up` goes back to the
playbook's own build. On a terminal you are asked first, unless --yes.

Exit code: as `up`; 13 when more than the build would change.

\b
Examples:
  gpuops swap gpuops-kernels
  gpuops swap gpuops-kernels-3f9c -p prod.yaml --yes
  gpuops swap 3f9c --dry-run
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.builds_host import BuildArgument, DirOption
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import LockWait, ReasonOption, verb

if TYPE_CHECKING:
    from gpuops.rollout.plan import Change, Plan


@verb
def main(
    talk: Talk,
    where: Where,
    build: BuildArgument,
    folder: DirOption = None,
    changes: Annotated[
        bool, typer.Option("--with-playbook-changes", help="Also change what else the playbook says differently by now.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    reason: ReasonOption = None,
    lock_wait: LockWait = None,
    detach: Annotated[bool, typer.Option("--detach", help="Leave once the host has taken the order; it finishes alone.")] = False,
) -> int:
    from gpuops.builds import store
    from gpuops.builds.manifest import read_build
    from gpuops.cli import up
    from gpuops.cli.operation import Operation
    from gpuops.rollout import swap
    from gpuops.rollout.plan import plan

    tree = read_build(store.find(store.folder(folder), build))
    loaded = places.load(where, talk)
    wanted = swap.swap_order(loaded, tree, reason)
    with places.session(places.target_of(loaded, where), where, talk) as session:
        status = session.status()["services"][0]
        history = session.agent.call("history", service=wanted["service"])
        release = swap.base_release(status, history)
        found = plan(wanted, status, history)
        more = swap.beyond(wanted, release)
        _show(talk, found, more, session.target.address.name, dry_run=dry_run)
        if not changes:
            swap.must_be_alone(more, release)
        if dry_run:
            return 0
        if not yes and not _agreed(talk, found):
            talk.note("nothing was changed")
            return 1
        up.bring(talk, session, loaded, tree)
        if detach:
            return up.hand_over(talk, session, wanted)
        operation = Operation(talk, where, session)
        return operation.conclude(operation.play(wanted, lock_wait), wanted["service"])


def _show(talk: Talk, found: Plan, more: tuple[Change, ...], host: str, *, dry_run: bool) -> None:
    """The plan: a result of its own with --dry-run, else beside the rollout."""
    from gpuops.report import plan as report

    told: dict[str, Any] = {**found.to_json(), "beyond_the_build": [vars(each) for each in more]}
    if talk.json:
        talk.give(told if dry_run else {"event": "plan", **told})
        return
    lines = report.lines(found, host, talk.out_paint if dry_run else talk.err_paint)
    if dry_run:
        talk.say(lines)
    else:
        for line in lines:
            talk.note(line)


def _agreed(talk: Talk, found: Plan) -> bool:
    """Whether whoever sits there agrees. Where nobody does, nobody is asked: the word `swap` was given."""
    if found.action == "nothing" or talk.json or talk.quiet or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    return typer.confirm("swap?", default=True, err=True)
