"""The playbooks that come with gpuops."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuops.playbook import load
from gpuops.rollout import desired

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
LAB = PLAYBOOKS / "gpu-lab.yaml"
# As the head of deepseek-v4-flash.yaml documents it.
DOCUMENTED = {"GPU_HOST": "ops@gpu-box", "SGLANG_VENV": "/opt/sglang-0.5.23", "MODEL_DIR": "/models/DeepSeek-V4-Flash"}


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.yaml")), ids=lambda path: path.name)
def test_a_shipped_playbook_is_valid(path: Path) -> None:
    assert load(path, environ=DOCUMENTED).model.probes


def test_the_documented_environment_is_the_one_that_the_gpu_playbook_lists() -> None:
    path = PLAYBOOKS / "deepseek-v4-flash.yaml"
    exported = re.findall(r"^#   export (\w+)=(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)

    assert dict(exported) == DOCUMENTED
    assert load(path, environ=DOCUMENTED).model.env == tuple(DOCUMENTED)


def test_the_gpu_playbook_asks_the_question_of_old() -> None:
    probes = {probe.ask: probe for probe in load(PLAYBOOKS / "deepseek-v4-flash.yaml", environ=DOCUMENTED).model.probes}
    pattern = probes["What is 17 x 23? Answer with the number only."].expect.regex

    assert pattern is not None
    assert re.search(pattern, "391")
    assert not re.search(pattern, "3910")


def test_the_bad_playbook_differs_from_the_good_one_by_its_random_weights_alone() -> None:
    good, bad = (load(PLAYBOOKS / name, environ={}).model.model_dump() for name in ("local.yaml", "local-bad.yaml"))

    assert bad["server"]["flags"].pop("load-format") == "dummy"
    assert bad == good


def test_the_previous_version_differs_by_engine_and_build_alone() -> None:
    new, old = (load(PLAYBOOKS / name, environ={}).model.model_dump() for name in ("local.yaml", "local-0.5.22.yaml"))

    assert (old.pop("engine")["version"], new.pop("engine")["version"]) == ("0.5.22", "0.5.23")
    assert (old.pop("build")["overlay"], new.pop("build")) == (("sglang==0.5.22",), None)
    assert old == new


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_labs_model_can_be_cut_for_every_number_of_cards(ranks: int) -> None:
    model = json.loads((PLAYBOOKS.parent / "kernels" / "lab" / "model" / "config.json").read_text(encoding="utf-8"))
    block, _ = model["quantization_config"]["weight_block_size"]
    blocks = {
        "rows of a head group's output": model["o_lora_rank"] * model["o_groups"],
        "query rows": model["num_attention_heads"] * model["head_dim"],
        "an expert's rows": model["moe_intermediate_size"],
    }

    whole = [name for name in ("num_attention_heads", "o_groups", "vocab_size") if model[name] % ranks]
    assert whole == []
    assert [name for name, rows in blocks.items() if rows % (ranks * block)] == []


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_labs_order_expects_as_many_ranks_as_it_has_cards(ranks: int) -> None:
    order = desired.order(load(LAB, [f"tp={ranks}"], environ={}))

    argv = order["candidate"]["argv"]
    assert argv[argv.index("--tp") + 1] == str(ranks)
    assert order["engine"]["ranks"]["schedulers"] == ranks


def test_the_lab_leaves_nvlink_multicast_off() -> None:
    env = load(LAB, environ={}).model.server.env

    assert (env["NCCL_NVLS_ENABLE"], env["TORCH_SYMM_MEM_DISABLE_MULTICAST"], env["NVSHMEM_DISABLE_NVLS"]) == ("0", "1", "1")
