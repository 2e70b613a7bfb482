"""The two sides of a comparison: from the words on the command line to what is rolled out. Pure but for reading the build's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuops.builds.manifest import Tree, read_tree
from gpuops.errors import Exit, GpuopsError
from gpuops.measure.ab import Side
from gpuops.playbook.loader import LoadedPlaybook
from gpuops.rollout.desired import operation_id, order, simple_order
from gpuops.rollout.swap import swap_order

CURRENT, KNOWN_GOOD, NONE = "current", "known-good", "none"

Json = dict[str, Any]


@dataclass(frozen=True)
class Content:
    """What a side rolls out: a release that is there, or an order with its build's folder.

    Attributes:
        base: the hash of all but the build (``base`` of an order); None for a release from before there was one.
        facts: what it is besides its build, for telling what differs.
    """

    side: Side
    base: str | None
    facts: Mapping[str, str]
    order: Json | None = None
    tree: Tree | None = None

    def order_of_a_launch(self, service: str, deadlines: Json, reason: str, comparison: Json) -> Json:
        """An order that launches it through every gate, and promotes nothing; a new one each time. ``comparison``: whose it is, `{id, token}`."""
        launch = {"trial": True, "comparison": comparison}
        if self.order is not None:
            return {**self.order, "op": operation_id(), "reason": reason, **launch}
        told = simple_order("relaunch", service, deadlines=deadlines, release=self.side.release, reason=reason)
        # Like `up`: a laptop that is gone must not leave the host in the middle of a launch.
        return {**told, **launch, "on_controller_lost": "restore"}


def resolve(word: str, history: Mapping[str, Any], find: Callable[[str], Path], loaded: LoadedPlaybook | None) -> Content:
    """What a word means: ``current``, ``known-good``, a release's number, ``none`` (the playbook without a build), or a build.

    Args:
        history: the agent's answer, with every release.
        find: the folder of a build by its name, here on the laptop; raises GpuopsError.
        loaded: the playbook; needed for builds and for ``none``.
    Raises:
        GpuopsError: there is no such release or build; a bad release; no playbook.
    """
    number = {CURRENT: history["current"], KNOWN_GOOD: history["known_good"]}.get(word, int(word) if word.isdigit() else None)
    if word in (CURRENT, KNOWN_GOOD) or word.isdigit():
        return _of_release(word, number, history)
    path = None if word == NONE else find(word)
    if loaded is None:
        raise GpuopsError(
            f"{word} needs a playbook: everything but the build comes from it",
            evidence="none is named, and none was used before in this folder",
            next="gpuops ab -p FILE A B; or name releases by number",
            code=Exit.USAGE,
            kind="usage",
        )
    return _of_build(path, loaded)


def differences(a: Content, b: Content) -> list[str]:
    """What else differs than the build: a comparison of builds then says nothing of the build alone. [] when nothing does."""
    if a.base is not None and a.base == b.base:
        return []
    keys = sorted(a.facts.keys() | b.facts.keys())
    named = [f"{key}: {a.facts.get(key)} and {b.facts.get(key)}" for key in keys if a.facts.get(key) != b.facts.get(key)]
    unknown = a.base is None or b.base is None
    return named or ([] if unknown else ["something else that makes the desired state, such as the environment"])


def _of_release(word: str, number: int | None, history: Mapping[str, Any]) -> Content:
    known = {entry["release"]: entry for entry in history["releases"]}
    entry = known.get(number)
    if entry is None or entry["state"] == "bad":
        what = f"release {number} is bad: {entry['reason']}" if entry else f"there is no release {word}"
        raise GpuopsError(
            what,
            evidence=f"releases: {', '.join(map(str, known))}" if known else "the service has no release",
            next="gpuops history",
            code=Exit.USAGE,
            kind="no_release",
        )
    return Content(Side(word, number), entry.get("base"), _facts(entry["summary"] or {}, entry["runtime"]))


def _of_build(path: Path | None, loaded: LoadedPlaybook) -> Content:
    tree = None if path is None else read_tree(path)
    if tree is None:
        made = order(replace(loaded, model=loaded.model.model_copy(update={"build": None})))
    else:
        made = swap_order(loaded, tree)
    runtime = made["prepare"]["runtime"]
    named = runtime.get("id") or f"path:{runtime['path']}"
    side = Side(NONE if tree is None else tree.id)
    return Content(side, made.get("base"), _facts(made["candidate"]["summary"], named), made, tree)


def _facts(summary: Mapping[str, Any], runtime: str | None) -> dict[str, str]:
    flags = {f"server.flags.{name}": str(value) for name, value in (summary.get("flags") or {}).items()}
    return {"engine": str(summary.get("engine")), "model": str(summary.get("model")), "runtime": str(runtime), **flags}
