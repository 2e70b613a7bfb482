"""Go back to the known-good release, or to another one by number.

Takes the short way: the running server is stopped, the release is started
and must answer one probe. A release that was found bad needs --force.

\b
Examples:
  gpuops restore
  gpuops restore 7 --reason "8 is slower"
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import LockWait, ReasonOption, verb


@verb
def main(
    talk: Talk,
    where: Where,
    release: Annotated[
        int | None, typer.Argument(metavar="RELEASE", help="Its number; the known-good release if absent.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even a release that was found bad.")] = False,
    reason: ReasonOption = None,
    lock_wait: LockWait = None,
) -> int:
    from gpuops.cli.operation import Operation
    from gpuops.rollout.desired import simple_order

    with places.session(places.target(where, talk), where, talk) as session:
        service = session.service()
        chosen = release if release is not None else _known_good(talk, session.agent.call("history", service=service))
        order = simple_order(
            "restore", service, deadlines=places.deadlines(where, talk), release=chosen, force=force, reason=reason
        )
        operation = Operation(talk, where, session)
        return operation.conclude(operation.play(order, lock_wait), service)


def _known_good(talk: Talk, history: dict[str, Any]) -> int:
    """The known-good release, said aloud. Raises GpuopsError with the candidates when there is none."""
    import time

    from gpuops.errors import Exit, GpuopsError
    from gpuops.report.history import releases

    good = history["known_good"]
    if good is None:
        numbers = [entry["release"] for entry in history["releases"]]
        raise GpuopsError(
            f"{history['service']} has no known-good release",
            evidence="\n".join(releases(history, time.time())) if numbers else "it has no release at all",
            next=f"gpuops restore {numbers[0]}" if numbers else "gpuops up PLAYBOOK",
            code=Exit.FAILURE,
            kind="no_release",
        )
    talk.note(f"restoring release {good}, the known-good one")
    return int(good)
