"""Put the probes to the running server: is it right, wrong or down?

These are the probes that the release was rolled out with; those of the
playbook when one is named with -p.

Exit code: 0 right, 6 it serves and a required answer is wrong, 1 down.

\b
Examples:
  gpuops smoke
  gpuops smoke -p prod.yaml --timeout 20
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit

_CODES = {"right": Exit.OK, "wrong": Exit.WRONG_ANSWERS, "down": Exit.FAILURE}


@verb
def main(
    talk: Talk,
    where: Where,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="SECONDS", help="How long the first generation may take.", show_default="the release's deadline"
        ),
    ] = None,
) -> int:
    from gpuops.report import narrate

    def show(event: Mapping[str, Any]) -> None:
        if talk.json:
            talk.give(event)
        elif not talk.quiet:
            talk.say(narrate.lines(event, talk.out_paint))

    target = places.target(where, talk)
    probes = _probes(where, talk) if where.playbook is not None else None
    with places.session(target, where, talk) as session:
        service = session.service()
        result = session.agent.call("smoke", on_event=show, service=service, probes=probes, timeout_s=timeout)
    if talk.json:
        talk.give(result)
    else:
        talk.say([_verdict(talk, service, result)])
    return _CODES[result["verdict"]]


def _probes(where: Where, talk: Talk) -> list[dict[str, Any]]:
    from gpuops.rollout.desired import probes_of

    return probes_of(places.load(where, talk))


def _verdict(talk: Talk, service: str, result: Mapping[str, Any]) -> str:
    paint, results = talk.out_paint, result["results"]
    passed = f"{sum(probe['passed'] for probe in results)} of {len(results)} probes passed"
    texts = {
        "right": paint.green("right") + f": {passed}",
        "wrong": paint.red("wrong") + f": {passed}",
        "down": paint.red("down") + f": {result['check']['state']}, {result['check']['evidence']}",
    }
    return f"{service} (release {result['release']}) is {texts[result['verdict']]}"
