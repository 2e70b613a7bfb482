"""Bringing a build to the host: asked for first, sent only when it is not there, checked file by file on arrival."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from gpuops.agent.client import Agent
from gpuops.builds.manifest import Tree
from gpuops.transport.base import PushStats


def push(agent: Agent, tree: Tree) -> PushStats | None:
    """Make sure that the host has the build; None when it had it already (one round trip, no file data).

    Raises:
        GpuopsError: a file did not arrive as it was sent; the host's disk is full.
        OutcomeUnknown: the link was lost; what has arrived stays for the next attempt.
    """
    there = agent.call("tree.have", kind="builds", id=tree.id)
    if there["present"]:
        return None
    with tempfile.TemporaryDirectory(prefix="gpuops-push-") as scratch:
        source = _clean_copy(tree, Path(scratch) / "site")
        stats = agent.transport.push(source, there["incoming"], link_dest=there["link_dest"])
    agent.call("tree.commit", kind="builds", id=tree.id, manifest=[list(entry) for entry in tree.entries])
    return stats


def _clean_copy(tree: Tree, target: Path) -> Path:
    """The tree as it shall arrive: only what counts, with the modes of the manifest."""
    if tree.clean:
        return tree.source
    for path, mode, _ in tree.entries:
        destination = target / path
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree.source / path, destination)
        destination.chmod(mode)
    return target
