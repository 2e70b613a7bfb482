"""Run one command on the host.

No shell is involved: the words arrive as they are. Output comes as it is
written, standard error apart; the exit code is the command's (128 + the
signal that ended it). --runtime runs it in the environment of the service's
current release, its Python first on PATH, without secrets.

\b
Examples:
  gpuops exec -- nvidia-smi -L
  gpuops exec --runtime -- python -c "import torch; print(torch.__version__)"
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb

# What follows the command's name belongs to the command.
CONTEXT = {"allow_interspersed_args": False}


@verb
def main(
    talk: Talk,
    where: Where,
    argv: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command and its words.")],
    runtime: Annotated[bool, typer.Option("--runtime", help="In the environment of the current release.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="End the command after this long.", show_default=False)
    ] = None,
) -> int:
    def show(event: Mapping[str, Any]) -> None:
        if talk.json:
            talk.give({"stream": event["event"], "text": event["text"]})
        elif event["event"] == "out":
            talk.raw(event["text"])
        else:
            sys.stderr.write(event["text"])
            sys.stderr.flush()

    with places.session(places.target(where, talk), where, talk) as session:
        service = session.service() if runtime else None
        ended = session.agent.call("exec", on_event=show, argv=argv, service=service, runtime=runtime, timeout=timeout)
    if talk.json:
        talk.give(ended)
    return int(ended["status"])
