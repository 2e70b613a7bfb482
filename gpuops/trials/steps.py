"""From a trial file to what the host plays: each step as a playbook of its own, and all of them as one order. No host is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from gpuops.agent import shared
from gpuops.builds import make, store
from gpuops.builds.manifest import Tree, read_tree
from gpuops.engines.measuring import load_words
from gpuops.errors import Exit, GpuopsError
from gpuops.playbook import load as load_playbook
from gpuops.playbook.loader import LoadedPlaybook
from gpuops.playbook.models import BuildTree
from gpuops.rollout.desired import build_tree, digest, order, simple_order, speed_cells
from gpuops.trials.load import LoadedTrial
from gpuops.trials.schema import Step

BASE = "base"

Json = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One step as it is played: the base with these changes.

    Attributes:
        parts: the steps of the file whose changes it has, in their order; the last one is its own.
        overrides: the changes of environment, flags and other keys, as ``--set`` takes them.
        build: a build's id, beginning or folder; False: none; None: the base's.
        patch: the folder of patches that become its build.
    """

    name: str
    parts: tuple[Step, ...]
    overrides: tuple[str, ...]
    build: str | bool | None
    patch: str | None

    @property
    def own(self) -> Step | None:
        return self.parts[-1] if self.parts else None

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes in words; empty for the base alone."""
        build = () if self.build is None else (f"build = {self.build or 'none'}",)
        patch = () if self.patch is None else (f"patches of {self.patch}",)
        return (*(text.replace("=", " = ", 1) for text in self.overrides), *build, *patch)


@dataclass(frozen=True)
class Prepared:
    """A variant with its playbook.

    Attributes:
        tree: its build's folder; None where the host makes it, or there is none.
        missing: the build that is not on this machine (yet); only where nothing is played.
    """

    variant: Variant
    playbook: LoadedPlaybook
    tree: Tree | None
    missing: str = ""


def variants(trial: LoadedTrial) -> tuple[Variant, ...]:
    """The steps as they are played, by the trial's mode."""
    steps = trial.model.steps
    if trial.model.mode == "sequence":
        named = {step.name: step for step in steps}
        return tuple(_variant(step.name, _chain(step, named)) for step in steps)
    if trial.model.mode == "bisect":
        return tuple(_variant(_joined(steps[:count]), steps[:count]) for count in range(len(steps) + 1))
    subsets = [subset for size in range(len(steps) + 1) for subset in combinations(steps, size)]
    return tuple(_variant(_joined(subset), subset) for subset in subsets)


def base_playbook(trial: LoadedTrial, path: Path | None, overrides: Sequence[str], host: str | None) -> LoadedPlaybook:
    """The base with what the trial and the command line change of it. Raises PlaybookError."""
    return load_playbook(path or trial.base, base_overrides(trial, overrides), host)


def base_overrides(trial: LoadedTrial, overrides: Sequence[str]) -> tuple[str, ...]:
    return (*_sets(trial.model.set), *overrides)


def prepared(
    trial: LoadedTrial,
    variant: Variant,
    base: LoadedPlaybook,
    overrides: Sequence[str],
    host: str | None,
    builds: Path,
    *,
    dry: bool,
) -> Prepared:
    """A variant's playbook and build.

    Args:
        builds: the folder of builds on this machine; patches are made into one there.
        dry: nothing is made, and nothing has to be there: builds that are not are left out.
    Raises:
        PlaybookError, GpuopsError: a change is not one of this playbook; there is no such build.
    """
    try:
        playbook = load_playbook(base.path, (*base_overrides(trial, overrides), *variant.overrides), host)
    except GpuopsError as error:
        raise type(error)(f"step {variant.name}: {error.what}", evidence=error.evidence, next=error.next) from error
    folder, missing = _build_folder(trial, variant, builds, dry=dry)
    if folder is not None or variant.build is False:
        own = playbook.model.build
        proof = own.proof if isinstance(own, BuildTree) else "auto"
        build = BuildTree(tree=str(folder.resolve()), proof=proof) if folder is not None else None
        playbook = replace(playbook, model=playbook.model.model_copy(update={"build": build}))
    tree = read_tree(folder) if folder is not None else build_tree(playbook)
    return Prepared(variant, playbook, tree, missing)


def steps_of(trial: LoadedTrial, all_prepared: Sequence[Prepared]) -> list[Json]:
    """The order's ``steps``."""
    return [_step(trial, each) for each in all_prepared]


def experiment_order(
    trial: LoadedTrial,
    base: LoadedPlaybook,
    steps: list[Json],
    *,
    done: Mapping[str, str],
    budget_s: float | None,
    detach: bool,
    reason: str | None,
) -> Json:
    """The whole order.

    Args:
        done: the verdicts on steps that were played before.
        budget_s: no step goes on for longer than so many seconds after the trial's beginning.
    """
    model = trial.model
    about = {
        "name": trial.name,
        "mode": model.mode,
        "stop": model.stop,
        "find": model.find,
        "done": dict(done),
        "budget_s": budget_s,
    }
    head = simple_order(
        "experiment", base.model.service, deadlines=base.model.deadlines.model_dump(), reason=reason or model.question
    )
    return {
        **head,
        "spec": key(trial, steps),
        "on_controller_lost": "finish" if detach else base.model.on_controller_lost,
        "experiment": about,
        "steps": steps,
    }


def key(trial: LoadedTrial, steps: Sequence[Json]) -> str:
    """What makes two trials the same: mode, rules, and what every step runs and asks."""
    asked = [
        [step["name"], *(step["order"][part] for part in ("spec", "probes", "ladder")), step["bench"] and step["bench"]["cells"]]
        for step in steps
    ]
    return digest([trial.name, trial.model.mode, trial.model.stop, trial.model.find, asked])


def plan_of(trial: LoadedTrial, names: Sequence[str]) -> Any:
    """The plan as the host's own module has it (``gpuops_agent.experiment_plan.Plan``)."""
    return shared.module("experiment_plan").Plan(trial.model.mode, tuple(names), trial.model.stop, trial.model.find)


def _variant(name: str, parts: Sequence[Step]) -> Variant:
    env: Json = {}
    flags: Json = {}
    other: Json = {}
    build: str | bool | None = None
    patch: str | None = None
    for part in parts:
        env.update(part.env)
        flags.update(part.flags)
        other.update(part.set)
        build = build if part.build is None else part.build
        if part.patch is not None and patch is not None:
            raise _two_builds(name)
        patch = part.patch or patch
        if build and patch:
            raise _two_builds(name)
    keys = {**{f"server.env.{k}": v for k, v in env.items()}, **{f"server.flags.{k}": v for k, v in flags.items()}, **other}
    return Variant(name, tuple(parts), _sets(keys), build, patch)


def _two_builds(name: str) -> GpuopsError:
    return GpuopsError(
        f"step {name} has two builds: a release has one",
        evidence="its changes name a build and patches, or patches twice",
        next="gpuops builds make --from FOLDER --patches FOLDER makes one build of both",
        code=Exit.PLAYBOOK,
        kind="trial",
    )


def _chain(step: Step, named: Mapping[str, Step]) -> tuple[Step, ...]:
    """A step behind all that it is on, each once."""
    found: dict[str, Step] = {}
    for name in step.on:
        found.update({part.name: part for part in _chain(named[name], named)})
    return (*found.values(), step)


def _joined(steps: Sequence[Step]) -> str:
    return "+".join(step.name for step in steps) or BASE


def _sets(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())


def _build_folder(trial: LoadedTrial, variant: Variant, builds: Path, *, dry: bool) -> tuple[Path | None, str]:
    """The folder of a variant's own build, or None; and the word for one that is missing."""
    if variant.patch is not None:
        if dry:
            return None, f"patches of {variant.patch}"
        return make.make(builds, None, name=f"{trial.name}-patches", patch_folder=trial.beside(variant.patch)).path, ""
    if not variant.build:
        return None, ""
    try:
        return store.find(builds, str(variant.build)), ""
    except GpuopsError:
        if not dry:
            raise
        return None, str(variant.build)


def _step(trial: LoadedTrial, made: Prepared) -> Json:
    model, variant, own = trial.model, made.variant, made.variant.own
    wanted = order(made.playbook, tree=made.tree)
    keep = ("spec", "base", "prepare", "candidate", "engine", "probes", "ladder", "deadlines")
    apart = wanted["spec"][:12] if model.caches == "own" and variant.changes else ""
    benched = own.bench if own is not None and own.bench is not None else model.bench
    return {
        "name": variant.name,
        "deadline_s": (own.deadline_s if own is not None else None) or model.deadline_s,
        "bench": _bench(made.playbook, benched) if benched else None,
        "order": {**{name: wanted[name] for name in keep}, "cache_apart": apart},
    }


def _bench(playbook: LoadedPlaybook, wanted: bool | tuple[str, ...]) -> Json:
    names = None if wanted is True else tuple(wanted or ())
    known = [cell["name"] for cell in speed_cells(playbook)]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise GpuopsError(
            f"the trial measures the cell {unknown[0]!r}, which its base does not have as a closed loop",
            evidence=f"cells with a concurrency: {', '.join(known)}",
            code=Exit.PLAYBOOK,
            kind="trial",
        )
    words = load_words(playbook.model.engine.name)
    return {"cells": speed_cells(playbook, names), "deadline_s": playbook.model.bench.deadline_s, "load": words}
