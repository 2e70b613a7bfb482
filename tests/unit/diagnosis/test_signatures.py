"""The table of failures: every row is found by what it is for, and by nothing that only looks like it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpuops_agent.signatures import CONSEQUENCE, FATAL, HINT
from gpuops_agent.symptoms import Symptoms

from gpuops.engines import reading

FIXTURES = Path(__file__).parents[2] / "fixtures"
SAMPLES = json.loads((FIXTURES / "signatures.json").read_text(encoding="utf-8"))
TABLE = json.loads((Path(__file__).parents[3] / "gpuops/engines/failures/sglang.json").read_text(encoding="utf-8"))
ROWS = TABLE["signatures"]
_NAMES = """
disk_full shm_exhausted fd_limit weights_incomplete port_in_use gpu_mem_held_by_other kv_pool_too_small gpu_oom triton_smem_oor no_kernel_image
arch_gate ptxas_arch ptx_toolchain_skew abi_mismatch driver_lib_mismatch nvcc_missing graph_capture_isolation graph_capture_illegal
graph_capture_failed illegal_memory_access device_assert nan_logits ecc gpu_lost gpu_hang_fw xid_mmu xid_other pcie_aer host_oom_kill nccl_error
nccl_timeout sched_watchdog health_probe_timeout warmup_failed sched_died_init child_failed sched_exception perf_jit ready_line
"""
NAMES_OF_THE_FIELD = _NAMES.split()


def found(text: str) -> list[str]:
    """The classes that a few lines of a log have signs of, hints included."""
    from gpuops_agent.logread import LogReader

    reader = LogReader(reading())
    reader.feed(text + "\n")
    verdict = reader.symptoms.verdict()
    named = [verdict.signature.name, verdict.symptom.signature.name] if verdict else []
    return [*named, *(each.signature.name for each in [*(verdict.consequences if verdict else []), *reader.symptoms.hints()])]


def keyed() -> list[tuple[str, dict[str, object]]]:
    """The rows by their keys in the samples: the class, and ``#2`` for its second row."""
    seen: dict[str, int] = {}
    keys = []
    for row in ROWS:
        seen[row["class"]] = seen.get(row["class"], 0) + 1
        keys.append((row["class"] if seen[row["class"]] == 1 else f"{row['class']}#{seen[row['class']]}", row))
    return keys


KEYED = keyed()
POSITIVE = [(key, row["class"], text) for key, row in KEYED for text in SAMPLES[key]["samples"]]
NEAR = [(key, row["class"], text) for key, row in KEYED for text in SAMPLES[key]["near"]]


def test_every_row_has_a_sample_and_a_near_miss() -> None:
    assert {key for key, _ in KEYED} == set(SAMPLES)
    assert all(entry["samples"] and entry["near"] for entry in SAMPLES.values())


@pytest.mark.parametrize(("key", "name", "text"), POSITIVE, ids=[f"{key}-{at}" for at, (key, _, _) in enumerate(POSITIVE)])
def test_a_sample_is_found_as_its_class(key: str, name: str, text: str) -> None:
    assert name in found(text)


@pytest.mark.parametrize(("key", "name", "text"), NEAR, ids=[f"{key}-{at}" for at, (key, _, _) in enumerate(NEAR)])
def test_a_near_miss_is_no_sign_of_the_class(key: str, name: str, text: str) -> None:
    assert name not in found(text)


@pytest.mark.parametrize(("key", "row"), KEYED, ids=[key for key, _ in KEYED])
def test_the_rows_own_pattern_finds_its_first_sample(key: str, row: dict[str, object]) -> None:
    symptoms = Symptoms({"signatures": [{**row}], "harmless": [], "quoting": [], "survived": [], "serving": []})
    for text in SAMPLES[key]["samples"]:
        message = text.partition("] ")[2] if text.startswith("[20") else text
        for number, line in enumerate(message.splitlines(), 1):
            symptoms.take(line, number=number, starts_record=number == 1, rank="", phase=None)
    verdict = symptoms.verdict()
    assert verdict is not None or symptoms.hints()


@pytest.mark.parametrize("name", NAMES_OF_THE_FIELD)
def test_the_classes_of_the_field_keep_their_names(name: str) -> None:
    assert name in {row["class"] for row in ROWS}


@pytest.mark.parametrize(("key", "row"), KEYED, ids=[key for key, _ in KEYED])
def test_a_row_says_what_it_is_where_it_comes_from_and_what_helps(key: str, row: dict[str, object]) -> None:
    assert row["kind"] in (FATAL, CONSEQUENCE, HINT) and row["weight"] in (1, 2, 3)
    assert row["what"] and row["source"] and row["applies"] and isinstance(row["restart_cures"], bool)
    assert row["cure"] or row["kind"] == HINT


def test_what_a_restart_cannot_cure_is_what_the_table_says() -> None:
    incurable = {row["why"] for row in reading()["meaningful"]["incurable"]}
    assert "the disk is full" in incurable
    assert "somebody outside ended it" not in incurable
