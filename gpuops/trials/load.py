"""Reading a trial file: valid, or every problem of it with its line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpuops.errors import PlaybookError
from gpuops.playbook.locate import find, parse, plain
from gpuops.playbook.paths import NO_PATH, no_path
from gpuops.playbook.problems import Key, Problem, first_of_each_key, invalid, suggestion
from gpuops.trials.schema import Judged, Step, TrialFile


@dataclass(frozen=True)
class LoadedTrial:
    """A valid trial: its file, its name (the file's, without suffix), and its text as it was read."""

    path: Path
    model: TrialFile
    text: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def base(self) -> Path:
        """The base playbook."""
        return self.beside(self.model.base)

    def beside(self, path: str) -> Path:
        """A path of the file, which starts from its folder."""
        return Path(os.path.normpath(self.path.parent / Path(path).expanduser()))


def load(path: Path) -> LoadedTrial:
    """Read and validate a trial file. Raises PlaybookError with every problem that was found."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlaybookError(
            f"the trial {path} cannot be read", evidence=str(error), next="gpuops trial FILE; ready ones lie in playbooks/trials/"
        ) from error
    tree = parse(text, str(path), path.parent.absolute())
    try:
        model = TrialFile.model_validate(plain(tree))
    except ValidationError as error:
        details = [(_key(detail["loc"]), detail) for detail in error.errors(include_url=False)]
        raise _invalid(path, [Problem(find(tree, key).mark, key, _text(detail, key)) for key, detail in details]) from None
    trial = LoadedTrial(path, model, text)
    gone = [
        Problem(find(tree, key).mark, key, what) for key, kind, text in _named(trial) if (what := _missing(trial, kind, text))
    ]
    if gone:
        raise _invalid(path, gone)
    return trial


def _invalid(path: Path, problems: list[Problem]) -> PlaybookError:
    error = invalid(str(path), first_of_each_key(problems))
    what = error.what.replace("is not a valid playbook", "is not a valid trial")
    return PlaybookError(what, evidence=error.evidence, next="mend the lines named above; docs/trials.md explains every key")


def _missing(trial: LoadedTrial, kind: str, text: str) -> str:
    """Why what a path of the file names is not there; empty when it is."""
    try:
        there = trial.beside(text)
        return "" if there.exists() else f"there is no {kind} {there}"
    except NO_PATH as error:
        return no_path(text, error)


def _named(trial: LoadedTrial) -> list[tuple[Key, str, str]]:
    """What the file names that must be there: where it says so, what it is, and its path as it stands there."""
    patches: list[tuple[Key, str, str]] = [
        (("steps", number, "patch"), "folder", step.patch) for number, step in enumerate(trial.model.steps) if step.patch
    ]
    return [(("base",), "playbook", trial.model.base), *patches]


def _key(loc: tuple[int | str, ...]) -> Key:
    """Pydantic's location without the names of union members."""
    return tuple(part for part in loc if isinstance(part, int) or not (part == "[key]" or "[" in part or "(" in part))


def _text(detail: Any, key: Key) -> str:
    if detail["type"] == "extra_forbidden":
        known = Step if key[0] == "steps" else Judged if key[0] == "verdict" else TrialFile
        return f"there is no such key{suggestion(str(key[-1]), known.model_fields)}"
    if detail["type"] == "missing":
        return "is missing"
    if "error" in detail.get("ctx", {}):
        return str(detail["ctx"]["error"])
    return f"{detail['msg']}; here: {detail['input']!r}"
