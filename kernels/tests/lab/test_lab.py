"""The lab's tools without a card: against a fake engine that really listens, and over made-up answers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
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
    assert (found.equal, found.mean, found.median, found.worst, found.positions, found.prefill) == (1, 0.0, 0.0, 0.0, 1, 0.0)


def test_positions_beyond_the_first_difference_are_not_compared(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    found = judge.distance(_answers(client, [1, 2, 3, 4], -1.0), _answers(client, [1, 2, 5, 4], -1.5))
    assert (found.equal, found.positions) == (0, 2)
    assert found.worst == 0.5


def test_the_first_token_is_of_prefill_and_does_not_count_as_decode(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    left, right = _answers(client, [1, 2], -1.0), _answers(client, [1, 2], -1.0)
    right[0].top[0][1] = -3.0
    found = judge.distance(left, right)
    assert (found.mean, found.prefill) == (0.0, 1.0)


def test_only_the_first_prompts_have_to_be_equal(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    left = [_answers(client, [1, 2], -1.0)[0]] * (judge.EQUAL_OF + 1)
    right = [*left[: judge.EQUAL_OF], _answers(client, [1, 3], -1.0)[0]]
    found = judge.distance(left, right)
    assert (found.equal, found.prompts) == (judge.EQUAL_OF, judge.EQUAL_OF)


def test_answers_with_nothing_in_common_are_an_error_and_not_a_distance_of_zero(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    left, right = [client.Answer((1, 1), ({1: -1.0}, {1: -1.0}))], [client.Answer((1, 2), ({1: -1.0}, {2: -1.0}))]
    with pytest.raises(ValueError, match="no token of decode in common"):
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
        ({"stock-again": (-2.0, 10.0)}, "scale against stock: NOT NOTICED"),
    ],
)
def test_the_report_fails(judge: ModuleType, changed: dict[str, tuple[float, float]], words: str) -> None:
    client = importlib.import_module("client")
    figures = {"stock": (-1.0, 10.0), "ours": (-1.0, 20.0), "scale": (-1.5, 20.0), **changed}
    report = judge.judge({name: _result(client, *each) for name, each in figures.items()})
    assert not report.passed and any(words in line for line in report.lines), report.lines


@pytest.mark.parametrize("name", ["ours", "only-mhc", "scale", "stock", "shadow"])
def test_the_report_fails_when_a_server_died_whatever_it_had_answered(judge: ModuleType, name: str) -> None:
    client = importlib.import_module("client")
    figures = {"stock": (-1.0, 10.0, -1.01), "ours": (-1.005, 20.0), "scale": (-1.5, 20.0)}
    results = {case: _result(client, *each) for case, each in figures.items()}
    assert judge.judge(results).passed
    for answers in ({}, results.get(name, {})):
        report = judge.judge({**results, name: {**answers, "died": "illegal memory access"}})
        assert not report.passed and f"{name}: DIED: illegal memory access" in report.lines


def test_the_report_passes_without_a_step_of_torch_compile_that_died(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    results = {"stock": _result(client, -1.0, 10.0), "ours": _result(client, -1.0, 20.0)}
    assert judge.judge({**results, "compile-3": {"died": "SubprocException"}}).passed


def test_the_report_fails_when_nothing_of_the_pack_was_compared(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    report = judge.judge({"stock": _result(client, -1.0, 10.0, -1.01), "scale": _result(client, -1.5, 20.0)})
    assert not report.passed
    assert "ours against stock: NOT COMPARED, no server with the pack has answered" in report.lines


def _seen(right: float, planted: float) -> dict[str, Any]:
    summary = {"calls": 3, "largest": 0.0}
    return {"right": {**summary, "worst": right, "median": right}, "scale": {**summary, "worst": planted, "median": planted}}


@pytest.mark.parametrize(
    ("family", "seen", "words"),
    [
        ("mhc.post", _seen(1e-3, 1.0), "shadow, mhc.post: BEYOND THE BOUND"),
        ("mhc.post", _seen(float("inf"), 1.0), "shadow, mhc.post: BEYOND THE BOUND"),
        ("mla_decode.out", _seen(1e-9, 1e-4), "shadow, mla_decode with scale: NOT NOTICED"),
        ("indexer.logits", None, "shadow, indexer.logits: NOT COMPARED"),
    ],
)
def test_the_shadow_fails(judge: ModuleType, family: str, seen: dict[str, Any] | None, words: str) -> None:
    every = {key: _seen(1e-9, 0.1) for key in judge.SHADOW_BOUNDS}
    assert judge.judge({"shadow": {"shadow": every}}).passed
    changed = {key: each for key, each in {**every, family: seen}.items() if each is not None}
    report = judge.judge({"shadow": {"shadow": changed}})
    assert not report.passed and any(words in line for line in report.lines), report.lines


def test_a_compiled_server_is_told_in_one_line(judge: ModuleType) -> None:
    client = importlib.import_module("client")
    compiled = {**_result(client, -1.0, 30.0), "ready_s": 99.0}
    lines = judge.judge({"stock": _result(client, -1.0, 10.0), "ours": _result(client, -1.0, 20.0), "compile-3": compiled}).lines
    assert lines[-1] == (
        "compile-3: captures: yes, 99 s; serves: yes; right: yes; faster: C=1 1.50x ours, C=16 1.50x ours, C=64 1.50x ours"
    )


def _compare(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    root = tmp_path / "lab"
    root.mkdir(exist_ok=True)
    if not (root / "site").exists():
        (root / "site").symlink_to(FAKE)
    environment = {**os.environ, "GPUOPS_LAB": str(root)}
    argv = [sys.executable, str(LAB / "compare.py"), *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_case_is_started_asked_and_stopped_and_leaves_its_results(tmp_path: Path) -> None:
    ran = _compare(tmp_path, "run", "stock", "--rounds", "1")
    assert ran.returncode == 0, ran
    result = json.loads((tmp_path / "lab" / "results" / "stock.json").read_text())
    assert len(result["one_by_one"]) == len(result["together"]) == 64
    assert set(result["tokens_per_s"]) == {"1", "16", "64"}
    assert result["step"]["64"]["kernels"] == 3 and result["step"]["64"]["gpu_us"] == 6.0
    pid = int((tmp_path / "lab" / "servers" / "stock" / "pid").read_text())
    assert not importlib.import_module("server")._group_lives(pid)


def test_a_server_that_is_started_anew_and_dies_does_not_keep_what_an_earlier_one_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _compare(tmp_path, "run", "ours", "--only", "answers").returncode == 0
    monkeypatch.setenv("FAKE_DIES", "1")
    assert _compare(tmp_path, "run", "ours", "--only", "answers").returncode == 1
    result = json.loads((tmp_path / "lab" / "results" / "ours.json").read_text())
    assert "SubprocException" in result["died"] and "one_by_one" not in result


def test_the_report_notices_a_plant(tmp_path: Path) -> None:
    for case in ("stock", "ours", "scale"):
        assert _compare(tmp_path, "run", case, "--only", "answers").returncode == 0
    report = _compare(tmp_path, "report")
    assert "ours against stock: within the bound. one_by_one: 0.00 of the bound, 32/32 equal" in report.stdout
    assert "scale against stock: noticed" in report.stdout


def test_servers_that_are_up_at_the_same_time_are_asked_and_kept_and_stopped(tmp_path: Path) -> None:
    server = importlib.import_module("server")
    assert _compare(tmp_path, "run", "stock", "ours", "--at-once", "--keep", "--only", "answers").returncode == 0
    pids = {name: int((tmp_path / "lab" / "servers" / name / "pid").read_text()) for name in ("stock", "ours")}
    assert all(server._group_lives(pid) for pid in pids.values())
    words = ("run", "stock", "ours", "scale", "--at-once", "--alive", "--only", "throughput", "--rounds", "1")
    assert _compare(tmp_path, *words).returncode == 0
    assert {name: int((tmp_path / "lab" / "servers" / name / "pid").read_text()) for name in pids} == pids
    assert not any(server._group_lives(pid) for pid in pids.values())
    result = json.loads((tmp_path / "lab" / "results" / "ours.json").read_text())
    assert "one_by_one" in result and set(result["tokens_per_s"]) == {"1", "16", "64"}
    assert not (tmp_path / "lab" / "results" / "scale.json").exists()
    assert _compare(tmp_path, "stop", "stock", "scale").returncode == 0


def test_one_server_that_dies_does_not_end_the_others(tmp_path: Path) -> None:
    assert _compare(tmp_path, "run", "compile-2", "ours", "--at-once", "--only", "answers").returncode == 1
    assert "one_by_one" in json.loads((tmp_path / "lab" / "results" / "ours.json").read_text())


def test_the_shadow_is_asked_and_judged(tmp_path: Path) -> None:
    assert _compare(tmp_path, "run", "shadow").returncode == 0
    report = _compare(tmp_path, "report")
    assert report.returncode == 0
    assert "shadow, mla_decode with scale: noticed" in report.stdout


def test_a_server_that_dies_is_reported_with_the_line_that_says_why(tmp_path: Path) -> None:
    ran = _compare(tmp_path, "run", "compile-2")
    assert ran.returncode == 1
    assert "Capture cuda graph failed: SubprocException" in ran.stdout
    assert "DIED" in _compare(tmp_path, "report").stdout


def test_the_pack_is_installed_as_its_wheel_would_be(tmp_path: Path) -> None:
    _compare(tmp_path, "run", "stock", "--only", "throughput", "--rounds", "1")
    (points,) = (tmp_path / "lab" / "pack").glob("*/gpuops_kernels-*.dist-info/entry_points.txt")
    assert points.read_text() == "[sglang.srt.plugins]\ngpuops_kernels = gpuops_kernels.plugin:register\n"


def test_weights_have_the_scale_of_a_trained_model() -> None:
    torch = pytest.importorskip("torch", reason="the initialisation is torch")
    sys.path.insert(0, str(LAB / "plugin"))
    weights = importlib.import_module("gpuops_lab.weights")
    assert weights.spread("model.layers.0.self_attn.q_norm.weight", (1024,), torch.bfloat16) == (1.0, 0.1)
    assert weights.spread("model.layers.0.self_attn.wq_b.weight", (32768, 1024), torch.float8_e4m3fn) == (0.0, 1.0)
    assert weights.spread("model.layers.0.self_attn.wq_b.weight_scale_inv", (256, 8), torch.float32) == (2.0**-5, 0.0)
    assert weights.spread("model.layers.0.mlp.experts.w2_weight_scale_inv", (32, 32, 16), torch.float32) == (2.0**-11, 0.0)
    assert weights.spread("lm_head.weight", (129280, 4096), torch.bfloat16) == (0.0, 4 / 64)


def test_all_experts_of_a_layer_are_the_same() -> None:
    torch = pytest.importorskip("torch", reason="the initialisation is torch")
    sys.path.insert(0, str(LAB / "plugin"))
    weights = importlib.import_module("gpuops_lab.weights")
    model = torch.nn.Module()
    model.mlp = torch.nn.Module()
    model.mlp.experts = torch.nn.Module()
    model.mlp.experts.w2_weight = torch.nn.Parameter(torch.zeros(3, 8, 4))
    weights.initialize(model)
    first, *others = model.mlp.experts.w2_weight
    assert first.std() > 0 and all(torch.equal(first, other) for other in others)


def test_ranks_draw_their_own_share_of_what_is_cut_up_and_the_same_of_what_is_not() -> None:
    torch = pytest.importorskip("torch", reason="the initialisation is torch")
    sys.path.insert(0, str(LAB / "plugin"))
    weights = importlib.import_module("gpuops_lab.weights")

    def module(kind: str, **of: object) -> object:
        made = type(kind, (torch.nn.Module,), {})()
        vars(made).update(of)
        made.weight = torch.nn.Parameter(torch.zeros(8, 4))
        return made

    def model(rank: int, ranks: int) -> object:
        made = module("Attention", tp_rank=rank, tp_size=ranks)
        made.wq_a = module("ReplicatedLinear")
        made.wq_b = module("ColumnParallelLinear", tp_rank=rank, tp_size=ranks)
        made.wo_b = module("RowParallelLinear", tp_rank=0, tp_size=1)
        made.experts = module("FusedMoE", moe_tp_rank=rank, moe_tp_size=ranks)
        made.head = module("VocabParallelEmbedding", shard_indices=types.SimpleNamespace(org_vocab_start_index=rank * 64640))
        weights.initialize(made)
        return made

    first, second, alone = (dict(model(*which).named_parameters()) for which in ((0, 2), (1, 2), (0, 1)))
    same = {name for name in first if torch.equal(first[name], second[name])}
    assert same == {"weight", "wq_a.weight", "wo_b.weight"}
    assert all(torch.equal(first[name], alone[name]) for name in alone)


def _traced(folder: Path, *calls: tuple[str, int]) -> Path:
    events = [{"ph": "X", "cat": "kernel", "name": name, "dur": 2.0} for name, count in calls for _ in range(count)]
    path = folder / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_trace_that_holds_one_step_less_than_was_asked_for_is_divided_by_what_it_holds(tmp_path: Path) -> None:
    client = importlib.import_module("client")
    of_seven = client.count_kernels(_traced(tmp_path, ("attention", 42), ("norm", 84), ("sampler", 8)), 8)
    assert (of_seven["steps"], of_seven["gpu_us"]) == (7, round(134 * 2.0 / 7, 1))
    of_eight = client.count_kernels(_traced(tmp_path, ("attention", 48), ("norm", 96)), 8)
    assert (of_eight["steps"], of_eight["kernels"]) == (8, 18)
