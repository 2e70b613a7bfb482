"""What is known of SGLang, per version, and the argv made of it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import gpuops.engines
from gpuops.engines import facts
from gpuops.errors import GpuopsError, PlaybookError

DATA = json.loads((Path(gpuops.engines.__file__).parent / "sglang.json").read_text())
ROWS = [(section, row) for section, rows in DATA.items() if isinstance(rows, list) for row in rows]


def sglang(version: str = "0.5.23") -> gpuops.engines.EngineFacts:
    return facts("sglang", version)


def test_the_argv_serves_the_model_on_the_port() -> None:
    assert sglang().launch(flags={}) == [
        *("@{python}", "-m", "sglang.launch_server"),
        *("--model-path", "@{model}", "--host", "127.0.0.1", "--port", "@{port}"),
    ]


def test_the_argv_names_the_model_when_asked() -> None:
    argv = sglang().launch(flags={}, served_model_name="tiny", bind="0.0.0.0")
    assert argv[3:] == ["--model-path", "@{model}", "--host", "0.0.0.0", "--port", "@{port}", "--served-model-name", "tiny"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--x"]),
        (False, []),
        (None, []),
        (8, ["--x", "8"]),
        (0.85, ["--x", "0.85"]),
        ("torch_native", ["--x", "torch_native"]),
        ("two words", ["--x", "two words"]),
        ("-1", ["--x=-1"]),
        (-1, ["--x=-1"]),
        ("", ["--x="]),
        ([1, 2, 4], ["--x", "1", "2", "4"]),
        ([], []),
        ({"a": {"b": 1}}, ["--x", '{"a":{"b":1}}']),
    ],
)
def test_a_flag_becomes_words_by_the_type_of_its_value(value: gpuops.engines.Flag, words: list[str]) -> None:
    assert sglang().launch(flags={"x": value})[9:] == words


@pytest.mark.parametrize(
    ("flag", "key"), [("port", "server.port"), ("model-path", "model"), ("host", "server.bind"), ("config", "server.flags")]
)
def test_a_flag_that_gpuops_sets_itself_is_refused(flag: str, key: str) -> None:
    with pytest.raises(PlaybookError) as caught:
        sglang().launch(flags={flag: "1"})
    assert caught.value.kind == "flag_owned"
    assert key in caught.value.next


def test_the_beginning_of_an_own_flag_is_refused_too() -> None:
    with pytest.raises(PlaybookError) as caught:
        sglang().launch(flags={"por": 1})
    assert caught.value.evidence == "the engine takes --por for --port"


@pytest.mark.parametrize(("written", "better"), [("--tp-size", "tp-size"), ("tp_size", "tp-size"), ("TP-size", "tp-size")])
def test_a_flag_written_otherwise_is_refused_with_the_right_writing(written: str, better: str) -> None:
    with pytest.raises(PlaybookError) as caught:
        sglang().launch(flags={written: 2})
    assert caught.value.next == f"write it as {better!r}"


def test_a_flag_that_is_gone_is_refused_with_its_new_name() -> None:
    with pytest.raises(PlaybookError) as caught:
        sglang("0.5.20").launch(flags={"cuda-graph-max-bs": 8})
    assert caught.value.what == "sglang 0.5.20 has no flag 'cuda-graph-max-bs'"
    assert caught.value.next == "write 'cuda-graph-max-bs-decode' instead"


def test_the_old_flag_stands_in_an_older_version() -> None:
    assert sglang("0.5.19").launch(flags={"cuda-graph-max-bs": 8})[-2:] == ["--cuda-graph-max-bs", "8"]


def test_the_new_flag_is_refused_in_a_version_before_it() -> None:
    with pytest.raises(PlaybookError) as caught:
        sglang("0.5.13").launch(flags={"cuda-graph-max-bs-decode": 8})
    assert caught.value.next == "write 'cuda-graph-max-bs' instead"


def test_every_cache_lies_under_the_release_cache_in_a_folder_of_its_own() -> None:
    environment = sglang().cache_environment("/c")
    assert environment["TRITON_CACHE_DIR"] == "/c/triton"
    assert environment["SGLANG_DG_CACHE_DIR"] == "/c/deep_gemm"
    assert len(set(environment.values())) == len(environment)
    assert all(path.startswith("/c/") for path in environment.values())


def test_an_endpoint_is_known_only_where_the_version_has_it() -> None:
    assert "ready" not in sglang("0.5.19").endpoints
    assert sglang("0.5.20").endpoints["ready"] == ("/ready",)


def test_a_newer_version_is_treated_like_the_newest_known_with_a_note() -> None:
    newer = sglang("0.6.0")
    assert newer.note == "sglang 0.6.0 is newer than what gpuops knows; it is treated like 0.5.23"
    assert newer.endpoints == sglang().endpoints


@pytest.mark.parametrize("version", ["0.5.12", "0.5.14.post1", "0.5.23+cu130", "v0.5.23", "0.5.22rc1"])
def test_known_versions_have_no_note(version: str) -> None:
    assert sglang(version).note == ""


def test_a_version_that_is_too_old_is_refused_with_the_known_range() -> None:
    with pytest.raises(GpuopsError) as caught:
        sglang("0.4.9")
    assert caught.value.evidence == "known versions are 0.5.12 to 0.5.23"
    assert caught.value.code == 3


def test_a_text_that_is_no_version_is_refused() -> None:
    with pytest.raises(GpuopsError, match="'latest' is not a version of sglang"):
        sglang("latest")


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(GpuopsError) as caught:
        facts("vllm", "0.9.0")
    assert caught.value.evidence == "known: sglang"


def test_the_order_is_plain_json_and_nobody_elses_object() -> None:
    order = sglang().as_order(schedulers=4)
    assert json.loads(json.dumps(order)) == order
    assert order["ranks"]["schedulers"] == 4
    order["meaningful"]["noise"].clear()
    order["sampling"]["chat"]["body"].clear()
    assert sglang().as_order()["meaningful"]["noise"]
    assert sglang().as_order()["sampling"]["chat"]["body"]


def test_the_order_has_the_keys_that_the_agent_reads() -> None:
    order = sglang().as_order()
    assert set(order) == {"name", "version", "endpoints", "identity", "phases", "ranks", "meaningful", "caches", "sampling"}
    assert set(order["endpoints"]) >= {"info", "models", "generate", "chat", "health"}
    assert set(order["identity"]) == {"version", "model_path", "served_model_name", "port"}
    assert set(order["meaningful"]) == {
        *("prefix", "noise", "harmless", "quoting", "survived", "serving", "meeting"),
        *("births", "stopping", "signatures", "incurable", "poisoned"),
    }


def test_facts_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        sglang().note = "x"  # type: ignore[misc]


@pytest.mark.parametrize(("section", "row"), ROWS, ids=[f"{section}-{index}" for index, (section, _) in enumerate(ROWS)])
def test_every_fact_has_its_source_and_every_pattern_compiles(section: str, row: dict[str, str]) -> None:
    assert row["source"]
    re.compile(row.get("pattern", ""))
