"""The order of a swap: what the playbook says, with another build; and whether that is really all that would change. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuops.builds.manifest import Tree
from gpuops.errors import Exit, GpuopsError
from gpuops.playbook.loader import LoadedPlaybook
from gpuops.playbook.models import BuildTree
from gpuops.rollout.desired import Json, order
from gpuops.rollout.plan import Change, changes

OPTION = "--with-playbook-changes"


def swap_order(playbook: LoadedPlaybook, tree: Tree, reason: str | None = None) -> Json:
    """The playbook's order with this build in the place of its own. What the playbook says of its build beside its content stays.

    Raises:
        PlaybookError: as :func:`gpuops.rollout.desired.order`.
    """
    folder = next(iter(tree.parts.values())).parent.resolve()
    own = playbook.model.build
    build = BuildTree(tree=str(folder), proof=own.proof if isinstance(own, BuildTree) else "auto")
    changed = replace(playbook, model=playbook.model.model_copy(update={"build": build}))
    return {**order(changed, tree=tree, reason=reason), "swap": True}


def base_release(status: Mapping[str, Any], history: Mapping[str, Any]) -> Mapping[str, Any]:
    """The release whose build is replaced: the current one, else the known-good one.

    Raises:
        GpuopsError: the service has none: there is nothing to swap in.
    """
    number = status["release"] if status["release"] is not None else status["known_good"]
    found: Mapping[str, Any] | None = next((entry for entry in history["releases"] if entry["release"] == number), None)
    if found is None:
        raise GpuopsError(
            f"{status['service']} has no release whose build could be replaced",
            evidence="it does not run, and no release of it is known-good",
            next="gpuops up PLAYBOOK, then swap",
            code=Exit.FAILURE,
            kind="no_release",
        )
    return found


def beyond(wanted: Mapping[str, Any], release: Mapping[str, Any]) -> tuple[Change, ...]:
    """What the playbook would change of a release besides its build; empty when nothing."""
    if release.get("base") is not None and release["base"] == wanted["base"]:
        return ()
    named = tuple(each for each in changes(release, wanted) if each.key != "build")
    if named or release.get("base") is None:
        return named
    return (Change("playbook", f"that of release {release['release']}", "another desired state"),)


def must_be_alone(found: tuple[Change, ...], release: Mapping[str, Any]) -> None:
    """Raises GpuopsError (13) when a swap would change more than the build."""
    if not found:
        return
    raise GpuopsError(
        f"the playbook differs from release {release['release']} in more than the build: a swap would change {len(found)} more things",
        evidence="; ".join(f"{each.key}: {each.old or '(none)'} -> {each.new or '(none)'}" for each in found[:5]),
        next=f"gpuops swap BUILD {OPTION} changes both, gpuops up the playbook alone; the running server was not touched",
        code=Exit.REFUSED,
        kind="playbook_changes",
    )
