"""Write what was measured of a release or a comparison as one page, and show it in short.

The page holds throughput against concurrency, paired ratios, latency,
telemetry, the ladder, the gates and the fingerprints; it asks nothing of any
other machine, and can be sent as it is. Markdown is written beside it. Both
come from what the host keeps. Charts need the extra: pip install
'gpuops[report]'.

\b
Examples:
  gpuops report
  gpuops report --release 7 -o release-7.html
  gpuops report --ab ab-20260105-101500-3f9c81aa -o comparison.html
  gpuops report --ab latest
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit, GpuopsError

if TYPE_CHECKING:
    from gpuops.report.sheet import Sheet
    from gpuops.rollout.session import Session

LATEST = "latest"


@verb
def main(
    talk: Talk,
    where: Where,
    release: Annotated[
        int | None, typer.Option("--release", metavar="N", help="The release.", show_default="the current one")
    ] = None,
    ab: Annotated[str | None, typer.Option("--ab", metavar="ID", help="A comparison, or `latest`.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The page; Markdown goes beside it.", show_default=False)
    ] = None,
) -> None:
    from gpuops.report import sheet as sheets

    if release is not None and ab is not None:
        raise GpuopsError(
            "a report is on a release or on a comparison",
            evidence="--release and --ab are given",
            next="leave one out",
            code=Exit.USAGE,
            kind="usage",
        )
    with places.session(places.target(where, talk), where, talk) as session:
        service, host = session.service(), session.target.address.name
        if ab is not None:
            record = session.agent.call("ab.load", service=service, id=None if ab == LATEST else ab)
            evidence = _evidence(session, service, [record["a"]["release"], record["b"]["release"]], record["launches"])
            sheet = sheets.of_comparison(record, evidence, host)
        else:
            record = None
            evidence = _of_release(session, service, release)
            sheet = sheets.of_release(evidence, evidence["releases"][0]["release"], host)
    written = _write(sheet, out) if out is not None else []
    if talk.json:
        talk.give(
            {"title": sheet.title, "said": list(sheet.said), "comparison": record, "evidence": evidence, "written": written}
        )
    else:
        talk.say([*sheets.short(sheet), *(f"  written     {path}" for path in written)])


def _of_release(session: Session, service: str, release: int | None) -> dict[str, Any]:
    """The evidence on a release (the current one when none is named) and the known-good one."""
    if release is None:
        return session.agent.call("evidence", service=service, releases=None, launches=None)
    good = session.agent.call("history", service=service, limit=1)["known_good"]
    return session.agent.call("evidence", service=service, releases=list(filter(None, [release, good])), launches=None)


def _evidence(session: Session, service: str, releases: list[int | None], launches: list[dict[str, Any]]) -> dict[str, Any]:
    known = [number for number in releases if number is not None]
    if not known:
        raise GpuopsError(
            "nothing was launched in this comparison yet",
            evidence="its record has no release",
            next="gpuops ab --resume",
            kind="empty",
        )
    return session.agent.call("evidence", service=service, releases=known, launches=[each["launch"] for each in launches])


def _write(sheet: Sheet, out: Path) -> list[str]:
    """The page and the Markdown; returns their paths. Raises GpuopsError."""
    from gpuops.report import page

    texts = {out: page.html(sheet), out.with_suffix(".md"): page.markdown(sheet)}
    try:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuopsError(
            f"the report cannot be written to {out}", evidence=str(error), next="name another file with -o", kind="io"
        ) from error
    return [str(path) for path in texts]
