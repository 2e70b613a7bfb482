"""What a trial has found so far, on this machine: one file beside the records, replaced whole after every step.

A trial goes on where it stopped, after a lost laptop, on another day, or on another host, as long as it is the same trial: its key says so.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuops.agent import shared
from gpuops.errors import Exit, GpuopsError
from gpuops.trials import files

VERSION = 1

Json = dict[str, Any]


@dataclass(frozen=True)
class State:
    """An unfinished trial.

    Attributes:
        key: what makes it the same trial (``gpuops.trials.steps.key``).
        began: seconds since the epoch.
        op: the operation that may still run; None when the last one has told its outcome.
        hosts: every host that it was played on.
        results: one for each step that has a verdict, in the order in which they were played.
        operations: the operations that played it, with how they ended and their seconds.
    """

    name: str
    key: str
    service: str
    began: float
    op: str | None = None
    hosts: tuple[str, ...] = ()
    results: tuple[Json, ...] = ()
    operations: tuple[Json, ...] = field(default=())

    @property
    def verdicts(self) -> dict[str, str]:
        return {result["step"]: result["verdict"] for result in self.results}

    def with_result(self, result: Mapping[str, Any]) -> State:
        """With a step's result; one that was heard before (a replayed operation) changes nothing."""
        if result["step"] in self.verdicts:
            return self
        return replace(self, results=(*self.results, dict(result)))


def path(folder: Path, name: str) -> Path:
    """Where an unfinished trial is kept."""
    return folder / f".{name}.unfinished.json"


def save(folder: Path, state: State) -> None:
    """Replace the file, whole or not at all. Raises GpuopsError when it cannot be written."""
    files.write_whole(path(folder, state.name), json.dumps({"version": VERSION, **asdict(state)}))


def load(folder: Path, name: str, trial: Path | None = None) -> State | None:
    """The unfinished trial of that name, which ``trial`` describes; None when there is none. Raises GpuopsError for a file that cannot be read."""
    file = path(folder, name)
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        version = raw.pop("version")
        lists = {key: tuple(raw[key]) for key in ("hosts", "results", "operations")}
        if version != VERSION:
            raise ValueError(f"version {version}")
        return State(**{**raw, **lists})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GpuopsError(
            f"what was found so far cannot be read: {file}",
            evidence=repr(error),
            next=f"gpuops trial {shlex.quote(str(trial or name))} --fresh begins anew",
            kind="state",
        ) from error


def forget(folder: Path, name: str) -> None:
    """The trial is finished, or begins anew. Raises GpuopsError when the file cannot be removed."""
    file = path(folder, name)
    with files.writing(file):
        file.unlink(missing_ok=True)


def begun(
    folder: Path, name: str, key: str, service: str, now: float, *, resume: bool, fresh: bool, trial: Path | None = None
) -> State:
    """The state to go on with; steps that were unfit have no verdict any more.

    Raises:
        GpuopsError (usage): an unfinished trial of this name is there and nobody said what shall become of it; or it is another trial by now.
    """
    known = None if fresh else load(folder, name, trial)
    if known is None or (not known.results and known.op is None):
        # One that was refused, or cut in its first step, has found nothing that could be lost.
        return State(name, key, service, now)
    if not resume:
        raise GpuopsError(
            f"trial {name} is unfinished: {len(known.results)} steps have a verdict",
            evidence=str(path(folder, name)),
            next="--resume goes on with it, --fresh begins anew",
            code=Exit.USAGE,
            kind="unfinished",
        )
    if known.key != key:
        raise GpuopsError(
            f"trial {name} is another one by now: its file, its base or a build has changed since it began",
            evidence=f"{len(known.results)} steps have a verdict: {', '.join(known.verdicts)}",
            next="--fresh begins anew",
            code=Exit.USAGE,
            kind="changed",
        )
    unfit = shared.module("experiment_plan").UNFIT
    # What a host could not prepare may be mended by now, and another host may have it.
    return replace(known, results=tuple(result for result in known.results if result["verdict"] != unfit))
