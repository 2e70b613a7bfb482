"""Reading proofs: what they say, what is missing, and the command line over them."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from gpuops_kernels.plugin import proof, verify
from gpuops_kernels.plugin.__main__ import main
from gpuops_kernels.plugin.proof import FamilyProof, Proof, TargetProof

SERVED = FamilyProof(proof.ACTIVE, "stock is slow", (TargetProof("m:f", True, ("m:f", "n:f"), 43),))
PASSED_ON = FamilyProof(proof.ACTIVE, "stock is slow", (TargetProof("m:g", True, ("m:g",), 0, passed_on=86),))
TOO_SMALL = "mhc is in place, but no batch was large enough to use it: all 86 calls were passed on to SGLang's own"
PUT_ASIDE = FamilyProof(proof.OFF, "stock is fast")


def _proof(tp: int = 0, **changes: object) -> Proof:
    made = Proof(
        stage="captured",
        rank={"tp": tp, "pp": 0},
        pid=100 + tp,
        start=7,
        title="sglang::scheduler",
        mode="strict",
        package="0.1.0",
        content="c" * 64,
        build="b-1",
        capability="12.0",
        versions={"sglang": "0.5.15.post1"},
        families={"mla_decode": SERVED, "indexer": PUT_ASIDE},
    )
    return dataclasses.replace(made, **changes)


def _with(family: FamilyProof) -> Proof:
    return _proof(families={"mla_decode": family, "indexer": PUT_ASIDE})


def test_a_proof_reads_back_as_it_was_written(tmp_path: Path) -> None:
    assert proof.read(proof.write(_proof(), tmp_path)) == _proof()


def test_a_folder_gets_a_file_for_each_rank_and_nothing_else(tmp_path: Path) -> None:
    for rank in range(2):
        proof.write(_proof(rank), tmp_path / "proofs")
    assert sorted(path.name for path in (tmp_path / "proofs").iterdir()) == ["pp0-tp0.json", "pp0-tp1.json"]


def test_a_json_path_gets_the_rank_before_its_suffix(tmp_path: Path) -> None:
    assert proof.write(_proof(3), tmp_path / "kernels.json").name == "kernels.pp0-tp3.json"


def test_ranks_that_all_serve_pass() -> None:
    verdict = verify.verify([_proof(0), _proof(1)], 2, "c" * 64)
    assert verdict.passed
    told = "yes: mla_decode (43 calls); content cccccccccccc"
    assert verdict.lines == (f"pp0-tp0 (pid 100): {told}", f"pp0-tp1 (pid 101): {told}")


def test_what_has_no_use_here_does_not_speak_against_what_serves() -> None:
    useless = FamilyProof(proof.NOT_APPLICABLE, "no CUDA device: nothing applies")
    assert verify.verify([_proof(families={"swiglu": SERVED, "mhc": useless})], 1).passed


def test_calls_that_were_passed_on_are_told_apart_from_those_that_ours_served() -> None:
    both = FamilyProof(proof.ACTIVE, "", (TargetProof("m:g", True, ("m:g",), 2, passed_on=84),))
    verdict = verify.verify([_proof(families={"mhc": both})], 1)
    assert verdict.passed and "yes: mhc (2 calls, 84 more passed on to SGLang's own)" in verdict.lines[0]


def test_a_family_whose_batches_are_all_too_small_is_told_beside_one_that_serves() -> None:
    proofs = [_proof(families={"mla_decode": SERVED, "mhc": PASSED_ON})]
    verdict = verify.verify(proofs, 1)
    assert verdict.passed and f"yes: {TOO_SMALL}, mla_decode (43 calls)" in verdict.lines[0]
    asked = verify.verify(proofs, 1, families=["mhc"])
    assert not asked.passed and f"no: {TOO_SMALL}" in asked.lines[0]


@pytest.mark.parametrize(
    ("proofs", "words"),
    [
        ([_proof(0)], "1 proofs for 2 ranks"),
        ([_proof(0), _proof(0)], "rank pp0-tp0 proved itself 2 times"),
        ([_proof(0), _proof(1, content="d" * 64)], "different contents of the package"),
        (
            [_proof(0), _proof(1, families={"mla_decode": SERVED, "indexer": SERVED})],
            "the ranks differ in their active families: indexer, mla_decode on some, mla_decode on others",
        ),
        (
            [_proof(0), _proof(1, versions={"sglang": "0.5.14"})],
            "the ranks differ in their versions: sglang 0.5.14 on some, sglang 0.5.15.post1 on others",
        ),
        ([_proof(0), _proof(1, mode="auto")], "the ranks differ in their mode: auto on some, strict on others"),
        ([_proof(0, content="d" * 64), _proof(1)], "runs content dddddddddddd, expected cccccccccccc"),
        ([_with(FamilyProof(proof.FAILED, "m:f has changed")), _proof(1)], "mla_decode is failed: m:f has changed"),
        (
            [_with(FamilyProof(proof.NOT_APPLICABLE, "no CUDA device: nothing applies")), _proof(1)],
            "mla_decode is not applicable",
        ),
        ([_with(FamilyProof(proof.ACTIVE, "", (TargetProof("m:f", True),))), _proof(1)], "in place but was never called"),
        ([_with(PUT_ASIDE), _proof(1)], "no family is on"),
        ([_proof(0, families={"mhc": PASSED_ON}), _proof(1, families={"mhc": PASSED_ON})], TOO_SMALL),
    ],
)
def test_it_says_no_and_why(proofs: list[Proof], words: str) -> None:
    verdict = verify.verify(proofs, 2, "c" * 64)
    assert not verdict.passed and any(words in line and "no: " in line for line in verdict.lines), verdict


def test_a_family_that_is_asked_for_must_not_be_off() -> None:
    verdict = verify.verify([_proof()], 1, families=["indexer"])
    assert not verdict.passed and "indexer is off: stock is fast" in verdict.lines[0]


def test_the_command_line_answers_with_its_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof.write(_proof(), tmp_path)
    assert main(["--verify", str(tmp_path), "--ranks", "1"]) == 0
    assert main(["--verify", str(tmp_path), "--ranks", "2"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "no: 1 proofs for 2 ranks"


def test_the_command_line_compares_with_the_package_that_runs(tmp_path: Path) -> None:
    proof.write(_proof(content=proof.content_hash()), tmp_path)
    assert main(["--verify", str(tmp_path), "--hash", "this"]) == 0
    proof.write(_proof(), tmp_path)
    assert main(["--verify", str(tmp_path), "--hash", "this"]) == 1


def test_a_proof_of_a_process_that_has_ended_is_told(tmp_path: Path) -> None:
    mine = _proof(pid=os.getpid(), start=proof.start_of(os.getpid()))
    assert verify.not_running([mine]) == []
    assert verify.not_running([dataclasses.replace(mine, start=mine.start - 1)]) == [
        f"pp0-tp0: pid {os.getpid()} is not running any more"
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1}'])
def test_a_file_that_is_no_proof_is_said_to_be_none(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pp0-tp0.json").write_text(text)
    assert main(["--verify", str(tmp_path)]) == 1
    assert "pp0-tp0.json" in capsys.readouterr().out


def test_the_content_hash_follows_names_and_bytes_and_not_byte_code(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "a.py").write_text("1")
    before = proof.content_hash(tmp_path)
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    assert proof.content_hash(tmp_path) == before
    (tmp_path / "a.py").write_text("2")
    changed = proof.content_hash(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({before, changed, proof.content_hash(tmp_path)}) == 3


def test_a_proof_is_plain_json(tmp_path: Path) -> None:
    raw = json.loads(proof.write(_proof(), tmp_path).read_text())
    assert raw["families"]["mla_decode"]["targets"][0]["bindings"] == ["m:f", "n:f"]
