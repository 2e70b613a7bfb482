"""List a host's JIT caches, take them home, and load them on another host: its first start then compiles nothing.

A cache belongs to a build, the cards, and the versions of torch, Triton and
the engine's packages that compile. Whatever host it is made on, it has the
same name on all. `load` works on a host that has nothing else yet.

\b
Examples:
  gpuops caches list
  gpuops caches save lab-caches -p playbooks/gpu-lab.yaml --split 15M
  gpuops caches load lab-caches -p playbooks/gpu-lab.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.builds_host import part_bytes
from gpuops.cli.direct import DirectCommand
from gpuops.cli.places import Where
from gpuops.cli.progress import tenths
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit, GpuopsError

app = typer.Typer(name="caches", help=__doc__, add_completion=False, no_args_is_help=True)


@app.command("list", cls=DirectCommand)
@verb
def list_(talk: Talk, where: Where) -> None:
    """List the caches of a host: of what, how large, how many files the last start had to add, and which releases use them.

    \b
    Examples:
      gpuops caches list
      gpuops caches list --host gpu-box --json
    """
    import time

    from gpuops.report import caches as report

    with places.session(places.target(where, talk), where, talk) as session:
        told = session.agent.call("cache.list")
        host = session.target.address.name
    if talk.json:
        talk.give(told)
    else:
        talk.say(report.listed(told["caches"], host, time.time(), verbose=talk.verbose))


@app.command("save", cls=DirectCommand)
@verb
def save(
    talk: Talk,
    where: Where,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Which caches, by the beginnings of their keys.", show_default=False),
    ] = None,
    release: Annotated[
        list[str] | None,
        typer.Option("--release", metavar="N", help="The cache of this release. May be repeated.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every cache of the host.")] = False,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", metavar="SIZE", help="Write FILE.001, FILE.002, ... of at most so much: 15M.", show_default=False
        ),
    ] = None,
) -> None:
    """Pack caches of the host into a file here: those of the known-good and the current release, unless others are named.

    The server may run meanwhile: what it changes while it is read is left out.

    \b
    Examples:
      gpuops caches save lab-caches -p playbooks/gpu-lab.yaml --split 15M
      gpuops caches save all-caches --all --host gpu-box
    """
    from gpuops.builds import caches
    from gpuops.report import caches as report

    limit = part_bytes(split) if split else None
    numbers = _numbers(release or [])
    if sum(map(bool, (keys, numbers, everything))) > 1:
        raise _usage("KEY, --release and --all exclude each other", "more than one is given", "gpuops caches save FILE --all")
    target = places.target(where, talk)
    named = bool(keys) or everything
    with places.session(target, where, talk) as session:
        service = target.service or None if named else session.service()
    wanted = {"service": service, "keys": keys or [], "releases": numbers, "everything": everything}
    saved = caches.save(places.connector(target, where, talk), out, wanted, part_bytes=limit, told=tenths(talk, "caches"))
    for each in saved.left_out:
        talk.note(f"{each['key']} is left out: {each['why']}")
    if talk.json:
        talk.give(
            {
                "id": saved.file.id,
                "files": [str(path) for path in saved.file.files],
                "bytes": saved.file.bytes,
                "caches": [_short(each) for each in saved.file.index["caches"]],
                "left_out": list(saved.left_out),
            }
        )
    else:
        talk.say(report.saved(saved.file, out))


@app.command("load", cls=DirectCommand)
@verb
def load(
    talk: Talk,
    where: Where,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `save` has written, or one of its parts.", show_default=False)
    ],
) -> None:
    """Put the caches of a file onto a host, each under the name that it has everywhere; one that is there already stays as it is.

    All is checked first; caches of another card, torch or Triton are refused,
    and then nothing is put. Neither service nor runtime have to be there yet.

    Exit code: 0 done, 1 the file is cut or altered, 5 it does not fit the host.

    \b
    Examples:
      gpuops caches load lab-caches -p playbooks/gpu-lab.yaml
      gpuops caches load lab-caches --host gpu-box
    """
    from gpuops.builds import caches
    from gpuops.report import caches as report

    cached = caches.open_caches(file)
    found = places.find(where, talk)
    runtime = None
    if found.playbook is not None:
        from gpuops.rollout.desired import build_tree, order

        loaded = places.load(found, talk)
        runtime = order(loaded, tree=build_tree(loaded))["prepare"]["runtime"]
    target = places.target(found, talk)
    with places.session(target, found, talk) as session:
        wanted = {"service": target.service or None, "runtime": runtime}
        told = caches.load(session.agent, cached, wanted, tenths(talk, "caches"))
    if talk.json:
        talk.give({"id": cached.id, **told})
    else:
        talk.say(report.loaded(told, target.address.name))


def _short(cache: dict[str, Any]) -> dict[str, Any]:
    size = {"entries": len(cache["files"]), "bytes": sum(int(row[2]) for row in cache["files"])}
    return {**{key: cache[key] for key in ("key", "build", "card", "versions") if key in cache}, **size}


def _numbers(words: list[str]) -> list[int]:
    for word in words:
        if not word.isdigit():
            raise _usage(f"--release {word} is no number of a release", "gpuops history lists them", "--release 3")
    return [int(word) for word in words]


def _usage(what: str, evidence: str, next: str) -> GpuopsError:
    return GpuopsError(what, evidence=evidence, next=next, code=Exit.USAGE, kind="usage")
