"""The files of a record that play it again: the base playbook as it was, and the trial on it.

They hold no secret: where one stood in the playbook itself, a variable stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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

Json = dict[str, Any]


def playbook_text(trial: LoadedTrial, path: Path | None, overrides: Sequence[str], host: str | None, folder: Path) -> str:
    """The base, with all that it extends and all overrides, as one playbook that lies in ``folder``: its paths start from there."""
    located = assemble(path or trial.base, base_overrides(trial, overrides), host).tree
    tree: Json = plain(relocate(located, folder.absolute()))
    named = _without_secrets(tree)
    head = [
        "# The base of a trial as it was played: gpuops trial trial.yaml plays it again, gpuops up -p playbook.yaml starts the base alone.",
        *(f"# A secret stood in the playbook itself; export {name} before." for name in named),
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
    nulls = {part: dict(getattr(model, part)) for part in ("env", "flags", "set") if getattr(model, part)}
    patch = {"patch": str(trial.beside(step["patch"]).resolve())} if step.get("patch") else {}
    return {**step, **nulls, **patch}


def _without_secrets(tree: Json) -> list[str]:
    """Replace secrets that the playbook itself holds by variables, listed under its ``secrets``; returns their names."""
    named: list[str] = []
    server = tree.get("server") or {}
    for part in ("flags", "env"):
        for name, value in (server.get(part) or {}).items():
            if isinstance(value, str) and names_a_secret(name) and not is_reference(value):
                variable = re.sub(r"\W", "_", name).upper()
                server[part][name] = f"${{{variable}}}"
                named.append(variable)
    if named:
        tree["secrets"] = list(dict.fromkeys([*(tree.get("secrets") or ()), *named]))
    return named


def _yaml(value: Json) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
