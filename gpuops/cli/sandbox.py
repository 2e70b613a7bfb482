"""Start, stop or look at a throwaway sshd on loopback.

A host to try everything on, made of real ssh, that needs no second machine.
It belongs to one folder, which holds its keys, its configuration and, as
gpuops' root, all that is rolled out on it.

\b
Examples:
  gpuops sandbox start
  gpuops sandbox status --dir .sandbox
  gpuops sandbox stop
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuops.cli.direct import DirectCommand
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit

if TYPE_CHECKING:
    from gpuops.sandbox import SandboxInfo

app = typer.Typer(name="sandbox", help=__doc__, add_completion=False, no_args_is_help=True)

FolderOption = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The sandbox's folder.")]
_FOLDER = Path(".sandbox")


@app.command(cls=DirectCommand)
@verb
def start(talk: Talk, folder: FolderOption = _FOLDER) -> None:
    """Start sshd, or find it running; the first start makes keys and configuration.

    \b
    Examples:
      gpuops sandbox start
      gpuops sandbox start --dir /tmp/box
    """
    from gpuops.sandbox import Sandbox

    info = Sandbox(folder, note=talk.note).start()
    _show(talk, info)


@app.command(cls=DirectCommand)
@verb
def stop(talk: Talk, folder: FolderOption = _FOLDER) -> None:
    """Stop sshd. What was rolled out on the sandbox stays, running servers too: `gpuops down` stops those.

    \b
    Examples:
      gpuops sandbox stop
      gpuops sandbox stop --dir /tmp/box
    """
    from gpuops.sandbox import Sandbox

    stopped = Sandbox(folder).stop()
    if talk.json:
        talk.give({"stopped": stopped})
    else:
        talk.say([f"the sandbox in {folder} {'is stopped' if stopped else 'did not run'}"])


@app.command(cls=DirectCommand)
@verb
def status(talk: Talk, folder: FolderOption = _FOLDER) -> int:
    """Say whether the sandbox runs and how ssh reaches it (exit code 1 when it does not run).

    \b
    Examples:
      gpuops sandbox status
      gpuops sandbox status --json
    """
    from gpuops.sandbox import Sandbox

    info = Sandbox(folder).status()
    if info is not None:
        _show(talk, info)
        return Exit.OK
    if talk.json:
        talk.give({"running": False})
    else:
        talk.say([f"the sandbox in {folder} does not run; gpuops sandbox start --dir {shlex.quote(str(folder))}"])
    return Exit.FAILURE


def _show(talk: Talk, info: SandboxInfo) -> None:
    from gpuops.report.style import fields
    from gpuops.sandbox import ALIAS

    if talk.json:
        talk.give(_json(info))
        return
    told = [
        ("sshd", f"pid {info.pid}, 127.0.0.1:{info.port}, user {info.user}"),
        ("root", str(info.root)),
        ("ssh", shlex.join(["ssh", "-F", str(info.ssh_config), ALIAS])),
        ("playbook", f"host: {{sandbox: {info.folder}}}"),
    ]
    talk.say([f"the sandbox in {info.folder} runs", *fields(told)])


def _json(info: SandboxInfo) -> dict[str, Any]:
    return {"running": True, "ssh_config": str(info.ssh_config), **{name: _plain(value) for name, value in vars(info).items()}}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
