"""Bringing a build to the host: asked for first, sent only when it is not there, checked file by file on arrival."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpuops.agent.client import Agent
from gpuops.builds.manifest import Tree
from gpuops.transport.base import PushStats


def push(agent: Agent, tree: Tree) -> PushStats | None:
    """Make sure that the host has the build; None when it had it already (one round trip, no file data).

    Raises:
        GpuopsError: the host's disk has no room for it, and nothing was sent; a file did not arrive as it was sent.
        OutcomeUnknown: the link was lost; what has arrived stays for the next attempt.
    """
    there = agent.call("tree.have", kind="builds", id=tree.id, sizes=_sizes(tree))
    if there["present"]:
        return None
    with tempfile.TemporaryDirectory(prefix="gpuops-push-") as scratch:
        sent = [
            agent.transport.push(folder, f"{there['incoming']}/{part}", link_dest=_unchanged(there["link_dest"], part))
            for part, folder in _as_it_shall_arrive(tree, Path(scratch)).items()
        ]
    files = [list(entry) for entry in tree.entries]
    agent.call("tree.commit", kind="builds", id=tree.id, manifest=files, about=dict(tree.about))
    return PushStats(sum(each.files for each in sent), sum(each.bytes_sent for each in sent), sent[0].tool)


def _sizes(tree: Tree) -> list[tuple[str, str, int]]:
    """Path, sha256 and bytes of every file."""
    parts = ((path, sha, *path.split("/", 1)) for path, _, sha in tree.entries)
    return [(path, sha, (tree.parts[part] / rest).stat().st_size) for path, sha, part, rest in parts]


def _unchanged(build: str | None, part: str) -> str | None:
    """Where unchanged files may be linked from. Patches are small, and the other build may have none."""
    return f"{build}/site" if build and part == "site" else None


def _as_it_shall_arrive(tree: Tree, scratch: Path) -> Mapping[str, Path]:
    """The tree's folders with only what counts in them, and with the modes of the manifest."""
    if tree.clean:
        return tree.parts
    for part in tree.parts:
        (scratch / part).mkdir()
    for path, mode, _ in tree.entries:
        part, _, rest = path.partition("/")
        destination = scratch / path
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree.parts[part] / rest, destination)
        destination.chmod(mode)
    return {part: scratch / part for part in tree.parts}
