"""What all verbs have in common: the shared options, and what becomes of an error.

A verb is a function that takes ``talk: Talk``, and ``where: Where`` when it is about a host, besides its own parameters. :func:`verb` turns it
into what Typer sees: the options behind the two, spelled out.
"""

from __future__ import annotations

import errno
import gc
import inspect
import os
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal

import typer

from gpuops.cli.places import Where
from gpuops.cli.talk import OutputLost, Talk
from gpuops.errors import Exit, GpuopsError

_WHERE, _OUTPUT = "Where", "Output"

PlaybookOption = Annotated[
    str | None,
    typer.Option(
        "--playbook",
        "-p",
        metavar="FILE",
        show_default=False,
        rich_help_panel=_WHERE,
        help="The playbook. Else $GPUOPS_PLAYBOOK, ./gpuops.yaml, or the one that `up` used last in this folder.",
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="HOST",
        show_default=False,
        rich_help_panel=_WHERE,
        help="An ssh alias, user@host:port or `local`, instead of the playbook's host. Does without a playbook.",
    ),
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="NAME",
        show_default=False,
        rich_help_panel=_WHERE,
        help="The service, where no playbook names it and the host has several.",
    ),
]
TransportOption = Annotated[
    Literal["auto", "fabric", "openssh"] | None,
    typer.Option(
        "--transport", show_default=False, rich_help_panel=_WHERE, help="How to connect; the playbook's choice if absent."
    ),
]
AcceptOption = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-key", rich_help_panel=_WHERE, help="Trust a host that was never seen before, and record its key."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        rich_help_panel=_WHERE,
        help="Change one value of the playbook, such as server.flags.tp=4, or tp=4 where it sets that flag. May be repeated.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="One JSON object on one line; one a line when streaming.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=_OUTPUT, help="Results and errors only.")]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", rich_help_panel=_OUTPUT, help="More detail, and the traceback of an unexpected failure."),
]

LockWait = Annotated[
    float | None,
    typer.Option(
        "--lock-wait",
        metavar="SECONDS",
        min=0.0,
        show_default=False,
        help="Wait so long for another rollout to end, instead of being refused. A lock that a person took is not waited for.",
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why; it stands in the history.", show_default=False)
]

_WHERE_OPTIONS: dict[str, tuple[Any, Any]] = {
    "playbook": (PlaybookOption, None),
    "host": (HostOption, None),
    "service": (ServiceOption, None),
    "transport": (TransportOption, None),
    "accept_new_host_key": (AcceptOption, False),
    "overrides": (SetOption, None),
}
_OUTPUT_OPTIONS: dict[str, tuple[Any, Any]] = {
    "json": (JsonOption, False),
    "quiet": (QuietOption, False),
    "verbose": (VerboseOption, False),
}


def verb(function: Callable[..., int | None]) -> Callable[..., None]:
    """The function with the shared options, and with errors printed and turned into exit codes. It returns its exit code, or None for 0."""
    signature = inspect.signature(function, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name not in ("talk", "where")]
    shared = {**(_WHERE_OPTIONS if "where" in signature.parameters else {}), **_OUTPUT_OPTIONS}

    @wraps(function)
    def command(**values: Any) -> None:
        # What is loaded by now stays to the end; see gpuops.cli.entry.
        gc.freeze()
        gc.enable()
        talk = Talk(**{name: values.pop(name) for name in _OUTPUT_OPTIONS})
        values["talk"] = talk
        if "where" in signature.parameters:
            chosen = {name: values.pop(name) for name in _WHERE_OPTIONS}
            values["where"] = Where(**{**chosen, "overrides": tuple(chosen["overrides"] or ())})
        code = _guarded(talk, function, values)
        if code:
            raise typer.Exit(code)

    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in shared.items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    command.__signature__ = signature.replace(parameters=[*own, *options], return_annotation=None)  # type: ignore[attr-defined]
    # Typer also asks for type hints by name; the signature says it all.
    command.__annotations__ = {}
    del command.__wrapped__
    return command


def _guarded(talk: Talk, function: Callable[..., int | None], values: dict[str, Any]) -> int:
    try:
        return function(**values) or 0
    except GpuopsError as error:
        talk.fail(error)
        return int(error.code)
    except typer.Exit:
        raise
    except OutputLost as lost:
        if lost.errno == errno.EPIPE:
            # Whoever reads our output has left (`gpuops logs | head`): nobody is there to be told.
            raise
        talk.fail(
            GpuopsError("the output cannot be written", evidence=str(lost), next="write it to another place", kind="output")
        )
        return int(Exit.FAILURE)
    except Exception as error:
        if isinstance(error, FileNotFoundError) and _nowhere():
            talk.fail(
                GpuopsError(
                    "the present folder is not there any more",
                    evidence=str(error),
                    next="cd to a folder that is there",
                    code=Exit.USAGE,
                    kind="usage",
                )
            )
            return int(Exit.USAGE)
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            # As above, for what is written without `talk`.
            raise
        return _unexpected(talk, error)


def _nowhere() -> bool:
    """Whether the present folder was deleted."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


def _unexpected(talk: Talk, error: Exception) -> int:
    where = traceback.extract_tb(error.__traceback__)[-1]
    if talk.verbose:
        talk.detail(traceback.format_exc().rstrip())
    failure = GpuopsError(
        f"gpuops failed unexpectedly: {error!r}",
        evidence=f"{where.filename}:{where.lineno}, in {where.name}",
        next="" if talk.verbose else "the same command with -v shows the traceback",
        kind="bug",
    )
    talk.fail(failure)
    return int(Exit.FAILURE)
