"""The record of a trial: what was asked, what was tried on what, what happened, and what it means. Built here, kept as a folder.

``records/ID/`` holds ``record.json``, the same for people as ``record.md``, and ``playbook.yaml`` with ``trial.yaml``, which play it again.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops import __version__
from gpuops.agent import shared
from gpuops.errors import Exit, GpuopsError
from gpuops.rollout.desired import digest
from gpuops.trials import markdown
from gpuops.trials.files import whole_folder
from gpuops.trials.load import LoadedTrial
from gpuops.trials.redact import Redactor
from gpuops.trials.state import State
from gpuops.trials.steps import Prepared, plan_of
from gpuops.trials.verdict import judge, speed, unexpected

VERSION = 1
NAME, PAGE, PLAYBOOK, TRIAL = "record.json", "record.md", "playbook.yaml", "trial.yaml"

# Packages of a runtime whose versions tell results apart.
_PACKAGES = (
    *("torch", "triton", "sglang", "sglang-kernel", "sgl-kernel", "flashinfer-python", "sgl-deep-gemm", "tilelang"),
    *("transformers", "gpuops-kernels", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)

Json = dict[str, Any]

# What a file that was cut, altered or written by another version makes of reading it.
_NOT_OF_ITS_FORM = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)

_RUNG = ("rung", "name", "gate", "verdict", "answer", "expectation", "detail")


@dataclass(frozen=True)
class Stored:
    """A record in its folder."""

    path: Path
    record: Json

    @property
    def id(self) -> str:
        return self.path.name


def build(trial: LoadedTrial, made: Sequence[Prepared], state: State, redact: Redactor, by: str, now: float) -> Json:
    """The record of a complete trial; secrets in it are replaced."""
    model = trial.model
    variants = {each.variant.name: each for each in made}
    plan = plan_of(trial, list(variants))
    found = _found(plan, state)
    expected = {name: own.expect if (own := each.variant.own) else None for name, each in variants.items()}
    verdict = judge(state.results, model.verdict, found["text"] if found else None)
    fingerprints = _fingerprints(state.results)
    record = {
        "version": VERSION,
        "id": record_id(trial.name, state.began),
        "kind": "trial",
        "name": trial.name,
        "question": model.question,
        "hypothesis": model.hypothesis,
        "mode": model.mode,
        "find": model.find if model.mode == "bisect" else None,
        "base": {"playbook": str(trial.base), "service": state.service, "sha256": digest(_plain(made[0].playbook))},
        "by": by,
        "began": state.began,
        "ended": now,
        "hosts": list(state.hosts),
        "steps": [_step(result, variants[result["step"]], fingerprints) for result in state.results],
        "not_played": [name for name in variants if name not in state.verdicts],
        "finding": found,
        "unexpected": unexpected(state.results, expected),
        "verdict": verdict.to_json(),
        "fingerprints": fingerprints,
        "operations": list(state.operations),
        "gpuops": __version__,
        "commands": _commands(made),
    }
    told: Json = redact(record)
    return told


def record_id(name: str, began: float) -> str:
    """A record's id: when the trial began, and its name."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(began))}-{name}"


def save(folder: Path, record: Json, files: Mapping[str, str]) -> Path:
    """Write a record's folder with these further files, whole or not at all; returns its path. Raises GpuopsError."""
    path = folder / str(record["id"])
    with whole_folder(path) as incoming:
        for name, text in {NAME: json.dumps(record, indent=1, ensure_ascii=False) + "\n", **files}.items():
            (incoming / name).write_text(text, encoding="utf-8")
    return path


def listed(folder: Path) -> list[Stored]:
    """Every record, the newest first. Those that cannot be read (:func:`unreadable`) are left out."""
    found = []
    for path in _folders(folder):
        with contextlib.suppress(GpuopsError):
            found.append(_stored(path))
    return found


def unreadable(folder: Path) -> list[GpuopsError]:
    """Why records of the folder are left out of the list."""
    errors = []
    for path in _folders(folder):
        try:
            _stored(path)
        except GpuopsError as error:
            errors.append(error)
    return errors


def find(folder: Path, word: str | None) -> Stored:
    """A record by its id or a part of it; by the name of a trial, the newest of that trial; the newest of all without a word.

    Raises:
        GpuopsError: it cannot be read; (usage) there is none, or several.
    """
    known = listed(folder)
    exact = [each for each in known if word in (None, each.id, each.record.get("name"))]
    hits = exact or [each for each in known if word is not None and word in each.id]
    if exact or len(hits) == 1:
        return hits[0]
    if word is not None and not hits:
        for path in _folders(folder):
            if word in path.name:
                return _stored(path)
    raise GpuopsError(
        f"{word} names {len(hits)} records" if hits else "there is no record" + (f" {word}" if word else ""),
        evidence=", ".join(each.id for each in (hits or known)[:5]) or f"{folder} holds none",
        next="gpuops records list",
        code=Exit.USAGE,
        kind="record",
    )


def _folders(folder: Path) -> list[Path]:
    """The folders of records, the newest first; none of what is being written, or was when its process ended."""
    found = sorted(folder.glob(f"*/{NAME}"), reverse=True)
    return [path.parent for path in found if not path.parent.name.startswith(".")]


def _stored(path: Path) -> Stored:
    """The record in a folder. Raises GpuopsError when it cannot be read."""
    try:
        return Stored(path, _read(path))
    except _NOT_OF_ITS_FORM as error:
        raise GpuopsError(
            f"the record {path.name} cannot be read",
            evidence=f"{path / NAME}: {f'it lacks {error}' if isinstance(error, KeyError) else error}",
            next=f"look at {path / PAGE}",
            kind="record",
        ) from error


def _read(path: Path) -> Json:
    """The record in a folder, when all that is shown of it is there. Raises one of :data:`_NOT_OF_ITS_FORM`."""
    record = json.loads((path / NAME).read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise TypeError("it is no object")
    if record.get("version") != VERSION:
        raise ValueError(f"it is of version {record.get('version')}, this gpuops reads {VERSION}")
    markdown.page(record)
    for key in ("id", "name", "question", "mode"):
        if not isinstance(record[key], str):
            raise TypeError(f"{key} is no text: {record[key]!r}")
    if not record["question"].strip() or not isinstance(record["verdict"]["verdict"], str):
        raise ValueError("it has no question, or no verdict")
    return {**record, "finding": record.get("finding")}


def _found(plan: Any, state: State) -> Json | None:
    found = shared.module("experiment_plan").found(plan, state.verdicts)
    return None if found is None else {"step": found.step, "text": found.text}


def _step(result: Json, made: Prepared, fingerprints: list[Json]) -> Json:
    own = made.variant.own
    keep = ("verdict", "class", "kind", "reason", "evidence", "next", "release", "ready_s", "seconds")
    return {
        "name": result["step"],
        "changes": list(made.variant.changes),
        "why": own.why if own else None,
        "source": own.source if own else None,
        "expect": own.expect if own else None,
        **{key: result.get(key) for key in keep},
        "diagnosis": result.get("diagnosis"),
        "probes": {
            "asked": len(result.get("probes") or ()),
            "wrong": [probe["name"] for probe in result.get("probes") or () if not probe["passed"]],
        },
        "ladder": [{key: rung[key] for key in _RUNG} for rung in result.get("ladder") or ()],
        "figures": [_figures(block) for block in result.get("blocks") or ()],
        "build": made.tree.id if made.tree else None,
        "build_path": _folder(made) if made.tree else None,
        "fingerprint": fingerprints.index(_fingerprint(result)) if result.get("fingerprint") else None,
    }


def _figures(block: Json) -> Json:
    told = {"cell": block["cell"], "client": block["client"], "valid": block["valid"], "faults": block["faults"]}
    return {**told, "tok_s": speed(block), "figures": block["figures"]} if block["valid"] else told


def _fingerprints(results: Sequence[Json]) -> list[Json]:
    """What the steps ran on, each different one once."""
    found: list[Json] = []
    for result in results:
        if result.get("fingerprint") and (here := _fingerprint(result)) not in found:
            found.append(here)
    return found


def _fingerprint(result: Json) -> Json:
    told = result["fingerprint"]
    installed = (told.get("runtime") or {}).get("distributions") or {}
    return {
        "host": (told.get("host") or {}).get("hostname"),
        "card": told.get("card"),
        "driver": told.get("driver"),
        "kernel": told.get("kernel"),
        "python": (told.get("host") or {}).get("python"),
        "packages": {name: installed[name] for name in _PACKAGES if name in installed},
        "model": {key: value for key, value in (told.get("model") or {}).items() if key in ("path", "identity", "bytes")},
        "build": (told.get("build") or {}).get("id"),
    }


def _plain(playbook: Any) -> Json:
    dumped: Json = playbook.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: value for key, value in dumped.items() if key not in ("host", "notify")}


def _commands(made: Sequence[Prepared]) -> Json:
    """What plays the trial again, and what starts each step alone; in the record's folder."""
    alone = {}
    for each in made:
        sets = " ".join(f"--set {shlex.quote(text)}" for text in each.variant.overrides)
        build = f" --set {shlex.quote(f'build.tree={_folder(each)}')}" if each.tree is not None else ""
        alone[each.variant.name] = f"gpuops up -p {PLAYBOOK} {sets}{build}".rstrip()
    return {"trial": f"gpuops trial {TRIAL}", "steps": alone}


def _folder(made: Prepared) -> str:
    assert made.tree is not None
    return str(next(iter(made.tree.parts.values())).parent)
