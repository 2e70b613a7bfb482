"""A swap's order and plan: the playbook with another build, what else would change, and the outage to expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.builds.manifest import Tree, hashed
from gpuops.errors import GpuopsError
from gpuops.playbook.loader import LoadedPlaybook, load
from gpuops.rollout.desired import build_tree, order
from gpuops.rollout.outage import Outage, expected
from gpuops.rollout.plan import plan
from gpuops.rollout.swap import base_release, beyond, must_be_alone, swap_order

Json = dict[str, Any]

MINIMAL = """\
service: demo
host: gpu-box
runtime: {path: /opt/venv}
model: {path: /models/m}
engine: {name: sglang, version: 0.5.23}
"""
STATUS: Json = {"service": "demo", "release": 1, "server": {"pid": 77}, "known_good": 1, "operation": None, "foreign": None}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    site = tmp_path / "builds" / "pack-1" / "site"
    site.mkdir(parents=True)
    (site / "pack.py").write_text("A = 1\n")
    return hashed("pack", {"site": site})


def playbook(tmp_path: Path, text: str = "") -> LoadedPlaybook:
    path = tmp_path / "playbook.yaml"
    path.write_text(MINIMAL + text)
    return load(path)


def entry(wanted: Json, number: int = 1, **changes: Any) -> Json:
    """A release of an order, as the agent's history tells it."""
    candidate = wanted["candidate"]
    build = (wanted["prepare"]["build"] or {}).get("id")
    told = {"release": number, "state": "good", "spec": wanted["spec"], "base": wanted["base"], "build": build}
    shown = {"runtime": "path:/opt/venv", "summary": candidate["summary"], "playbook": candidate["playbook"]}
    return {**told, "swap": bool(wanted.get("swap")), **shown, **changes}


def operation(outcome: str, code: int = 0, **phases: float) -> Json:
    return {"outcome": outcome, "code": code, "phases": {name.replace("_", "-"): seconds for name, seconds in phases.items()}}


def test_a_swap_is_the_playbooks_order_with_another_build(tmp_path: Path, tree: Tree) -> None:
    stock, swapped = order(playbook(tmp_path)), swap_order(playbook(tmp_path), tree)
    assert swapped["prepare"]["build"] == {"kind": "tree", "id": tree.id}
    assert swapped["candidate"]["argv"] == stock["candidate"]["argv"]
    assert swapped["candidate"]["env"]["PYTHONPATH"] == "@{pythonpath}"
    assert swapped["candidate"]["summary"]["build"] == "pack-1"
    assert (swapped["swap"], swapped["base"]) == (True, stock["base"]) and swapped["spec"] != stock["spec"]
    assert stock["base"] == stock["spec"]


def test_an_up_whose_playbook_names_the_build_wants_the_same_as_the_swap(tmp_path: Path, tree: Tree) -> None:
    named = playbook(tmp_path, "build: {tree: builds/pack-1/site}\n")
    assert order(named, tree=tree)["spec"] == swap_order(playbook(tmp_path), tree)["spec"]
    assert build_tree(named) is not None


def test_what_the_playbook_says_of_its_builds_proof_holds_for_the_new_build(tmp_path: Path, tree: Tree) -> None:
    required = playbook(tmp_path, "build: {tree: builds/pack-1/site, proof: required}\n")
    auto = playbook(tmp_path, "build: {tree: builds/pack-1/site}\n")
    assert swap_order(required, tree)["candidate"]["proof"] == "required"
    assert "proof" not in swap_order(auto, tree)["candidate"]
    assert swap_order(required, tree)["spec"] == swap_order(auto, tree)["spec"]


def test_a_swap_over_what_the_playbook_says_changes_the_build_alone(tmp_path: Path, tree: Tree) -> None:
    running = entry(order(playbook(tmp_path)))
    wanted = swap_order(playbook(tmp_path), tree)
    assert beyond(wanted, running) == ()
    must_be_alone((), running)
    assert [change.key for change in plan(wanted, STATUS, {"releases": [running]}).changes] == ["build"]


def test_a_swap_that_would_change_more_is_refused_with_what_it_is(tmp_path: Path, tree: Tree) -> None:
    running = entry(order(playbook(tmp_path)))
    wanted = swap_order(playbook(tmp_path, "server: {flags: {tp: 4}, env: {A: b}, port: 30000}\n"), tree)
    with pytest.raises(GpuopsError) as refused:
        must_be_alone(beyond(wanted, running), running)
    assert refused.value.code == 13 and "--with-playbook-changes" in refused.value.next
    assert refused.value.evidence.split("; ") == [
        "server.flags.tp: (none) -> 4",
        "server.env.A: (none) -> b",
        "server.port: auto -> 30000",
    ]


def test_a_difference_that_has_no_name_is_told_all_the_same(tmp_path: Path, tree: Tree) -> None:
    running = entry(order(playbook(tmp_path)), base="another")
    assert [change.key for change in beyond(swap_order(playbook(tmp_path), tree), running)] == ["playbook"]


def test_a_release_of_before_bases_were_told_is_compared_by_what_is_known(tmp_path: Path, tree: Tree) -> None:
    old = entry(order(playbook(tmp_path)), base=None, playbook=None)
    assert beyond(swap_order(playbook(tmp_path), tree), old) == ()
    changed = swap_order(playbook(tmp_path, "server: {flags: {tp: 4}}\n"), tree)
    assert [change.key for change in beyond(changed, old)] == ["server.flags.tp"]


def test_the_release_whose_build_is_replaced_is_the_current_else_the_known_good_one(tmp_path: Path) -> None:
    history = {"releases": [entry(order(playbook(tmp_path)), 2), entry(order(playbook(tmp_path)), 1)]}
    assert base_release({**STATUS, "release": 2}, history)["release"] == 2
    assert base_release({**STATUS, "release": None}, history)["release"] == 1
    with pytest.raises(GpuopsError, match="demo has no release"):
        base_release({**STATUS, "release": None, "known_good": None}, history)


def test_an_up_after_a_swap_says_that_it_goes_back_to_the_playbooks_build(tmp_path: Path, tree: Tree) -> None:
    running = entry(swap_order(playbook(tmp_path), tree))
    [warning] = [text for text in plan(order(playbook(tmp_path)), STATUS, {"releases": [running]}).warnings if "swap" in text]
    assert warning == f"release 1 runs the build {tree.id}, put in by gpuops swap: this goes back to the playbook's, no build"


def test_a_swap_after_a_swap_does_not_warn(tmp_path: Path, tree: Tree) -> None:
    running = entry(swap_order(playbook(tmp_path), tree), spec="another")
    assert not [
        text for text in plan(swap_order(playbook(tmp_path), tree), STATUS, {"releases": [running]}).warnings if "swap" in text
    ]


def test_the_expected_outage_is_the_middle_of_what_the_services_own_rollouts_took() -> None:
    history = {
        "operations": [
            operation("promoted", stop=2.0, launch=10.0, weights=20.0, probes=99.0, compile=99.0),
            operation("promoted", stop=4.0, launch=10.0, warm_up=10.0, install=99.0),
            operation("promoted", launch=40.0),
            operation("restored", 10, stop=900.0, launch=900.0),
            operation("restored", 0, stop=6.0, launch=50.0),
            operation("stopped", stop=3.0),
            {"outcome": "running or cut"},
        ]
    }
    assert expected(history) == Outage(3.5, 35.0, 4)
    assert expected(history).seconds == 38.5


def test_without_a_start_in_the_history_the_outage_is_unknown() -> None:
    assert expected({"operations": [operation("stopped", stop=3.0)]}).seconds is None
    assert expected({"operations": [operation("promoted", launch=3.0)]}) == Outage(None, 3.0, 1)


def test_only_the_newest_rollouts_count() -> None:
    history = {"operations": [operation("promoted", launch=float(seconds)) for seconds in (1, 2, 3, 4, 5, 900, 900)]}
    assert expected(history).start_s == 3.0
