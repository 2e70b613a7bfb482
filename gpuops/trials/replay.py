"""The files of a record that play it again: the base playbook as it was, and the trial on it.

They hold no secret: where one stood in the playbook itself, a variable stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpuops.playbook.layers import assemble
from gpuops.playbook.locate import plain
from gpuops.playbook.paths import relocate
from gpuops.trials.load import LoadedTrial
from gpuops.trials.record import PLAYBOOK
from gpuops.trials.redact import Redactor, is_reference, names_a_secret
from gpuops.trials.steps import base_overrides

# The parts of a step that may hold a secret.
_CHANGES = ("env", "flags", "set")

Json = dict[str, Any]


def playbook_text(trial: LoadedTrial, path: Path | None, overrides: Sequence[str], host: str | None, folder: Path) -> str:
    """The base, with all that it extends and all overrides, as one playbook that lies in ``folder``: its paths start from there."""
    located = assemble(path or trial.base, base_overrides(trial, overrides), host).tree
    tree: Json = plain(relocate(located, folder.absolute()))
    named = list(dict.fromkeys([*_without_secrets(tree), *_secrets_of_steps(trial)]))
    if named:
        tree["secrets"] = list(dict.fromkeys([*(tree.get("secrets") or ()), *named]))
    head = [
        "# The base of a trial as it was played: gpuops trial trial.yaml plays it again, gpuops up -p playbook.yaml starts the base alone.",
        *(f"# A secret stood in the playbook or the trial itself; export {name} before." for name in named),
    ]
    return "\n".join(head) + "\n\n" + _yaml(tree)


def trial_text(trial: LoadedTrial, redact: Redactor) -> str:
    """The trial on the playbook beside it."""
    told = trial.model.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    told.pop("set", None)
    steps = [_step(trial, step) for step in told.pop("steps")]
    return _yaml(redact({**told, "base": PLAYBOOK, "steps": steps}))


def _step(trial: LoadedTrial, step: Json) -> Json:
    # exclude_none drops the nulls that remove a key.
    model = next(each for each in trial.model.steps if each.name == step["name"])
    nulls = {part: _with_variables(getattr(model, part)) for part in _CHANGES if getattr(model, part)}
    patch = {"patch": str(trial.beside(step["patch"]).resolve())} if step.get("patch") else {}
    return {**step, **nulls, **patch}


def _without_secrets(tree: Json) -> list[str]:
    """Replace secrets that the playbook itself holds by variables; returns their names."""
    named: list[str] = []
    server = tree.get("server") or {}
    for part in ("flags", "env"):
        if server.get(part):
            named += _secrets_in(server[part])
            server[part] = _with_variables(server[part])
    return named


def _secrets_of_steps(trial: LoadedTrial) -> list[str]:
    return [name for step in trial.model.steps for part in _CHANGES for name in _secrets_in(getattr(step, part))]


def _with_variables(values: Mapping[str, Any]) -> Json:
    """Flags, variables or dotted keys, with a variable of the laptop for each value that is a secret."""
    return {name: f"${{{_variable(name)}}}" if _is_secret(name, value) else value for name, value in values.items()}


def _secrets_in(values: Mapping[str, Any]) -> list[str]:
    return [_variable(name) for name, value in values.items() if _is_secret(name, value)]


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and names_a_secret(name) and not is_reference(value)


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name.rpartition(".")[2]).upper()


def _yaml(value: Json) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
