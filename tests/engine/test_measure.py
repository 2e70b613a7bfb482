"""Measuring the real engine: its own client, its own counters, the ladder; and its client against a server that fails."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from lab import REPOSITORY, Lab

sys.path.insert(0, str(REPOSITORY / "tests" / "unit" / "measure"))

from fault_server import KINDS, FaultServer
from gpuops_agent import block, load_client
from gpuops_agent.load_run import Cell
from gpuops_agent.releases import Release
from measuring import measured, target

from gpuops.engines.measuring import load_words

# What a chat's prompt is made with.
TOKENIZER = ("config.json", "tokenizer.json", "tokenizer_config.json")


def test_bench_measures_by_the_engines_own_client_and_agrees_with_its_counters(serving: Lab) -> None:
    ran = serving.run("bench", "--json")
    assert ran.code == 0, ran
    assert ran.json["client"] == "sglang.benchmark.rust_client"
    assert [each["cell"]["name"] for each in ran.json["blocks"]] == ["c1", "c4", "prefill-512"]
    for each in ran.json["blocks"]:
        generated = each["counters"]["after"]["generated"] - each["counters"]["before"]["generated"]
        assert generated == each["cell"]["requests"] * each["cell"]["output_tokens"]
        assert each["figures"]["ttft_ms"]["p50"] > 0
    kept = serving.service / "releases" / str(ran.json["release"]) / "measurements.jsonl"
    assert len(kept.read_text().splitlines()) >= 3


def test_a_second_measurement_is_compared_with_the_first(serving: Lab) -> None:
    serving.run("bench", "--cell", "prefill-512")
    ran = serving.run("bench", "--cell", "prefill-512")
    assert ran.code == 0, ran
    assert "against its own last measurement" in ran.out


def test_the_whole_ladder_is_right_and_its_reference_is_kept(serving: Lab) -> None:
    ran = serving.run("smoke", "--level", "8", "--json")
    assert ran.code == 0, ran
    assert {rung["name"]: rung["verdict"] for rung in ran.json["rungs"]} == dict.fromkeys(
        ("identity", "answers", "arithmetic", "needles", "mixed", "logprobs", "soak"), "right"
    )
    reference = serving.service / "releases" / str(ran.json["release"]) / "logprobs.json"
    assert len(json.loads(reference.read_text())["scores"]) == 4
    spoken = json.loads(reference.with_name("continuations.json").read_text())
    assert [len(answer["ids"]) for answer in spoken["alone"] + spoken["together"]] == [12] * 8


def engines_client(serving: Lab, server: FaultServer, folder: Path) -> block.Target:
    document = serving.release(serving.status()["release"])
    release = Release(1, folder, {"argv": document["argv"], "env": document["env"]})
    client = load_client.find(release, load_words())
    assert client is not None
    made = target(server, folder, client, document["argv"][0])
    for name in TOKENIZER:
        shutil.copy(Path(document["model"]["path"]) / name, folder / "model" / name)
    return made


@pytest.mark.failure_mode("fast-because-broken")
@pytest.mark.parametrize(
    "path", ["native", pytest.param("completions", marks=pytest.mark.slow), pytest.param("chat", marks=pytest.mark.slow)]
)
def test_every_fault_is_rejected_on_every_path_of_the_engines_client_and_clean_runs_are_not(
    serving: Lab, tmp_path: Path, path: str
) -> None:
    server = FaultServer()
    try:
        made = engines_client(serving, server, tmp_path)
        for kind in KINDS:
            server.kind = kind
            assert measured(made, path)["rejected"], kind
        server.kind = "clean"
        assert measured(made, path)["faults"] == []
    finally:
        server.close()


def test_the_engines_client_sends_at_a_rate(serving: Lab, tmp_path: Path) -> None:
    server = FaultServer()
    try:
        cell = Cell("r40", None, 16, 16, 40, rate=40.0, goodput={"e2e_ms": 60_000.0})
        told = measured(engines_client(serving, server, tmp_path), cell=cell)
    finally:
        server.close()
    assert told["faults"] == []
    assert 0 < told["figures"]["rate"]["achieved"] < 400 and told["figures"]["rate"]["at_least"]
    assert told["figures"]["goodput"]["share"] == 1.0
