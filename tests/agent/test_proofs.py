"""The judge of proofs, as a table: what a kernel build's ranks must say, and what is said of them when they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import proofs
from gpuops_agent.proofs import Read, Wanted

Json = dict[str, Any]

WANTED = Wanted("pack-1", "c0ffee", 2)


def family(state: str, reason: str = "") -> Json:
    return {"state": state, "reason": reason}


def proof(rank: int = 0, **changes: Any) -> Json:
    families = {"mla": family("active"), "indexer": family("off", "the table's default")}
    told = {"label": f"tp{rank}", "stage": "captured", "content": "c0ffee", "build": "pack-1", "capability": "12.0"}
    return {**told, "pid": 100 + rank, "start": 7, "families": families, **changes}


def judge(*found: Json, wanted: Wanted = WANTED, unreadable: tuple[str, ...] = (), dead: int = 0) -> proofs.Verdict:
    return proofs.judge(wanted, Read(found, unreadable), lambda pid, start: pid != dead and start == 7)


def test_every_rank_active_is_active_and_says_which_kernels() -> None:
    verdict = judge(proof(0), proof(1))
    assert (verdict.state, verdict.text, verdict.families, verdict.ranks) == (
        "active",
        "2 of 2 ranks, mla active",
        ("mla",),
        (2, 2),
    )
    assert verdict.evidence[1] == "rank tp1 (pid 101, captured): indexer off, mla active"


def test_the_stage_before_the_capture_is_enough() -> None:
    assert judge(proof(0, stage="loaded"), proof(1)).passed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stage": "started"}, "rank tp1: its proof is from before the model was loaded"),
        ({"content": "0ther"}, "rank tp1: it runs content 0ther, the build has c0ffee"),
        ({"build": ""}, "rank tp1: it runs the build (none), not pack-1"),
        ({"start": 8}, "rank tp1: pid 101 is no living process of this server"),
        ({"families": {"mla": family("failed", "bound twice")}}, "rank tp1: mla failed: bound twice"),
    ],
)
def test_one_rank_that_is_wrong_fails_the_pack_by_name(change: Json, why: str) -> None:
    verdict = judge(proof(0), proof(1, **change))
    assert (verdict.state, verdict.text, verdict.ranks) == ("failed", f"1 of 2 ranks: {why}", (1, 2))


def test_a_process_that_has_ended_proves_nothing() -> None:
    assert judge(proof(0), proof(1), dead=101).evidence == ("rank tp1: pid 101 is no living process of this server",)


@pytest.mark.parametrize(
    ("count", "why"), [(0, "0 proofs for 2 ranks"), (1, "1 proofs for 2 ranks"), (3, "3 proofs for 2 ranks")]
)
def test_as_many_proofs_as_ranks(count: int, why: str) -> None:
    assert why in judge(*(proof(rank) for rank in range(count))).evidence


def test_ranks_of_different_contents_are_told() -> None:
    verdict = judge(proof(0), proof(1, content="0ther"))
    assert "the ranks run different contents: 0ther, c0ffee" in verdict.evidence


def test_a_file_that_is_no_proof_fails_the_pack() -> None:
    assert judge(proof(0), proof(1), unreadable=("tp1.json is no proof: cut",)).text == "2 of 2 ranks: tp1.json is no proof: cut"


def test_kernels_that_serve_on_some_ranks_only_fail_the_pack() -> None:
    stock = {"mla": family("off", "switched off"), "indexer": family("active")}
    assert judge(proof(0), proof(1, families=stock)).text == "indexer, mla active on some ranks only"


def test_no_active_family_on_a_card_fails_the_pack() -> None:
    off = {"mla": family("off", "switched off")}
    verdict = judge(proof(0, families=off), proof(1, families=off))
    assert verdict.text == "2 of 2 ranks: no family of kernels is active on a card of capability 12.0"
    assert verdict.evidence == ("mla: switched off",)


def test_no_family_for_a_host_without_a_card_is_not_applicable() -> None:
    none = {"capability": "", "families": {"mla": family("not applicable", "no CUDA device")}}
    verdict = judge(proof(0, **none), proof(1, **none))
    assert (verdict.state, verdict.passed) == ("not applicable", True)


def test_no_family_for_a_host_without_a_card_fails_where_the_playbook_requires_one() -> None:
    none = {"capability": "", "families": {"mla": family("not applicable", "no CUDA device")}}
    verdict = judge(proof(0, **none), wanted=Wanted("pack-1", "c0ffee", 1, required=True))
    assert verdict.text == "1 of 1 ranks: no family of kernels is active and the playbook requires it"


def test_where_nobody_knows_the_ranks_one_is_wanted_at_least() -> None:
    unknown = Wanted("pack-1", "c0ffee", None)
    assert judge(proof(0), proof(1), wanted=unknown).passed
    assert not judge(wanted=unknown).passed


def test_proofs_are_read_by_their_labels_and_what_is_none_is_named(tmp_path: Path) -> None:
    whole = {key: value for key, value in proof().items() if key != "label"}
    (tmp_path / "tp0.json").write_text(json.dumps({"schema": 1, **whole}))
    (tmp_path / "tp1.json").write_text(json.dumps({"schema": 1, **whole})[:40])
    (tmp_path / "tp2.json").write_text(json.dumps({"schema": 9, **whole}))
    (tmp_path / "tp3.json").write_text(json.dumps({"schema": 1}))
    (tmp_path / "tp4.json").write_text("[]")
    found = proofs.read(tmp_path)
    assert [each["label"] for each in found.proofs] == ["tp0"]
    assert [text.partition(" ")[0] for text in found.unreadable] == ["tp1.json", "tp2.json", "tp3.json", "tp4.json"]


def test_a_build_without_a_plugin_and_one_that_is_switched_off_have_nothing_to_prove() -> None:
    about = {"proof": {"plugin": "pack.plugin", "content": "c0ffee"}}
    assert proofs.settle({}, {"env": {}}) is None
    assert proofs.settle(about, {"env": {"GPUOPS_KERNELS": "off"}}) is None
    assert proofs.settle(about, {"env": {}, "proof": "required"}) == {**about["proof"], "required": True}


def test_a_release_without_a_build_gets_no_variable(tmp_path: Path) -> None:
    assert proofs.environment({"build": None, "env": {}}, tmp_path) == {}
    assert proofs.environment({"build": {"id": "b-1"}, "env": {}}, tmp_path) == {"GPUOPS_BUILD": "b-1"}
