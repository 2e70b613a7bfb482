"""A command group that knows its commands by name and help alone, and imports one when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gpuops.cli.direct import DirectCommand, with_direct_values
from gpuops.cli.table import VERBS, Verb


class LazyGroup(TyperGroup):
    """The group of all verbs. What lists commands (help, completion, the hint after a typing mistake) sees stubs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for verb in VERBS:
            self.add_command(TyperCommand(verb.name, help=verb.help, rich_help_panel=verb.panel))

    def get_params(self, ctx: Any) -> list[Any]:
        return with_direct_values(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        verb = next((verb for verb in VERBS if verb.name == name), None)
        return name, command if verb is None else load(verb), rest


def load(verb: Verb) -> Any:
    """Import a verb's module and make its command.

    The module has a function ``main``, and its docstring is the help; or it has an ``app`` of its own, a group. ``CONTEXT`` may hold settings of
    the parser.
    """
    module = import_module(verb.module)
    if hasattr(module, "app"):
        return get_command(module.app)
    app = typer.Typer(add_completion=False)
    app.command(verb.name, cls=DirectCommand, help=module.__doc__, context_settings=getattr(module, "CONTEXT", None))(module.main)
    return get_command(app)
