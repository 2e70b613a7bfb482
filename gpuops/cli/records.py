"""List, show and export the records of trials: what was tried, what happened, what it means.

Records lie in `records/` of the present folder, or in $GPUOPS_RECORDS, or
where --records says: a folder each, with the record as JSON and as a page,
and a playbook and a trial file that play it again. They hold no secrets.

\b
Examples:
  gpuops records list
  gpuops records show torch-compile
  gpuops records export torch-compile out/ --step on
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.direct import DirectCommand
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit, GpuopsError

VARIABLE = "GPUOPS_RECORDS"
USUAL = Path("records")

app = typer.Typer(name="records", help=__doc__, add_completion=False, no_args_is_help=True)

FolderOption = Annotated[
    Path | None,
    typer.Option("--records", metavar="DIR", help="Where records lie.", show_default="$GPUOPS_RECORDS, or records/"),
]
RecordArgument = Annotated[
    str | None,
    typer.Argument(metavar="[RECORD]", help="Its id, a part of it, or a trial's name; the newest if absent.", show_default=False),
]


def folder_of(chosen: Path | None) -> Path:
    """The folder of records, by the option, the environment or the present folder."""
    return chosen or Path(os.environ.get(VARIABLE) or USUAL)


@app.command("list", cls=DirectCommand)
@verb
def list_(talk: Talk, records: FolderOption = None) -> None:
    """List the records, newest first.

    \b
    Examples:
      gpuops records list
      gpuops records list --json
    """
    from gpuops.report import trials as report
    from gpuops.trials import record

    known = record.listed(folder_of(records))
    for error in record.unreadable(folder_of(records)):
        talk.note(f"left out: {error.what}: {error.evidence}")
    if talk.json:
        keep = ("id", "name", "question", "mode", "verdict", "finding", "began", "ended", "hosts")
        talk.give({"records": [{key: each.record[key] for key in keep} for each in known]})
    else:
        talk.say(report.records(known))


@app.command("show", cls=DirectCommand)
@verb
def show(talk: Talk, which: RecordArgument = None, records: FolderOption = None) -> None:
    """Show a record as the page that lies beside it.

    \b
    Examples:
      gpuops records show
      gpuops records show torch-compile --json
    """
    from gpuops.trials import markdown, record

    found = record.find(folder_of(records), which)
    if talk.json:
        talk.give({"path": str(found.path), **found.record})
    else:
        talk.raw(markdown.page(found.record))


@app.command("export", cls=DirectCommand)
@verb
def export(
    talk: Talk,
    which: Annotated[str, typer.Argument(metavar="RECORD", help="Its id, or a part of it.", show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet.", show_default=False)],
    step: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also write this step as a playbook, `step.yaml`.", show_default=False),
    ] = None,
    records: FolderOption = None,
) -> None:
    """Copy a record with the files that play it again; a step of it as a playbook that runs as it is.

    \b
    Examples:
      gpuops records export torch-compile out/
      gpuops records export 20260801-torch-compile out/ --step on
    """
    from gpuops.trials import export as exporter
    from gpuops.trials import record

    found = record.find(folder_of(records), which)
    if out.exists():
        raise GpuopsError(f"{out} exists already", next="name a folder that does not", code=Exit.USAGE, kind="usage")
    written = exporter.export(found, out, step)
    if talk.json:
        talk.give({"path": str(out), "files": [path.name for path in written]})
    else:
        talk.say([f"{path}" for path in written])
