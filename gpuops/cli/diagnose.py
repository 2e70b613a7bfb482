"""Say why a start failed: the class, the line that shows it, and what helps.

Without LOG the host is asked about the release that failed last, else about
the current one: its log, how its process ended, the kernel log, the cards
and what its processes do. With LOG (`-` is stdin) only that file is read,
here, without any host; it may be compressed by gzip.

\b
Examples:
  gpuops diagnose
  gpuops diagnose --release 7 --json
  gpuops diagnose server.log
  kubectl logs POD | gpuops diagnose -
"""

from __future__ import annotations

import sys
from pathlib import Path
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
    log: Annotated[str | None, typer.Argument(metavar="[LOG]", help="A log file, or - for stdin.", show_default=False)] = None,
    release: Annotated[
        int | None, typer.Option(metavar="N", help="The release; the one that failed last if absent.", show_default=False)
    ] = None,
) -> None:
    from gpuops.engines import reading
    from gpuops.report import diagnosis as report

    if log is not None:
        told, of = _offline(log, release), "stdin" if log == "-" else log
    else:
        with places.session(places.target(where, talk), where, talk) as session:
            told = session.agent.call("diagnose", service=session.service(), release=release, reading=reading())
        of = f"release {told['release']} of {told['service']}"
    if talk.json:
        talk.give(told)
    else:
        talk.say(report.lines(told, of, talk.out_paint))


def _offline(log: str, release: int | None) -> dict[str, Any]:
    from gpuops.diagnosing import of_log, text_of

    if release is not None:
        raise GpuopsError("--release is about a host, LOG about a file", next="give one of them", code=Exit.USAGE, kind="usage")
    try:
        data = sys.stdin.buffer.read() if log == "-" else Path(log).read_bytes()
    except OSError as error:
        raise GpuopsError(
            f"{log} cannot be read", evidence=str(error), next="gpuops diagnose FILE", code=Exit.USAGE, kind="usage"
        ) from error
    return of_log(text_of(data, "standard input" if log == "-" else log))
