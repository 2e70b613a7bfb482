"""A record taken elsewhere: its files with their paths mended, and a step of it as a playbook of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gpuops.errors import Exit, GpuopsError
from gpuops.playbook.layers import assemble
from gpuops.playbook.locate import plain
from gpuops.playbook.paths import relocate
from gpuops.trials.files import whole_folder
from gpuops.trials.load import load
from gpuops.trials.record import NAME, PAGE, PLAYBOOK, TRIAL, Stored
from gpuops.trials.steps import Variant, variants

STEP = "step.yaml"


def export(found: Stored, out: Path, step: str | None) -> list[Path]:
    """Write a record into the new folder ``out``; returns the files.

    Args:
        step: the step that becomes ``step.yaml``, a playbook laid over ``playbook.yaml``.
    Raises:
        GpuopsError: the record has no such step, or lacks a file; ``out`` cannot be written, and is not there then.
    """
    layer = None if step is None else _layer(found, _variant(found, step))
    tree = plain(relocate(assemble(found.path / PLAYBOOK).tree, out.absolute()))
    texts = {
        NAME: _text(found, NAME),
        PAGE: _text(found, PAGE),
        PLAYBOOK: _yaml(tree),
        TRIAL: _text(found, TRIAL),
        **({} if layer is None else {STEP: _yaml(layer)}),
    }
    with whole_folder(out) as incoming:
        for name, text in texts.items():
            (incoming / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def _text(found: Stored, name: str) -> str:
    try:
        return (found.path / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GpuopsError(
            f"record {found.id} is not whole: its {name} cannot be read",
            evidence=str(error),
            next="gpuops records list",
            kind="record",
        ) from error


def _variant(found: Stored, step: str) -> Variant:
    known = variants(load(found.path / TRIAL))
    for variant in known:
        if variant.name == step:
            return variant
    raise GpuopsError(
        f"record {found.id} has no step {step}",
        evidence=f"steps: {', '.join(variant.name for variant in known)}",
        next=f"gpuops records show {found.id}",
        code=Exit.USAGE,
        kind="usage",
    )


def _layer(found: Stored, variant: Variant) -> dict[str, Any]:
    """The step's changes as a playbook over the base."""
    tree: dict[str, Any] = {"extends": PLAYBOOK}
    for text in variant.overrides:
        key, _, value = text.partition("=")
        *above, last = key.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[last] = json.loads(value)
    own: str | None = next((each["build_path"] for each in found.record["steps"] if each["name"] == variant.name), None)
    if variant.build is False:
        tree["build"] = None
    elif own is not None and (variant.build or variant.patch):
        tree["build"] = {"tree": own}
    return tree


def _yaml(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
