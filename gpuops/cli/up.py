"""Make a host run what a playbook says, prove it right, or put the known-good release back.

Runtime, model and build are made ready while the old server still serves.
Then the old one is stopped, the new one started, and its probes are put.
Wrong answers, a crash or a deadline bring the known-good release back. The
host does all of it by itself. Ctrl-C
asks the host to undo. A host that hears nothing of the laptop for a while
(deadlines.lease_s) undoes too, unless --detach or the playbook's
on_controller_lost says that it shall finish alone.

Exit code: 0 promoted or nothing to do, 10 restored, 11 restore failed too,
12 outcome unknown, 14 nothing to restore.

\b
Examples:
  gpuops up playbooks/local.yaml
  gpuops up -p prod.yaml --set server.flags.tp=4 --reason "try tp 4"
  gpuops up -p box.yaml --bundle box.tar
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuops.cli import last, places
from gpuops.cli.places import Where
from gpuops.cli.talk import OutputLost, Talk
from gpuops.cli.verb import LockWait, ReasonOption, verb

if TYPE_CHECKING:
    from gpuops.builds.carry import Bundle
    from gpuops.builds.manifest import Tree
    from gpuops.playbook.loader import LoadedPlaybook
    from gpuops.playbook.targets import Target
    from gpuops.rollout.session import Session


@verb
def main(
    talk: Talk,
    where: Where,
    named: Annotated[str | None, typer.Argument(metavar="PLAYBOOK", help="The playbook, as with -p.", show_default=False)] = None,
    reason: ReasonOption = None,
    lock_wait: LockWait = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FILE",
            help="Take packages from this bundle (gpuops builds bundle): the host needs no network.",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Leave once the host has taken the order; it finishes alone.")] = False,
) -> int:
    from gpuops.cli.operation import Operation
    from gpuops.report.outcome import how_to_ask
    from gpuops.rollout.desired import build_tree, order

    where = places.find(places.with_argument(where, named), talk)
    loaded = places.load(where, talk)
    tree = build_tree(loaded)
    wanted = order(loaded, tree=tree, reason=reason)
    bundled = _opened(bundle, wanted) if bundle is not None else None
    with places.session(places.target_of(loaded, where), where, talk) as session:
        last.remember(Path.cwd(), loaded.path, where.host, where.overrides, where.service)
        if bundled is not None:
            _carry(talk, session, bundled, wanted)
            wanted["prepare"]["bundle"] = bundled.id
        bring(talk, session, loaded, tree)
        if detach:
            return hand_over(talk, session, wanted)
        operation = Operation(talk, where, session)
        outcome = operation.play(wanted, lock_wait)
        code = operation.conclude(outcome, wanted["service"])
        if code == 0 and outcome["outcome"] == "promoted" and not talk.json and not talk.quiet:
            with suppress(OutputLost):
                talk.say(how_to_ask(outcome["port"], wanted["candidate"], _tunnel(session.target, outcome["port"])))
    return code


def hand_over(talk: Talk, session: Session, wanted: dict[str, Any]) -> int:
    """Give the order to the host and leave: nobody renews a lease, so the host finishes alone, whatever comes."""
    from gpuops.rollout.watch import hand_over

    op = hand_over(session, {**wanted, "on_controller_lost": "finish"})
    if talk.json:
        talk.give({"op": op, "detached": True})
    else:
        talk.say(
            [f"operation {op} runs on {session.target.address.name}; gpuops attach follows it, gpuops status says how it ended"]
        )
    return 0


def _opened(path: Path, wanted: dict[str, Any]) -> Bundle:
    """The bundle, whole and made for this order. Raises GpuopsError before anything is sent."""
    from gpuops.builds.carry import open_bundle

    bundled = open_bundle(path)
    bundled.must_fit(wanted["prepare"])
    return bundled


def _carry(talk: Talk, session: Session, bundled: Bundle, wanted: dict[str, Any]) -> None:
    from gpuops.builds.carry import send
    from gpuops.cli.progress import tenths
    from gpuops.report import caches

    if not send(session.agent, bundled, tenths(talk, f"bundle {bundled.id}")):
        talk.note(f"bundle {bundled.id} is on the host already")
    where = {"bundle": bundled.id, "service": wanted["service"], "runtime": wanted["prepare"]["runtime"]}
    for name in bundled.caches:
        for line in caches.carried(session.agent.call("cache.load", id=name, strict=False, **where)):
            talk.note(line)


def bring(talk: Talk, session: Session, loaded: LoadedPlaybook, tree: Tree | None) -> None:
    """What the order refers to and does not carry: the build's folder, and the secrets."""
    from gpuops.builds.push import push
    from gpuops.report.words import plural, size

    if tree is not None:
        talk.detail(f"build {tree.id}: {plural(len(tree.entries), 'file')}")
        sent = push(session.agent, tree)
        told = (
            "is on the host already"
            if sent is None
            else f"sent: {plural(sent.files, 'file')}, {size(sent.bytes_sent)} by {sent.tool}"
        )
        talk.note(f"build {tree.id} {told}")
    if loaded.secret_values:
        session.agent.call("secret", values=dict(loaded.secret_values))
        talk.note(f"secrets stored on the host: {', '.join(sorted(loaded.secret_values))}")


def _tunnel(target: Target, port: int) -> str | None:
    """The ssh command that brings the server's port to this machine; None when it is on this machine."""
    if target.address.name == "local":
        return None
    from gpuops.transport.resolve import resolve

    ssh = resolve(target.address)
    return ssh.command("-N", "-L", f"{port}:127.0.0.1:{port}", ssh.alias)
