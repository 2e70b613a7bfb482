"""Show where a decode step's GPU time goes, by the engine's own profiler.

The running server decodes a number of prompts at once; its profiler records a
few steps of that. The traces are fetched and added up: time by category,
launches a step, the busiest kernels, the gaps between them, the slowest rank.
Work that no category knows has a row of its own. They stay in a folder, for
`show`, `diff` and https://ui.perfetto.dev. The server is slower meanwhile.

\b
Examples:
  gpuops profile
  gpuops profile -p prod.yaml --concurrency 64 --out profiles/before
  gpuops profile show profiles/before
  gpuops profile diff profiles/before profiles/after
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gpuops.cli import places
from gpuops.cli.direct import DirectCommand, with_direct_values
from gpuops.cli.places import Where
from gpuops.cli.progress import shown
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit, GpuopsError

if TYPE_CHECKING:
    from gpuops.profiling.stored import Profile


class _Group(TyperGroup):
    """A group that is a verb itself too."""

    def get_params(self, ctx: Any) -> list[Any]:
        return with_direct_values(super().get_params(ctx))


app = typer.Typer(name="profile", cls=_Group, help=__doc__, add_completion=False)


@app.callback(invoke_without_command=True)
@verb
def main(
    talk: Talk,
    where: Where,
    ctx: typer.Context,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="Prompts that decode at once.")] = 16,
    input: Annotated[int, typer.Option("--input", min=1, metavar="TOKENS", help="The length of each prompt.")] = 512,
    output: Annotated[
        int, typer.Option("--output", min=16, metavar="TOKENS", help="The longest answer; the load ends with the profile.")
    ] = 1024,
    steps: Annotated[
        int,
        typer.Option(
            min=4,
            max=1000,
            metavar="N",
            help="Decode steps to record. An engine may record one less: of fewer than 4 it cannot be told.",
        ),
    ] = 8,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Record operators on the CPU too; on a host without a card that is all there is.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the traces go.", show_default="profiles/SERVICE-RELEASE-TIME")
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, metavar="MB", help="Fetch no more than so much.")] = 500,
    rank: Annotated[
        list[str] | None, typer.Option(metavar="RANK", help="Fetch only this rank's trace, as TP-0. May be repeated.")
    ] = None,
    deadline: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="For load, profile and writing the traces.")] = 600.0,
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    from gpuops.engines.measuring import load_words
    from gpuops.engines.profiling import profiler_words
    from gpuops.profiling import stored
    from gpuops.profiling.fetch import fetch
    from gpuops.rollout import who

    target = places.target(where, talk)
    with places.session(target, where, talk) as session, shown(talk) as listener:
        service = session.service()
        made = session.agent.call(
            "profile",
            on_event=listener,
            service=service,
            by=who.me(),
            load=load_words(),
            profiler=profiler_words(),
            concurrency=concurrency,
            input=input,
            output=output,
            steps=steps,
            activities=["CPU", "GPU"] if cpu else ["GPU"],
            deadline_s=deadline,
        )
        files = _chosen(made, rank, most)
        folder = out or Path("profiles") / f"{service}-{made['release']}-{made['profile']}"

        def arrived(done: int, total: int) -> None:
            listener({"event": "phase", "t": time.time(), "phase": "fetch", "progress": done / total, "detail": f"to {folder}"})

        paths = fetch(places.connector(target, where, talk), made, files, folder, arrived)
    about = {key: made[key] for key in ("service", "release", "profile", "steps", "concurrency")}
    profile = stored.summed(paths, {**about, "host": target.address.name, "input": input})
    saved = stored.save(profile, folder)
    _show(talk, profile, folder)
    talk.note(f"kept in {saved.parent}; gpuops profile diff A B compares two")


@app.command("show", cls=DirectCommand)
@verb
def show(
    talk: Talk,
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile's folder, or a trace.", show_default=False)],
) -> None:
    """Show a profile that was taken before, or any trace of PyTorch's profiler.

    \b
    Examples:
      gpuops profile show profiles/before
      gpuops profile show run-TP-0.trace.json.gz --json
    """
    from gpuops.profiling import stored

    _show(talk, stored.load(profile), profile)


@app.command("diff", cls=DirectCommand)
@verb
def diff(
    talk: Talk,
    a: Annotated[Path, typer.Argument(metavar="A", help="A profile's folder, or a trace.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.", show_default=False)],
) -> None:
    """Say what a step spends more, and less, time on in B than in A.

    \b
    Examples:
      gpuops profile diff profiles/before profiles/after
      gpuops profile diff A.trace.json.gz B.trace.json.gz --json
    """
    from gpuops.engines.profiling import categories
    from gpuops.profiling import stored
    from gpuops.profiling.compare import compare
    from gpuops.report import profile as report

    first, second = stored.load(a), stored.load(b)
    found = compare(first.ranks, second.ranks)
    concurrency = (first.about.get("concurrency"), second.about.get("concurrency"))
    if talk.json:
        talk.give({"a": str(a), "b": str(b), "concurrency": list(concurrency), **found.to_json()})
    else:
        talk.say(report.difference(found, (str(a), str(b)), categories(), talk.out_paint, concurrency))


def _show(talk: Talk, profile: Profile, path: Path) -> None:
    from gpuops.engines.profiling import categories
    from gpuops.report import profile as report

    if talk.json:
        talk.give({"path": str(path), **profile.to_json()})
        return
    about = profile.about
    known = {"release", "service", "concurrency"} <= about.keys()
    of = f"release {about['release']} of {about['service']}, {about['concurrency']} at once" if known else str(path)
    talk.say(report.lines(profile.ranks, of, categories(), talk.out_paint))


def _chosen(made: dict[str, Any], ranks: list[str] | None, most_mb: int) -> list[dict[str, Any]]:
    """The files to fetch. Raises GpuopsError: a rank that does not exist, or more bytes than are wanted."""
    from gpuops.report.words import size

    known = [file["rank"] for file in made["files"]]
    unknown = [rank for rank in ranks or () if rank not in known]
    if unknown:
        raise GpuopsError(f"there is no rank {unknown[0]}", evidence=f"ranks: {', '.join(known)}", code=Exit.USAGE, kind="usage")
    files = [file for file in made["files"] if not ranks or file["rank"] in ranks]
    total = sum(file["bytes"] for file in files)
    if total > most_mb * 1_000_000:
        raise GpuopsError(
            f"the traces have {size(total)}, more than --most {most_mb}",
            evidence=f"they lie in {made['folder']} on the host; {', '.join(known)}",
            next=f"--most {total // 1_000_000 + 1}, or --rank {known[0]}, or fewer --steps",
            kind="too_large",
        )
    return files
