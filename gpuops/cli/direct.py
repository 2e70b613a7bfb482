"""Option values without pydantic.

Typer 0.29 puts every value, even plain text, through a pydantic type adapter; importing pydantic and building one adapter a parameter takes several
times as long as `gpuops status` itself. Our options are of a handful of types, so their values are converted here, and Typer keeps the
rest: parsing, help, completion, errors. A value of another type is left to Typer too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand


class DirectCommand(TyperCommand):
    """A command whose parameters of simple types convert their own values."""

    def get_params(self, ctx: Any) -> list[Any]:
        return with_direct_values(super().get_params(ctx))


def with_direct_values(parameters: list[Any]) -> list[Any]:
    """The same parameters; those of simple types no longer need pydantic."""
    for parameter in parameters:
        if parameter._runtime_param is None:
            # Where Typer itself keeps its converter once it has built it (typer.core._TyperParameter.get_runtime_param).
            parameter._runtime_param = _direct(parameter)
    return parameters


@dataclass(frozen=True)
class Direct:
    """Stands where Typer's own converter would: takes what was parsed, or a default, and gives the value."""

    convert: Callable[[Any], Any]
    many: bool

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Raises typer.BadParameter (usage, exit code 2)."""
        try:
            if self.many:
                return tuple(self.convert(item) for item in value or ())
            return None if value is None else self.convert(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None


def _direct(parameter: Any) -> Direct | None:
    annotation, info = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    many = get_origin(annotation) is list
    kind = get_args(annotation)[0] if many else annotation
    if kind in (str, Path):
        return Direct(kind, many)
    if kind is bool:
        # A flag is a bool, or None where it has no default (--help): there is no text to convert.
        return Direct(bool, many)
    if kind in (int, float):
        return Direct(lambda value: _number(kind, value, info.min, info.max), many)
    if get_origin(kind) is Literal:
        return Direct(lambda value: _choice(get_args(kind), value), many)
    return None


def _number(kind: type[int] | type[float], value: Any, least: float | None, most: float | None) -> float:
    try:
        number = kind(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a {'whole number' if kind is int else 'number'}.") from None
    # Written so that "nan", which compares to nothing, is refused too.
    if (least is not None and not number >= least) or (most is not None and not number <= most):
        raise ValueError(f"{value} is not {_range(least, most)}.")
    return number


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return f"at least {least:g}"
    return f"at most {most:g}" if least is None else f"from {least:g} to {most:g}"


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise ValueError(f"{value!r} is not one of {', '.join(map(str, choices))}.")
    return value
