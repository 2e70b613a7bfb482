"""From a playbook to an order: what makes the desired state another one, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import PlaybookError
from gpuops.playbook.loader import load
from gpuops.rollout.desired import operation_id, order, simple_order

MINIMAL = """\
service: demo
host: gpu-box
runtime: {path: /opt/venv}
model: {path: /models/m}
engine: {name: sglang, version: 0.5.23}
"""


def compile_(tmp_path: Path, text: str = "") -> dict[str, Any]:
    path = tmp_path / "playbook.yaml"
    path.write_text(MINIMAL + text)
    (tmp_path / "hook.sh").write_text("#!/bin/sh\nexit 0\n")
    return order(load(path))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("", True),
        ("# a comment\n", True),
        ("probes: [{name: a, ask: x, expect: {contains: y}}]\n", True),
        ("deadlines: {start_s: 7}\n", True),
        ("restart: {max: 3}\n", True),
        ("hooks: {before-stop: hook.sh}\n", True),
        ("on_controller_lost: finish\n", True),
        ("notify: [{webhook: http://x}]\n", True),
        ("gpus: null\n", True),
        ("gpus: [0]\n", False),
        ("gpus: all\n", False),
        ("server: {flags: {tp: 2}}\n", False),
        ("server: {env: {A: b}}\n", False),
        ("server: {port: 30000}\n", False),
        ("build: {overlay: [six==1.16.0], name: b}\n", False),
    ],
)
def test_the_spec_changes_with_what_runs_and_not_with_how_it_is_asked(tmp_path: Path, text: str, same: bool) -> None:
    assert (compile_(tmp_path)["spec"] == compile_(tmp_path, text)["spec"]) is same


def test_an_order_is_whole_and_has_its_own_operation_id(tmp_path: Path) -> None:
    one, two = compile_(tmp_path), compile_(tmp_path)
    assert {**one, "op": ""} == {**two, "op": ""} and one["op"] != two["op"]
    assert (one["kind"], one["service"], one["version"]) == ("up", "demo", 1)
    assert one["prepare"] == {
        "runtime": {"kind": "path", "path": "/opt/venv"},
        "model": {"kind": "path", "path": "/models/m"},
        "build": None,
    }
    assert one["candidate"]["argv"][:3] == ["@{python}", "-m", "sglang.launch_server"]
    assert one["engine"]["ranks"]["schedulers"] == 1
    assert one["candidate"]["env"].keys() >= {"TRITON_CACHE_DIR"}


def test_a_build_comes_first_on_the_path_and_its_byte_code_lies_beside_it_as_the_runtimes_does(tmp_path: Path) -> None:
    made = compile_(tmp_path, "build: {overlay: [six==1.16.0], name: b}\nserver: {env: {PYTHONPATH: /own}}\n")
    assert made["candidate"]["env"]["PYTHONPATH"] == "@{pythonpath}:/own"
    assert "PYTHONPYCACHEPREFIX" not in made["candidate"]["env"], (
        "a new place for it would be empty, for torch and the engine too"
    )
    assert made["prepare"]["build"]["kind"] == "overlay"


def test_the_expected_ranks_are_counted_from_the_flags(tmp_path: Path) -> None:
    assert compile_(tmp_path, "server: {flags: {tp: 4, pp-size: 2}}\n")["engine"]["ranks"]["schedulers"] == 8


def test_the_flags_tell_which_cards_the_ranks_take(tmp_path: Path) -> None:
    assert compile_(tmp_path)["engine"]["ranks"]["cards"] == {"first": 0, "step": 1}
    flags = "server: {flags: {tp: 2, base-gpu-id: 4, gpu-id-step: 2}}\n"
    assert compile_(tmp_path, flags)["engine"]["ranks"]["cards"] == {"first": 4, "step": 2}


def test_an_order_carries_what_the_host_does_by_itself(tmp_path: Path) -> None:
    text = "on_controller_lost: finish\nrestart: {max: 3}\ngpus: [1, GPU-0a]\nhooks: {after-ready: hook.sh}\ndeadlines: {lease_s: 5}\n"
    made = compile_(tmp_path, text)
    assert (made["on_controller_lost"], made["deadlines"]["lease_s"], made["deadlines"]["hook_s"]) == ("finish", 5, 60)
    assert (made["candidate"]["restart"], made["candidate"]["gpus"]) == ({"max": 3, "backoff_s": 10}, [1, "GPU-0a"])
    assert made["candidate"]["hooks"] == {"after-ready": {"name": "hook.sh", "text": "#!/bin/sh\nexit 0\n"}}
    assert made["candidate"]["playbook"]["hooks"] == {"after-ready": "hook.sh"}


def test_simple_orders_leave_everything_to_the_host() -> None:
    made = simple_order("restore", "demo", deadlines={"stop_s": 1}, release=3, force=True)
    assert (made["kind"], made["spec"], made["release"], made["force"]) == ("restore", None, 3, True)


def test_operation_ids_sort_by_time_and_suit_a_folder() -> None:
    one = operation_id()
    assert len({operation_id() for _ in range(50)}) == 50
    assert set(one) <= set("0123456789abcdef-") and one[:2] == "20"


def test_a_model_of_its_configuration_alone_travels_in_the_order_and_is_named_by_its_content(tmp_path: Path) -> None:
    folder = tmp_path / "random"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("[]")
    (tmp_path / "playbook.yaml").write_text(MINIMAL.replace("{path: /models/m}", "{config: random}"))
    one = order(load(tmp_path / "playbook.yaml"))
    assert one["prepare"]["model"]["files"] == {"config.json": "{}", "tokenizer.json": "[]"}
    assert one["candidate"]["summary"]["model"] == "random"
    (folder / "config.json").write_text('{"hidden_size": 8}')
    other = order(load(tmp_path / "playbook.yaml"))
    assert other["spec"] != one["spec"] and other["prepare"]["model"]["id"] != one["prepare"]["model"]["id"]
    (folder / "config.json").unlink()
    with pytest.raises(PlaybookError, match=r"no config\.json"):
        order(load(tmp_path / "playbook.yaml"))


def test_a_runtime_that_sees_the_systems_packages_is_another_one_and_leaves_the_users_own_out(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("six==1.16.0\n")
    text = MINIMAL.replace("{path: /opt/venv}", "{lock: lock.txt}")
    (tmp_path / "playbook.yaml").write_text(text)
    plain = order(load(tmp_path / "playbook.yaml"))
    seeing = order(load(tmp_path / "playbook.yaml", ["runtime.system_packages=true"]))
    assert seeing["prepare"]["runtime"]["id"] != plain["prepare"]["runtime"]["id"]
    assert seeing["candidate"]["env"]["PYTHONNOUSERSITE"] == "1" and "PYTHONNOUSERSITE" not in plain["candidate"]["env"]
