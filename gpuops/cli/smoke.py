"""Put the probes to the running server: is it right, wrong or down?

These are the probes that the release was rolled out with; those of the
playbook when one is named with -p. With --level N the rungs 1 to N of the
ladder are put: 1 identity, 2 the probes and whether answers are text,
3 sums in one batch, 4 needles in long texts, 5 a short question while a long
prompt is read, 6 a tool call, 7 log probabilities against the known-good
release, 8 a soak, 9 the playbook's evaluations by lm-eval and sgl-eval, where
the runtime has them. Which of them count says the playbook (ladder).

Exit code: 0 right, 6 it serves and a required answer is wrong, 1 down.

\b
Examples:
  gpuops smoke
  gpuops smoke --level 8
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
    level: Annotated[
        int | None, typer.Option(min=1, max=9, metavar="1..9", help="Put the ladder up to this rung.", show_default=False)
    ] = None,
) -> int:
    from gpuops.report import narrate

    def show(event: Mapping[str, Any]) -> None:
        if talk.json:
            talk.give(event)
        elif not talk.quiet:
            talk.say(narrate.lines(event, talk.out_paint))

    target = places.target(where, talk)
    asked = _asked(where, talk, level)
    with places.session(target, where, talk) as session:
        service = session.service()
        result = session.agent.call("smoke", on_event=show, service=service, timeout_s=timeout, **asked)
    if talk.json:
        talk.give(result)
    else:
        talk.say([_verdict(talk, service, result)])
    return _CODES[result["verdict"]]


def _asked(where: Where, talk: Talk, level: int | None) -> dict[str, Any]:
    """What is asked: the named playbook's probes and ladder, or those of the release."""
    playbook = places.load(where, talk) if where.playbook is not None else None
    probes = None
    if playbook is not None:
        from gpuops.rollout.desired import probes_of

        probes = probes_of(playbook)
    if level is None:
        return {"probes": probes}
    from gpuops.engines.measuring import load_words
    from gpuops.playbook.measuring import Ladder

    own = playbook.model.ladder if playbook is not None else None
    return {
        "probes": probes,
        "level": level,
        "load": load_words(),
        "ladder": None if own is None else own.model_dump(mode="json", exclude_none=True),
        "default_ladder": Ladder().model_dump(mode="json", exclude_none=True),
    }


def _verdict(talk: Talk, service: str, result: Mapping[str, Any]) -> str:
    paint = talk.out_paint
    passed = _passed(result)
    texts = {
        "right": paint.green("right") + f": {passed}",
        "wrong": paint.red("wrong") + f": {passed}",
        "down": paint.red("down") + f": {result['check']['state']}, {result['check']['evidence']}",
    }
    return f"{service} (release {result['release']}) is {texts[result['verdict']]}"


def _passed(result: Mapping[str, Any]) -> str:
    if "rungs" not in result:
        results = result["results"]
        return f"{sum(probe['passed'] for probe in results)} of {len(results)} probes passed"
    rungs, launches = result["rungs"], result["launches"]
    right = f"{sum(rung['verdict'] == 'right' for rung in rungs)} of {len(rungs)} rungs right"
    return f"{right}; so in {launches['right']} of {launches['seen']} launches of this release"
