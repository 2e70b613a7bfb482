"""The commands of `gpuops builds` that are about a host: push, prune and bundle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit, GpuopsError

if TYPE_CHECKING:
    from gpuops.builds.bundle import CacheFile
    from gpuops.builds.download import HostPlatform
    from gpuops.builds.manifest import Tree
    from gpuops.rollout.session import Session

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Where the builds lie. Else $GPUOPS_BUILDS, or builds/ here.", show_default=False),
]
BuildArgument = Annotated[
    str,
    typer.Argument(
        metavar="BUILD", help="Its id, its name, the beginning of its id or of its hash, or its folder.", show_default=False
    ),
]


def named_host(where: Where) -> bool:
    """Whether the command line names a host; the playbook that was used last does not count."""
    return where.playbook is not None or where.host is not None


def on_host(where: Where, talk: Talk) -> list[dict[str, Any]]:
    """The builds of the host."""
    with _session(where, talk) as session:
        told: list[dict[str, Any]] = session.agent.call("build.list")["builds"]
    return told


def verified_there(where: Where, talk: Talk, build: str) -> tuple[str, dict[str, Any]]:
    """The host's name, and what it says of every file of a build."""
    with _session(where, talk) as session:
        return session.target.address.name, session.agent.call("build.verify", id=build)


def part_bytes(text: str) -> int:
    """What ``--split`` says, as ``60M``: powers of ten, as disks and limits are sold. Raises GpuopsError."""
    match = re.fullmatch(r"(\d+)([kMG]?)B?", text)
    size = int(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[match[2]] if match else 0
    if size < 10**5:
        raise GpuopsError(
            f"--split {text} is no size", evidence="at least 100k", next="--split 60M", code=Exit.USAGE, kind="usage"
        )
    return size


@verb
def push(talk: Talk, where: Where, build: BuildArgument, folder: DirOption = None) -> None:
    """Bring a build to the host, after every file was checked; files that a build there has already are not sent.

    \b
    Examples:
      gpuops builds push gpuops-kernels-3f9c
      gpuops builds push gpuops-kernels-3f9c --host gpu-box
    """
    from gpuops.builds import store
    from gpuops.builds.manifest import read_build
    from gpuops.builds.push import push as send
    from gpuops.report import builds as report

    tree = read_build(store.find(store.folder(folder), build))
    with _session(where, talk) as session:
        sent = send(session.agent, tree)
        host = session.target.address.name
    if talk.json:
        talk.give(
            {"id": tree.id, "sent": sent is not None, "files": sent.files if sent else 0, "bytes": sent.bytes_sent if sent else 0}
        )
    else:
        talk.say([report.pushed(tree.id, host, sent)])


@verb
def prune(
    talk: Talk,
    where: Where,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many builds of a name stay, the newest.")] = 5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go, and why.")] = False,
    folder: DirOption = None,
) -> int:
    """Delete old builds here; with -p or --host also the host's that no release needs that may be started again.

    On the host a build of the current, the known-good or a pinned release
    never goes; and what stays there stays here too, and what the playbook names.

    Exit code: 0 done, 1 something could not be deleted, 13 the host is busy.

    \b
    Examples:
      gpuops builds prune --dry-run
      gpuops builds prune --keep 3 --host gpu-box
    """
    import time

    from gpuops.builds import store
    from gpuops.report import builds as report
    from gpuops.report import prune as host_report

    there, needed = _prune_host(talk, where, dry_run) if named_host(where) else (None, {})
    for error in store.unreadable(store.folder(folder)):
        talk.note(f"left out: {error.what}: {error.evidence}")
    verdicts = store.decide(store.listed(store.folder(folder)), keep, {**needed, **_named(where, talk)})
    gone = [(each, store.size(each.build)) for each in verdicts if each.goes]
    if not dry_run:
        store.sweep(store.folder(folder), time.time())
    for each, _ in gone:
        if not dry_run:
            store.remove(each.build)
    if talk.json:
        told = [{"id": each.build.id, "bytes": size, "why": each.why} for each, size in gone]
        kept = [{"id": each.build.id, "why": each.why} for each in verdicts if not each.goes]
        talk.give({"dry_run": dry_run, "gone": told, "kept": kept, **({} if there is None else {"host": there[1]})})
    else:
        talk.say(report.pruned(gone, verdicts, dry_run=dry_run, verbose=talk.verbose))
        if there is not None:
            talk.say(host_report.lines(there[1], there[0], talk.out_paint, verbose=talk.verbose))
    return Exit.FAILURE if there is not None and there[1]["failed"] else Exit.OK


@verb
def bundle(
    talk: Talk,
    where: Where,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    builds: Annotated[
        list[str] | None, typer.Option("--build", metavar="BUILD", help="A further build. May be repeated.", show_default=False)
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="SIZE", help="Write OUT.001, OUT.002, ... of at most so much: 60M.", show_default=False),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="X.Y", help="The Python of the host's runtime; the host is not asked then.", show_default=False
        ),
    ] = None,
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME", help="With --python: what `uname -m` says there.")
    ] = "x86_64",
    glibc: Annotated[
        str, typer.Option("--glibc", metavar="X.Y", help="With --python: the host's glibc, or an older one.")
    ] = "2.28",
    wheels: Annotated[
        Path | None,
        typer.Option(
            "--wheels",
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Wheels of your own, taken instead of the index's of the same name and version.",
            show_default=False,
        ),
    ] = None,
    caches: Annotated[
        Path | None,
        typer.Option(
            "--caches",
            metavar="FILE",
            help="JIT caches that `gpuops caches save` has written; `up --bundle` loads those that fit the host.",
            show_default=False,
        ),
    ] = None,
    folder: DirOption = None,
) -> None:
    """Pack all that a host without a registry needs for a playbook: wheels, builds, the model's manifest, the agent.

    `gpuops up --bundle OUT` then needs no network on the host.

    \b
    Examples:
      gpuops builds bundle box.tar -p box.yaml
      gpuops builds bundle box.tar -p box.yaml --split 60M --python 3.12
    """
    from gpuops.builds import bundle as bundles
    from gpuops.builds import store
    from gpuops.builds.manifest import read_build
    from gpuops.report import builds as report
    from gpuops.rollout.desired import build_tree, order

    limit = part_bytes(split) if split else None
    cached = _cached(caches) if caches else None
    loaded = places.load(where, talk)
    own = build_tree(loaded)
    prepare = order(loaded, tree=own)["prepare"]
    trees: dict[str, Tree] = {} if own is None else {own.id: own}
    for word in builds or ():
        tree = read_build(store.find(store.folder(folder), word))
        trees[tree.id] = tree
    platform = _given(python, machine, glibc) if python else _asked(where, talk, prepare["runtime"].get("python"))
    contents = bundles.Contents(prepare, tuple(trees.values()), platform, wheels, cached)
    written = bundles.write(out, contents, part_bytes=limit, note=talk.note)
    if talk.json:
        told = {
            "id": written.id,
            "files": [str(path) for path in written.files],
            "bytes": written.bytes,
            "members": written.members,
        }
        talk.give({**told, "builds": sorted(trees)})
    else:
        talk.say(report.bundled(written, sorted(trees)))


def _cached(file: Path) -> CacheFile:
    from gpuops.builds.caches import open_caches

    return open_caches(file).for_bundle()


def _prune_host(talk: Talk, where: Where, dry_run: bool) -> tuple[tuple[str, dict[str, Any]], dict[str, str]]:
    """The host's name and what it says, and the builds that stay there with the reason."""
    from gpuops.rollout import who

    with _session(where, talk) as session:
        told = session.agent.call("prune", service=None, dry_run=dry_run, by=who.me(), kinds=["build", "overlay"])
        host = session.target.address.name
    kept = {each["name"]: f"on {host}: {each['why']}" for each in told["kept"] if each["kind"] == "build"}
    return (host, told), kept


def _named(where: Where, talk: Talk) -> dict[str, str]:
    """The build that the playbook names, where one is named on the command line."""
    if where.playbook is None:
        return {}
    from gpuops.playbook.models import BuildTree

    loaded = places.load(where, talk)
    build = loaded.model.build
    return {loaded.file(build.tree).name: f"{where.playbook} names it"} if isinstance(build, BuildTree) else {}


def _asked(where: Where, talk: Talk, python: str | None) -> HostPlatform:
    from gpuops.builds.download import HostPlatform

    with _session(where, talk) as session:
        told = session.agent.call("bundle.platform", python=python)
    if told["glibc"] is None:
        raise GpuopsError(
            "the host has no glibc", evidence="wheels of lock files are made for it", code=Exit.HOST_UNFIT, kind="platform"
        )
    return HostPlatform(_pair(told["python"]), told["machine"], _pair(told["glibc"]))


def _given(python: str, machine: str, glibc: str) -> HostPlatform:
    from gpuops.builds.download import HostPlatform

    versions = [re.fullmatch(r"(\d+)\.(\d+)", text) for text in (python, glibc)]
    if versions[0] is None or versions[1] is None:
        raise GpuopsError(
            "versions are written as X.Y", evidence=f"--python {python} --glibc {glibc}", code=Exit.USAGE, kind="usage"
        )
    return HostPlatform(_pair(versions[0].groups()), machine, _pair(versions[1].groups()))


def _pair(values: Any) -> tuple[int, int]:
    first, second = values
    return int(first), int(second)


@contextmanager
def _session(where: Where, talk: Talk) -> Iterator[Session]:
    with places.session(places.target(where, talk), where, talk) as session:
        yield session
