"""What a playbook wants, as the order that the host plays.

Pure: the same playbook and files give the same order, whatever the host looks like. ``spec`` is a hash over everything that makes the desired
state; a host that runs a good release of the same spec has nothing to do.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuops.builds.manifest import Tree, read_tree
from gpuops.engines import EngineFacts, facts
from gpuops.engines.measuring import load_words
from gpuops.errors import PlaybookError
from gpuops.playbook.loader import LoadedPlaybook
from gpuops.playbook.measuring import Bench
from gpuops.playbook.models import (
    BuildOverlay,
    BuildTree,
    ModelConfig,
    ModelHf,
    ModelPackage,
    ModelPath,
    RuntimeLock,
    RuntimePath,
)
from gpuops.playbook.probing import Probe
from gpuops.rollout import who

ORDER_VERSION = 1

_NO_CONTENT = ("playbook", "summary", "hooks", "restart", "proof")

Json = dict[str, Any]


def order(playbook: LoadedPlaybook, *, tree: Tree | None = None, reason: str | None = None) -> Json:
    """The order of kind ``up`` for a playbook.

    Args:
        tree: the build's folder as :func:`build_tree` read it, where the playbook names one.
    Raises:
        PlaybookError: flags that the engine refuses, files that cannot be read.
    """
    model = playbook.model
    engine = facts(model.engine.name, model.engine.version)
    prepare = {
        "runtime": _runtime(playbook),
        "model": _model(playbook),
        "build": _build(playbook, tree),
    }
    candidate = _candidate(playbook, engine)
    engine_order = _engine(playbook, engine)
    probes = [_probe(probe) for probe in model.probes]
    stock = replace(playbook, model=model.model_copy(update={"build": None}))
    return {
        **_head("up", model.service, reason),
        "on_controller_lost": model.on_controller_lost,
        "spec": _spec(prepare, candidate, engine),
        # The spec as it would be without a build: two releases of one base differ in their builds alone.
        "base": _spec({**prepare, "build": None}, _candidate(stock, engine), engine),
        "prepare": prepare,
        "candidate": candidate,
        "engine": engine_order,
        "probes": probes,
        "ladder": ladder(playbook),
        "performance": performance(playbook),
        "deadlines": _deadlines(playbook),
    }


def simple_order(
    kind: str, service: str, *, deadlines: Json, release: int | None = None, force: bool = False, reason: str | None = None
) -> Json:
    """An order of kind ``down``, ``restart``, ``restore`` or ``recover``: the host knows everything else."""
    return {**_head(kind, service, reason), "spec": None, "release": release, "force": force, "deadlines": deadlines}


def adoption(playbook: LoadedPlaybook, engine_version: str | None = None) -> Json:
    """What the host has to know to adopt a server that runs already: the arguments of the agent's verb but for who and which.

    Args:
        engine_version: of the running server, where the playbook wants another one.
    """
    model = playbook.model
    engine = facts(model.engine.name, engine_version or model.engine.version)
    return {
        "engine": _engine(playbook, engine),
        "probes": probes_of(playbook),
        "deadlines": _deadlines(playbook),
        "gpus": _gpus(playbook),
    }


def build_tree(playbook: LoadedPlaybook) -> Tree | None:
    """The build's folder on the laptop, hashed; None when the build is made on the host, or there is none."""
    build = playbook.model.build
    return read_tree(playbook.file(build.tree)) if isinstance(build, BuildTree) else None


def probes_of(playbook: LoadedPlaybook) -> list[Json]:
    """The playbook's probes as the agent takes them."""
    return [_probe(probe) for probe in playbook.model.probes]


def cells_of(playbook: LoadedPlaybook, names: Collection[str] | None = None) -> list[Json]:
    """The playbook's cells as the agent takes them, all or the named ones."""
    return [cell for cell in cells_of_bench(playbook.model.bench) if names is None or cell["name"] in names]


def speed_cells(playbook: LoadedPlaybook, names: Collection[str] | None = None) -> list[Json]:
    """Those of :func:`cells_of` whose throughput says something: not that of an open loop, which is what was asked."""
    return [cell for cell in cells_of(playbook, names) if "rate" not in cell]


def cells_of_bench(bench: Bench) -> list[Json]:
    """Cells as the agent takes them."""
    return [cell.model_dump(mode="json", exclude_none=True) for cell in bench.cells]


def ladder(playbook: LoadedPlaybook) -> Json | None:
    """The ladder's gate as the agent takes it; None when the playbook has none."""
    section = playbook.model.gates.ladder
    if section is None:
        return None
    sections = playbook.model.ladder.model_dump(mode="json", exclude_none=True)
    return {"level": section.level, "sections": sections, "load": load_words(playbook.model.engine.name)}


def performance(playbook: LoadedPlaybook) -> Json | None:
    """The performance gate as the agent takes it; None when the playbook has none."""
    section = playbook.model.gates.performance
    if section is None or section.gate == "off":
        return None
    return {
        "gate": section.gate,
        "cells": speed_cells(playbook, section.cells),
        "not_slower_than": section.not_slower_than,
        "deadline_s": playbook.model.bench.deadline_s,
        "load": load_words(playbook.model.engine.name),
    }


def operation_id() -> str:
    """A new operation id: the time, so that lists read well, and enough chance that two laptops never meet."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"


def digest(content: Any) -> str:
    """sha256 of canonical JSON, in hex."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _spec(prepare: Json, candidate: Json, engine: EngineFacts) -> str:
    """A hash over the desired state.

    It leaves out: deadlines, probes, gates and hooks ask, they do not change what runs; nor does how often it is started again; the playbook's text
    is only a record. Cards that are not chosen are no content either.
    """
    content = {
        "prepare": {
            "runtime": _identity(prepare["runtime"]),
            "model": _identity(prepare["model"]),
            "build": prepare["build"],
        },
        "candidate": {
            key: value for key, value in candidate.items() if key not in _NO_CONTENT and (key, value) != ("gpus", None)
        },
        "engine": [engine.name, engine.version],
    }
    return digest(content)


def _head(kind: str, service: str, reason: str | None) -> Json:
    return {"version": ORDER_VERSION, "kind": kind, "service": service, "op": operation_id(), "by": who.me(), "reason": reason}


def _runtime(playbook: LoadedPlaybook) -> Json:
    runtime = playbook.model.runtime
    if isinstance(runtime, RuntimePath):
        return {"kind": "path", "path": runtime.path}
    lock = playbook.asset(runtime.lock)
    files = {Path(name).name: playbook.asset(name) for name in runtime.files}
    content: Json = {"lock": lock, "files": files, "python": runtime.python, "torch_backend": runtime.torch_backend}
    if runtime.system_packages:
        content["system_packages"] = True
    return {"kind": "lock", "id": f"rt-{digest(content)[:12]}", **content, "download_bytes": _download_bytes(lock)}


def _model(playbook: LoadedPlaybook) -> Json:
    model = playbook.model.model
    warm = None if isinstance(model, ModelConfig) else model.warm
    return {**_model_source(playbook), **({} if warm is None else {"warm": warm})}


def _model_source(playbook: LoadedPlaybook) -> Json:
    model = playbook.model.model
    if isinstance(model, ModelPath):
        return {"kind": "path", "path": model.path}
    if isinstance(model, ModelConfig):
        texts = _folder(playbook, model.config)
        return {"kind": "config", "id": f"{Path(model.config).name}-{digest(texts)[:12]}", "files": texts}
    if isinstance(model, ModelHf):
        content: Json = {"repo": model.hf, "revision": model.revision}
        return {"kind": "hf", "id": f"{model.hf.replace('/', '--')}-{digest(content)[:12]}", **content}
    assert isinstance(model, ModelPackage)
    content = {
        "requirement": model.package,
        "wheel_sha256": model.wheel_sha256,
        "script": playbook.asset(model.convert),
        "args": list(model.args),
        "files": dict(model.files),
    }
    return {"kind": "package", "id": f"{model.package.split('=')[0]}-{digest(content)[:12]}", **content}


def _folder(playbook: LoadedPlaybook, folder: str) -> dict[str, str]:
    """The text files of a model's folder, by name."""
    names = sorted(path.name for path in playbook.file(folder).glob("*") if path.is_file())
    if "config.json" not in names:
        raise PlaybookError("the model's folder has no config.json", evidence=str(playbook.file(folder)), next="set model.config")
    return {name: playbook.asset(f"{folder}/{name}") for name in names}


def _build(playbook: LoadedPlaybook, tree: Tree | None) -> Json | None:
    build = playbook.model.build
    if build is None:
        return None
    if isinstance(build, BuildOverlay):
        recipe = {"overlay": list(build.overlay), "runtime": _identity(_runtime(playbook))}
        name = build.name or build.overlay[0].replace("==", "-")
        return {"kind": "overlay", "name": name, "requirements": list(build.overlay), "recipe": digest(recipe)}
    if tree is None:
        raise PlaybookError("the build's folder was not read", evidence=build.tree)
    return {"kind": "tree", "id": tree.id}


def _candidate(playbook: LoadedPlaybook, engine: EngineFacts) -> Json:
    model = playbook.model
    kept = not isinstance(model.model, ModelConfig) and model.model.keep == "engine"
    flags = engine.weight_cache.with_flags(model.server.flags) if kept else model.server.flags
    argv = engine.launch(flags=flags, bind=model.server.bind, served_model_name=model.served_model_name)
    env = {**engine.cache_environment(), **model.server.env}
    if isinstance(model.runtime, RuntimeLock) and model.runtime.system_packages:
        # The packages of the user's home would come before those of the environment.
        env = {"PYTHONNOUSERSITE": "1", **env}
    if model.build is not None:
        own = [model.server.env["PYTHONPATH"]] if "PYTHONPATH" in model.server.env else []
        env = {**env, "PYTHONPATH": ":".join(["@{pythonpath}", *own])}
    key = model.server.flags.get("api-key")
    return {
        "argv": argv,
        "env": env,
        "secrets": sorted(playbook.secret_values),
        "auth": f"Bearer {key}" if key else None,
        "port": model.server.port,
        "bind": model.server.bind,
        "served_model_name": model.served_model_name,
        "summary": summary(playbook),
        "hooks": {name: {"name": Path(file).name, "text": playbook.asset(file)} for name, file in model.hooks.files().items()},
        "restart": model.restart.model_dump(),
        "gpus": _gpus(playbook),
        **({"proof": "required"} if isinstance(model.build, BuildTree) and model.build.proof == "required" else {}),
        "playbook": model.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def summary(playbook: LoadedPlaybook) -> Json:
    """The few words by which people tell releases apart."""
    model = playbook.model
    build = model.build
    return {
        "engine": f"{model.engine.name} {model.engine.version}",
        "model": _model_name(playbook),
        "build": None
        if build is None
        else (build.name or build.overlay[0])
        if isinstance(build, BuildOverlay)
        else Path(build.tree).name,
        "flags": dict(model.server.flags),
    }


def _model_name(playbook: LoadedPlaybook) -> str:
    model = playbook.model.model
    if isinstance(model, ModelHf):
        return model.hf
    if isinstance(model, ModelPackage):
        return model.package
    return Path(model.config if isinstance(model, ModelConfig) else model.path).name


def _identity(part: Json) -> Json:
    """What makes a runtime or a model the same: its id, or its path."""
    return {key: part[key] for key in ("kind", "id", "path") if key in part}


def _probe(probe: Probe) -> Json:
    expect = {
        key: value for key, value in probe.expect.model_dump(mode="json").items() if value is not None and value is not False
    }
    question = {"ask": probe.ask} if probe.ask is not None else {"prompt": probe.prompt}
    return {"name": probe.name, **question, "expect": expect, "max_tokens": probe.max_tokens, "gate": probe.gate}


def _deadlines(playbook: LoadedPlaybook) -> Json:
    return playbook.model.deadlines.model_dump()


def _gpus(playbook: LoadedPlaybook) -> Any:
    gpus = playbook.model.gpus
    return list(gpus) if isinstance(gpus, tuple) else gpus


def _engine(playbook: LoadedPlaybook, engine: EngineFacts) -> Json:
    flags = playbook.model.server.flags
    first, step = _whole(flags.get("base-gpu-id"), 0), _whole(flags.get("gpu-id-step"), 1)
    return engine.as_order(schedulers=_schedulers(playbook), first_card=first, card_step=step)


def _schedulers(playbook: LoadedPlaybook) -> int | None:
    """How many scheduler processes the flags make: tensor times pipeline parallel, times data parallel where that is no part of the first."""
    flags = playbook.model.server.flags
    names = ["tp", "tp-size", "tensor-parallel-size", "pp-size", "pipeline-parallel-size"]
    if flags.get("enable-dp-attention") is not True:
        names += ["dp", "dp-size", "data-parallel-size"]
    size = 1
    for name in names:
        size *= _whole(flags.get(name), 1)
    return size


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _download_bytes(lock: str) -> int | None:
    """The sum of the sizes that the lock file notes behind its lines (``# 191794682 B``)."""
    sizes = [int(line.rpartition("# ")[2][:-2]) for line in lock.splitlines() if line.rstrip().endswith(" B") and _sized(line)]
    return sum(sizes) or None


def _sized(line: str) -> bool:
    return not line.startswith("#") and line.rstrip().rpartition("# ")[2][:-2].isdigit()
