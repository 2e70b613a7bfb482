"""The root command: what ``gpuops`` says before a verb is chosen."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops import __version__
from gpuops.cli.lazy import LazyGroup

_EPILOG = """\
A first look, on this machine alone:

  gpuops sandbox start
  gpuops up playbooks/local.yaml
  gpuops chat "What is the capital of France?"

An error says what happened, why we think so, and the next command. Exit
codes: 0 done, 1 failed, 2 usage, 3 playbook, 4 unreachable, 5 host unfit,
6 wrong answers, 10 restored, 11 restore failed too, 12 outcome unknown,
13 refused, 14 nothing to restore.
"""

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpuops {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True, show_default=False)
    ] = False,
) -> None:
    """Change what a remote GPU inference server runs, prove that it is right, and go back when it is not."""
