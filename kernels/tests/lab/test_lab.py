"""The lab's tools without a card: against a fake engine that really listens, and over made-up answers."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LAB = Path(__file__).parents[2] / "lab"
FAKE = Path(__file__).parent / "fake"


@pytest.fixture(scope="module", autouse=True)
def lab_on_the_path() -> Any:
    sys.path.insert(0, str(LAB))
    yield
    sys.path.remove(str(LAB))


@pytest.fixture
def judge() -> ModuleType:
    return importlib.import_module("judge")


def _answers(client: ModuleType, tokens: list[int], logprob: float) -> list[Any]:
    return [client.Answer(tuple(tokens), tuple({token: logprob, 9: -3.0} for token in tokens))]


def test_equal_answers_are_at_distance_zero(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    found = judge.distance(_answers(client, [1, 2], -1.0), _answers(client, [1, 2], -1.0))
    assert (found.equal, found.mean, found.worst, found.positions) == (1, 0.0, 0.0, 2)


def test_positions_beyond_the_first_difference_are_not_compared(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    found = judge.distance(_answers(client, [1, 2, 3], -1.0), _answers(client, [1, 5, 3], -1.5))
    assert (found.equal, found.positions) == (0, 2)
    assert found.worst == 0.5


def test_answers_with_nothing_in_common_are_an_error_and_not_a_distance_of_zero(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    left, right = [client.Answer((1,), ({1: -1.0},))], [client.Answer((2,), ({2: -1.0},))]
    with pytest.raises(ValueError, match="no token in common"):
        judge.distance(left, right)


def _result(client: ModuleType, logprob: float, rate: float, together: float | None = None) -> dict[str, Any]:
    kinds = {"one_by_one": logprob, "together": logprob if together is None else together}
    answers = {kind: client.as_json(_answers(client, [1, 2], value)) for kind, value in kinds.items()}
    return {**answers, "tokens_per_s": {"1": rate, "16": rate, "64": rate}}


def test_ours_within_stocks_own_noise_and_twice_as_fast_passes(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    report = judge.judge(
        {"stock": _result(client, -1.0, 10.0, -1.01), "ours": _result(client, -1.005, 20.0), "scale": _result(client, -1.5, 20.0)}
    )
    assert report.passed, report.lines


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ours": (-1.5, 20.0)}, "ours against stock: BEYOND THE BOUND"),
        ({"scale": (-1.0, 20.0)}, "scale against stock: NOT NOTICED"),
        ({"ours": (-1.0, 15.0)}, "C=64: 1.50x stock, goal 2x: MISSED"),
    ],
)
def test_the_report_fails(judge: ModuleType, changed: dict[str, tuple[float, float]], words: str) -> None:
    client = importlib.import_module("client")
    figures = {"stock": (-1.0, 10.0), "ours": (-1.0, 20.0), "scale": (-1.5, 20.0), **changed}
    report = judge.judge({name: _result(client, *each) for name, each in figures.items()})
    assert not report.passed and any(words in line for line in report.lines), report.lines


def _compare(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = tmp_path / "lab"
    root.mkdir(exist_ok=True)
    if not (root / "site").exists():
        (root / "site").symlink_to(FAKE)
    environment = {**os.environ, "GPUOPS_LAB": str(root), "GPUOPS_LAB_PORT": str(port)}
    argv = [sys.executable, str(LAB / "compare.py"), *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_case_is_started_asked_and_stopped_and_leaves_its_results(tmp_path: Path) -> None:
    ran = _compare(tmp_path, "run", "stock", "--rounds", "1")
    assert ran.returncode == 0, ran
    result = json.loads((tmp_path / "lab" / "results" / "stock.json").read_text())
    assert len(result["one_by_one"]) == len(result["together"]) == 32
    assert set(result["tokens_per_s"]) == {"1", "16", "64"}
    assert result["step"]["64"]["kernels"] == 3 and result["step"]["64"]["gpu_us"] == 6.0
    pid = int((tmp_path / "lab" / "servers" / "stock" / "pid").read_text())
    assert not importlib.import_module("server")._group_lives(pid)


def test_the_report_notices_a_plant(tmp_path: Path) -> None:
    for case in ("stock", "ours", "scale"):
        assert _compare(tmp_path, "run", case, "--only", "answers").returncode == 0
    report = _compare(tmp_path, "report")
    assert "ours against stock: within the bound. one_by_one: 32/32 equal" in report.stdout
    assert "scale against stock: noticed" in report.stdout


def test_a_server_that_dies_is_reported_with_the_line_that_says_why(tmp_path: Path) -> None:
    ran = _compare(tmp_path, "run", "compile-2")
    assert ran.returncode == 1
    assert "Capture cuda graph failed: SubprocException" in ran.stdout
    assert "DIED" in _compare(tmp_path, "report").stdout


def test_the_pack_is_installed_as_its_wheel_would_be(tmp_path: Path) -> None:
    _compare(tmp_path, "run", "stock", "--only", "throughput", "--rounds", "1")
    (points,) = (tmp_path / "lab" / "pack").glob("gpuops_kernels-*.dist-info/entry_points.txt")
    assert points.read_text() == "[sglang.srt.plugins]\ngpuops_kernels = gpuops_kernels.plugin:register\n"


def test_weights_have_the_scale_of_a_trained_model() -> None:
    torch = pytest.importorskip("torch", reason="the initialisation is torch")
    sys.path.insert(0, str(LAB / "plugin"))
    weights = importlib.import_module("gpuops_lab.weights")
    assert weights.spread("model.layers.0.self_attn.q_norm.weight", (1024,), torch.bfloat16) == (1.0, 0.1)
    assert weights.spread("model.layers.0.self_attn.wq_b.weight", (32768, 1024), torch.float8_e4m3fn) == (0.0, 1.0)
    assert weights.spread("model.layers.0.self_attn.wq_b.weight_scale_inv", (256, 8), torch.float32) == (2.0**-5, 0.0)
    assert weights.spread("lm_head.weight", (129280, 4096), torch.bfloat16) == (0.0, 4 / 64)
