"""Show what runs on the host, by its own evidence.

With a playbook it shows its service, with --host alone all services there.
Nothing is asked of the server itself, so it is quick and disturbs nobody.
--check asks for one short generation: does the engine still generate, is it
slow, or does it hang?

Exit code: 0 when it could be told. With --check: 0 serving, 6 hung, slow or
failing, 1 when nothing runs.

\b
Examples:
  gpuops status
  gpuops status --host gpu-box --check --timeout 20
"""

from __future__ import annotations

from typing import Annotated, Any

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
    check: Annotated[bool, typer.Option("--check", help="Ask the server for one generation.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long --check waits for it.")] = 30.0,
) -> int:
    with places.session(places.target(where, talk), where, talk) as session:
        status = session.status(check=check, timeout_s=timeout if check else None)
    if talk.json:
        talk.give(status)
    else:
        import time

        from gpuops.report import status as report

        talk.say(report.lines(status, session.target.address.name, time.time(), talk.out_paint))
    return verdict(status["services"]) if check else Exit.OK


def verdict(services: list[dict[str, Any]]) -> int:
    """The exit code of --check: that of the worst service. An engine that does not answer is worse than one that does not run."""
    states = [(service.get("check") or {}).get("state") for service in services]
    if any(state not in (None, "serving") for state in states):
        return Exit.WRONG_ANSWERS
    return Exit.OK if states and None not in states else Exit.FAILURE
