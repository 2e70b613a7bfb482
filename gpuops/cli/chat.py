"""Put one question to the server and print the answer as it comes.

The server's port is reached through the connection to the host; nothing has
to be open to the network.

\b
Examples:
  gpuops chat "What is the capital of France?"
  gpuops chat "Summarise this." --system "Answer in one line." --max-tokens 64
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit, GpuopsError


@verb
def main(
    talk: Talk,
    where: Where,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The question.", show_default=False)],
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.", show_default=False)] = None,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="The longest answer.")] = 512,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Print the answer as it comes, or at its end.")] = True,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variable that holds the server's API key.", show_default=False)
    ] = None,
    timeout: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="The longest silence of the server.")] = 120.0,
) -> None:
    from gpuops.cli.completions import Question, ask

    question = Question(text, system, max_tokens, temperature, stream, _api_key(api_key_env), timeout)
    live = stream and not talk.json
    with places.session(places.target(where, talk), where, talk) as session:
        port = _port(session.service(), session.status())
        with session.agent.transport.forward(port) as near:
            answer = ask(near, question, talk.raw if live else lambda piece: None)
    if talk.json:
        talk.give(vars(answer))
        return
    talk.raw("\n" if live else f"{answer.answer}\n")
    talk.note(f"{answer.seconds:.1f} s, {_tokens(answer.usage)}, finished by {answer.finish_reason or 'unknown'}")


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise GpuopsError(
            f"the variable {variable} is not set",
            evidence="--api-key-env names it",
            next=f"export {variable}=...",
            code=Exit.USAGE,
        )
    return key


def _port(service: str, status: dict[str, Any]) -> int:
    told = next(entry for entry in status["services"] if entry["service"] == service)
    if told["server"] is None:
        raise GpuopsError(
            f"{service} runs no server",
            evidence=f"its state is {told['state']}",
            next="gpuops attach" if told["state"] == "rollout" else "gpuops status, or gpuops up",
            kind="not_running",
        )
    return int(told["server"]["port"])


def _tokens(usage: dict[str, Any] | None) -> str:
    return "tokens unknown" if usage is None else f"{usage.get('prompt_tokens')} + {usage.get('completion_tokens')} tokens"
