"""Make, look at, compare and carry builds: what goes in front of a runtime's packages.

A build is a folder named by its content: a kernel wheel, unpacked, and
patches for the engine. The same sources give the same name on every machine.
Builds lie in `builds/` of the present folder, or in $GPUOPS_BUILDS, or where
--dir says. A playbook names one by its folder: `build: {tree: builds/ID}`.

\b
Examples:
  gpuops builds make --from kernels/
  gpuops builds list
  gpuops builds push gpuops-kernels-3f9c
  gpuops builds bundle box.tar -p box.yaml --split 60M
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli import builds_host
from gpuops.cli.builds_host import BuildArgument, DirOption, named_host
from gpuops.cli.direct import DirectCommand
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit

if TYPE_CHECKING:
    from gpuops.builds.manifest import Tree

app = typer.Typer(name="builds", help=__doc__, add_completion=False, no_args_is_help=True)

_KERNELS = Path("kernels")


@app.command("make", cls=DirectCommand)
@verb
def make(
    talk: Talk,
    origin: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="A folder with a pyproject.toml, or a wheel. Default: kernels/, without --patches."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name. Default: the wheel's.", show_default=False)
    ] = None,
    patches: Annotated[
        Path | None,
        typer.Option("--patches", metavar="DIR", help="Holds ENGINE-VERSION/*.patch, unified diffs.", show_default=False),
    ] = None,
    folder: DirOption = None,
) -> None:
    """Make a build: build the wheel reproducibly, unpack it, add patches, and name it by its content.

    Without a network the build backend that is installed beside gpuops is used.

    \b
    Examples:
      gpuops builds make --from kernels/
      gpuops builds make --patches patches/ --name sampler-fix
    """
    from gpuops.builds import make as maker
    from gpuops.builds import store
    from gpuops.report import builds as report

    chosen = origin or (_KERNELS if patches is None else None)
    made = maker.make(store.folder(folder), chosen, name=name, patch_folder=patches, note=talk.note)
    if talk.json:
        talk.give(
            {
                "id": made.tree.id,
                "path": str(made.path),
                "new": made.new,
                "files": len(made.tree.entries),
                "about": made.tree.about,
            }
        )
    else:
        talk.say(report.made(made))


@app.command("list", cls=DirectCommand)
@verb
def list_(talk: Talk, where: Where, folder: DirOption = None) -> None:
    """List the builds of this machine, newest first; with -p or --host also those of that host.

    \b
    Examples:
      gpuops builds list
      gpuops builds list --host gpu-box --json
    """
    import time

    from gpuops.builds import store
    from gpuops.report import builds as report

    here = store.listed(store.folder(folder))
    for error in store.unreadable(store.folder(folder)):
        talk.note(f"left out: {error.what}: {error.evidence}")
    there = builds_host.on_host(where, talk) if named_host(where) else None
    if talk.json:
        told = [{"id": each.id, "path": str(each.path), "about": each.about} for each in here]
        talk.give({"builds": told, **({} if there is None else {"host": there})})
    else:
        talk.say(report.listed(here, there, store.folder(folder), time.time()))


@app.command("show", cls=DirectCommand)
@verb
def show(talk: Talk, build: BuildArgument, folder: DirOption = None) -> None:
    """Show what a build is made of, and what it is made for.

    \b
    Examples:
      gpuops builds show gpuops-kernels-3f9c
      gpuops builds show gpuops-kernels-3f9c --json
    """
    from gpuops.builds import store
    from gpuops.builds.manifest import read_manifest
    from gpuops.report import builds as report

    path = store.find(store.folder(folder), build)
    told = read_manifest(path)
    if talk.json:
        talk.give({"path": str(path), **told})
    else:
        talk.say(report.shown(path, told, verbose=talk.verbose))


@app.command("verify", cls=DirectCommand)
@verb
def verify(talk: Talk, where: Where, build: BuildArgument, folder: DirOption = None) -> int:
    """Check every file of a build against its manifest; with -p or --host on that host too.

    Exit code: 0 all files are as they were made, 1 something differs.

    \b
    Examples:
      gpuops builds verify gpuops-kernels-3f9c
      gpuops builds verify gpuops-kernels-3f9c --host gpu-box
    """
    from gpuops.builds import store
    from gpuops.builds.manifest import verified
    from gpuops.report import builds as report

    tree, wrong = verified(store.find(store.folder(folder), build))
    results = [("this machine", {"files": len(tree.entries), "wrong": [{"path": path, "what": what} for path, what in wrong]})]
    if named_host(where):
        results.append(builds_host.verified_there(where, talk, tree.id))
    if talk.json:
        talk.give({"id": tree.id, "places": [{"where": place, **told} for place, told in results]})
    else:
        talk.say(report.verified(tree.id, results, talk.out_paint))
    return Exit.FAILURE if any(told["wrong"] for _, told in results) else Exit.OK


@app.command("diff", cls=DirectCommand)
@verb
def diff(
    talk: Talk,
    old: Annotated[str, typer.Argument(metavar="A", help="A build.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    folder: DirOption = None,
) -> None:
    """Say what changed from one build to another: kernels, patches, targets, resources, metadata.

    \b
    Examples:
      gpuops builds diff gpuops-kernels-3f9c gpuops-kernels-81aa
      gpuops builds diff gpuops-kernels-3f9c gpuops-kernels-81aa --json
    """
    from gpuops.builds.diff import diff as compare
    from gpuops.report import builds as report

    first, second = _read(folder, old), _read(folder, new)
    found = compare(first, second)
    if talk.json:
        talk.give({"a": first.id, "b": second.id, **found.to_json()})
    else:
        talk.say(report.different(first.id, second.id, found, talk.out_paint))


def _read(folder: Path | None, word: str) -> Tree:
    from gpuops.builds import store
    from gpuops.builds.manifest import read_build

    return read_build(store.find(store.folder(folder), word))


app.command("push", cls=DirectCommand)(builds_host.push)
app.command("prune", cls=DirectCommand)(builds_host.prune)
app.command("bundle", cls=DirectCommand)(builds_host.bundle)
