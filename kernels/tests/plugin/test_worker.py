"""The plugin in spawned worker processes of a stub engine: what is served, what is proved, what is refused."""

from __future__ import annotations

import os
import shutil
import types
from pathlib import Path

import pytest
from conftest import Ran, Stub

from gpuops_kernels.plugin import plan, proof, settings, targets, worker
from gpuops_kernels.plugin.refusal import EXIT_REFUSED

ACT = "stock act of x"
OURS = [
    "our attention of q, 8 heads",
    "our attention of q, 8 heads",
    "our boundary of 64",
    "stock boundary of 8",
    "our pre of x",
    ACT,
]
STOCK = ["stock attention of q", "stock attention of q", "stock boundary of 64", "stock boundary of 8", "stock pre of x", ACT]
OURS_WITHOUT_ATTENTION = STOCK[:2] + OURS[2:]


def _refused(ran: Ran, *words: str) -> None:
    assert ran.codes == [EXIT_REFUSED] and ran.answers == [None], ran
    assert "refusing to serve" in ran.err
    for word in words:
        assert word in ran.err


def test_every_way_to_reach_a_target_serves_ours(stub: Stub) -> None:
    assert stub.run().answers == [OURS]


def test_strict_serves_when_everything_is_in_place(stub: Stub) -> None:
    ran = stub.run(GPUOPS_KERNELS="strict")
    assert (ran.codes, ran.answers) == ([0], [OURS]), ran


def test_ours_is_told_how_many_heads_the_rank_has(stub: Stub) -> None:
    stub.edit("sglang/srt/models/deepseek_v4.py", "n_local_heads = 8", "n_local_heads = 16")
    (answer,) = stub.run().answers
    assert answer is not None and answer[0] == "our attention of q, 16 heads"


def test_the_launcher_hooks_nothing(stub: Stub) -> None:
    assert stub.run().launcher_hooks == []


def test_each_rank_writes_one_proof(stub: Stub) -> None:
    ran = stub.run(STUB_RANKS="2")
    assert [each.rank for each in ran.proofs] == [{"pp": 0, "tp": 0}, {"pp": 0, "tp": 1}]
    assert ran.proofs[0].pid != ran.proofs[1].pid


def test_a_proof_names_every_binding_that_was_replaced(stub: Stub) -> None:
    (target,) = stub.run().proof.families["mla_decode"].targets
    names = {"sglang.srt.layers.attention:attend", "sglang.srt.layers.attention:alias", "sglang.srt.layers.early:attend"}
    assert target.replaced and names <= set(target.bindings)


def test_a_proof_counts_the_calls_of_the_capture_that_ours_served_apart_from_those_it_passed_on(stub: Stub) -> None:
    made = stub.run().proof
    assert made.stage == "captured"
    assert {name: (family.calls, family.passed_on) for name, family in made.families.items() if family.state == proof.ACTIVE} == {
        "mla_decode": (2, 0),
        "mhc": (2, 1),
    }


def test_a_server_of_small_batches_serves_in_strict_mode_and_its_proof_says_that_the_engines_own_does(stub: Stub) -> None:
    stub.edit("sglang/srt/models/deepseek_v4.py", "late.boundary(64)", "late.boundary(32)")
    stub.edit("sglang/srt/models/deepseek_v4.py", 'self.layer.pre("x"),', "")
    ran = stub.run(GPUOPS_KERNELS="strict")
    assert ran.codes == [0], ran
    family = ran.proof.families["mhc"]
    told = "in place, but no captured batch was large enough to use it: all 2 calls of the capture were passed on to SGLang's own"
    assert (family.state, family.calls, family.passed_on, family.reason) == (proof.ACTIVE, 0, 2, told)
    assert f"mhc: {told}" in ran.err


def test_a_proof_identifies_the_package_the_build_and_the_process(stub: Stub) -> None:
    made = stub.run(GPUOPS_BUILD="b-1").proof
    assert (made.content, made.build, made.capability, made.versions["sglang"]) == (proof.content_hash(), "b-1", "12.0", "0.5.23")
    assert made.start > 0


def test_a_proof_tells_the_content_that_was_imported_not_what_has_been_put_there_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = iter(["imported", "put there since"])
    monkeypatch.setattr(proof, "content_hash", lambda: next(contents))
    wanted = settings.Settings("auto", {}, tmp_path, None)
    made = worker.Worker(wanted, "0.5.23", targets.engine("0.5.23"), plan.Machine(None, "no CUDA device"), "")
    for _ in range(2):
        made.loaded(types.SimpleNamespace(model=None))
        assert proof.read(tmp_path / f"pid{os.getpid()}.json").content == "imported"


def test_without_capture_the_first_request_is_in_the_proof(stub: Stub) -> None:
    ran = stub.run(GPUOPS_KERNELS="strict", STUB_CAPTURE="0")
    assert ran.answers == [OURS] and ran.proof.families["mla_decode"].calls >= 1


def test_a_draft_model_makes_no_proof(stub: Stub) -> None:
    assert stub.run(STUB_DRAFT="1").proofs == []


def test_off_touches_nothing(stub: Stub) -> None:
    ran = stub.run(GPUOPS_KERNELS="off")
    assert (ran.answers, ran.proofs) == ([STOCK], [])


def test_a_switch_takes_one_family_out(stub: Stub) -> None:
    ran = stub.run(GPUOPS_KERNELS_MLA_DECODE="0", GPUOPS_KERNELS="strict")
    assert ran.answers == [OURS_WITHOUT_ATTENTION]
    assert ran.proof.families["mla_decode"].state == proof.OFF


def test_a_family_that_the_engine_beats_is_off(stub: Stub) -> None:
    family = stub.run().proof.families["indexer"]
    assert (family.state, family.reason) == (proof.OFF, "stock is fast")


def test_a_switch_puts_such_a_family_in(stub: Stub) -> None:
    ran = stub.run(GPUOPS_KERNELS_MLA_DECODE="0", GPUOPS_KERNELS_INDEXER="1")
    assert ran.answers == [OURS] and ran.proof.families["indexer"].state == proof.ACTIVE


def test_on_another_card_defaults_are_off_and_switches_work(stub: Stub) -> None:
    ran = stub.run(STUB_CAPABILITY="9.0", GPUOPS_KERNELS_MLA_DECODE="1")
    assert ran.answers == [OURS[:2] + STOCK[2:]]
    assert ran.proof.families["mhc"].state == proof.OFF


def test_without_a_card_nothing_applies_and_the_engine_serves(stub: Stub) -> None:
    ran = stub.run(STUB_CAPABILITY="")
    assert (ran.codes, ran.answers) == ([0], [STOCK])
    assert {family.reason for family in ran.proof.families.values()} == {"no CUDA device: nothing applies"}
    assert ran.proof.rank == {"pp": 0, "tp": 0}


def test_without_a_card_the_cpu_family_serves_any_model_when_it_is_asked_for(stub: Stub) -> None:
    ran = stub.run(STUB_CAPABILITY="", STUB_MODEL="LlamaForCausalLM", GPUOPS_KERNELS_SWIGLU="1", GPUOPS_KERNELS="strict")
    assert (ran.codes, ran.answers) == ([0], [[*STOCK[:-1], "our act of x"]])
    states = {
        name: (family.state, family.calls) for name, family in ran.proof.families.items() if family.state != proof.NOT_APPLICABLE
    }
    assert states == {"swiglu": (proof.ACTIVE, 1)}


def test_strict_refuses_when_the_target_of_the_cpu_family_is_missing(stub: Stub) -> None:
    stub.edit("sglang/srt/layers/activation.py", "forward_native", "forward_plain")
    ran = stub.run(STUB_CAPABILITY="", GPUOPS_KERNELS_SWIGLU="1", GPUOPS_KERNELS="strict")
    _refused(ran, "swiglu", "has no Act.forward_native")
    assert ran.proof.families["swiglu"].state == proof.FAILED


def test_with_a_card_the_cpu_family_cannot_be_insisted_on(stub: Stub) -> None:
    _refused(stub.run(GPUOPS_KERNELS_SWIGLU="1", GPUOPS_KERNELS="strict"), "on a machine without a card")


def test_without_torch_nothing_applies_and_the_engine_serves(stub: Stub) -> None:
    shutil.rmtree(stub.tree / "torch")
    ran = stub.run()
    assert (ran.codes, ran.answers) == ([0], [STOCK])
    assert {family.reason for family in ran.proof.families.values()} == {"torch is not installed: nothing applies"}


def test_another_model_keeps_its_kernels(stub: Stub) -> None:
    ran = stub.run(STUB_MODEL="LlamaForCausalLM")
    assert ran.answers == [STOCK]
    assert ran.proof.families["mhc"].reason == "the model is LlamaForCausalLM, not DeepSeek-V4"


def test_a_model_of_another_width_keeps_what_no_kernel_is_made_for(stub: Stub) -> None:
    stub.edit("sglang/srt/models/deepseek_v4.py", "hidden_size = 4096", "hidden_size = 7168")
    ran = stub.run(GPUOPS_KERNELS="strict")
    assert ran.answers == [OURS[:2] + STOCK[2:]], ran
    family = ran.proof.families["mhc"]
    assert (
        family.state == proof.NOT_APPLICABLE and family.reason == "the model's hidden size is 7168, its kernels are made for 4096"
    )


@pytest.mark.parametrize("line", ['model_type = "deepseek_v41"', "hc_pre_from_prev_sublayer = True"])
def test_a_newer_model_that_is_loaded_as_this_one_keeps_its_kernels_also_in_strict_mode(stub: Stub, line: str) -> None:
    stub.edit("sglang/srt/models/deepseek_v4.py", "hidden_size = 4096", f"hidden_size = 4096\n    {line}")
    ran = stub.run(GPUOPS_KERNELS="strict")
    assert (ran.codes, ran.answers) == ([0], [STOCK]), ran
    for name in ("mhc", "mla_decode"):
        family = ran.proof.families[name]
        assert family.state == proof.NOT_APPLICABLE
        assert family.reason == "the model is DeepSeek-V4.1, loaded as DeepseekV4ForCausalLM, not DeepSeek-V4"


def _rename(stub: Stub) -> None:
    stub.edit("sglang/srt/layers/attention.py", "def attend(", "def attend_v2(")
    stub.edit("sglang/srt/layers/attention.py", "alias = attend", "def __getattr__(name):\n    return attend_v2")


def _change(stub: Stub) -> None:
    stub.edit("sglang/srt/layers/attention.py", 'f"stock attention of {kwargs', 'f"stock attention " f"of {kwargs')


def _break_ops(stub: Stub) -> None:
    stub.environment["STUB_BROKEN_OPS"] = "1"


def _unconfigure(stub: Stub) -> None:
    stub.environment["STUB_KEY"] = "no.kernel/no-shape"


def _interpose(stub: Stub) -> None:
    stub.environment["STUB_OTHER_PLUGIN"] = "1"


DAMAGE = {
    "a missing target": (_rename, "has no attend"),
    "a changed target": (_change, "has changed"),
    "kernels that cannot be imported": (_break_ops, "no module named triton"),
    "a missing configuration": (_unconfigure, "no configuration for kernel no.kernel, shape no-shape"),
    "a target that another plugin wrapped": (_interpose, "is not SGLang's own any more"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_strict_refuses(stub: Stub, damage: str) -> None:
    act, words = DAMAGE[damage]
    act(stub)
    ran = stub.run(GPUOPS_KERNELS="strict")
    _refused(ran, words, "mla_decode")
    assert ran.proof.families["mla_decode"].state == proof.FAILED


@pytest.mark.parametrize("damage", DAMAGE)
def test_auto_serves_stock_and_says_so_with(stub: Stub, damage: str) -> None:
    act, words = DAMAGE[damage]
    act(stub)
    ran = stub.run()
    assert ran.codes == [0] and ran.answers[0] is not None and ran.answers[0][:2] == STOCK[:2], ran
    assert ran.proof.families["mla_decode"].state == proof.FAILED
    assert words in ran.err and "SGLang's own kernels serve instead" in ran.err


def test_a_family_with_one_target_missing_is_taken_out_whole(stub: Stub) -> None:
    stub.edit("sglang/srt/models/deepseek_v4.py", 'f"stock pre of {x}"', 'f"stock " f"pre of {x}"')
    ran = stub.run()
    assert ran.answers == [OURS[:2] + STOCK[2:]]
    assert ran.proof.families["mhc"].state == proof.FAILED


def test_strict_refuses_when_the_engine_goes_around_the_replacements(stub: Stub) -> None:
    _refused(stub.run(GPUOPS_KERNELS="strict", STUB_CAPTURE="around"), "graph capture never called it")


def test_a_warm_up_before_the_capture_does_not_count_as_one_of_its_calls(stub: Stub) -> None:
    loaded = '"DeepseekV4ForCausalLM"))()'
    stub.edit("sglang/srt/model_executor/model_runner.py", loaded, f"{loaded}\n        self.model.forward()")
    assert stub.run().proof.families["mla_decode"].calls == 2
    _refused(stub.run(GPUOPS_KERNELS="strict", STUB_CAPTURE="around"), "graph capture never called it")


def test_strict_refuses_when_the_place_of_the_proof_is_gone(stub: Stub) -> None:
    stub.edit("sglang/srt/model_executor/model_runner.py", "def init_cuda_graphs", "def init_graphs")
    _refused(stub.run(GPUOPS_KERNELS="strict"), "ModelRunner.init_cuda_graphs is missing")


def test_strict_refuses_a_switch_that_cannot_be_followed(stub: Stub) -> None:
    _refused(stub.run(GPUOPS_KERNELS="strict", GPUOPS_KERNELS_MHC="1", STUB_CAPABILITY=""), "switched on, but no CUDA device")


def test_strict_refuses_when_the_proof_cannot_be_written(stub: Stub) -> None:
    stub.proofs.write_text("a file where the folder should be")
    _refused(stub.run(GPUOPS_KERNELS="strict"), "the proof cannot be written")


def test_strict_refuses_what_nobody_foresaw_where_auto_leaves_it_to_the_engine(stub: Stub) -> None:
    _refused(stub.run(GPUOPS_KERNELS="strict", STUB_CAPABILITY="no driver"), "ValueError: not enough values to unpack")
    assert stub.run(STUB_CAPABILITY="no driver").answers == [STOCK]


def test_strict_refuses_an_unknown_version_in_the_launcher(stub: Stub) -> None:
    stub.edit("sglang/version.py", "0.5.23", "0.6.0")
    ran = stub.run(GPUOPS_KERNELS="strict")
    assert (ran.launcher, ran.codes) == (EXIT_REFUSED, [])
    assert "SGLang 0.6.0 is not in the table of targets" in ran.err


def test_auto_stays_out_of_an_unknown_version_and_says_so(stub: Stub) -> None:
    stub.edit("sglang/version.py", "0.5.23", "0.6.0")
    ran = stub.run()
    assert ran.answers == [STOCK] and "SGLang 0.6.0 is not in the table of targets" in ran.err
    assert {family.state for family in ran.proof.families.values()} == {proof.NOT_APPLICABLE}


def test_a_misspelt_mode_is_refused_whatever_it_was_meant_to_be(stub: Stub) -> None:
    ran = stub.run(GPUOPS_KERNELS="strickt")
    assert ran.launcher == EXIT_REFUSED and "GPUOPS_KERNELS=strickt is not a mode" in ran.err
