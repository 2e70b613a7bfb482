"""The sides of a comparison: what words mean, what is ordered for them, and what else differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import GpuopsError
from gpuops.playbook import load
from gpuops.playbook.loader import LoadedPlaybook
from gpuops.rollout.desired import order
from gpuops.rollout.sides import differences, resolve

PLAYBOOK = """\
service: demo
host: gpu-box
runtime: {path: /opt/venv}
model: {path: /models/m}
engine: {name: sglang, version: 0.5.23}
server: {flags: {tp: 8}}
"""
TICKET = {"id": "ab-1", "token": "t-1"}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedPlaybook:
    (tmp_path / "demo.yaml").write_text(PLAYBOOK)
    return load(tmp_path / "demo.yaml", environ={})


@pytest.fixture
def build(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / "pack.py").write_text("X = 1\n")
    return folder


def nowhere(word: str) -> Path:
    raise GpuopsError(f"there is no build {word}")


def release(number: int, **changes: Any) -> dict[str, Any]:
    summary = {"engine": "sglang 0.5.23", "model": "m", "build": None, "flags": {"tp": 8}}
    return {
        "release": number,
        "state": "good",
        "reason": "",
        "summary": summary,
        "runtime": "path:/opt/venv",
        "base": None,
        **changes,
    }


def history(*releases: dict[str, Any], current: int | None = 2, known_good: int | None = 1) -> dict[str, Any]:
    return {"current": current, "known_good": known_good, "releases": list(releases or (release(2), release(1)))}


@pytest.mark.parametrize(("word", "number"), [("current", 2), ("known-good", 1), ("2", 2)])
def test_a_release_is_named_by_its_number_or_its_part(word: str, number: int) -> None:
    made = resolve(word, history(), nowhere, None)
    assert (made.side.word, made.side.release, made.order) == (word, number, None)


def test_a_release_is_launched_again_by_its_number_and_promotes_nothing() -> None:
    made = resolve("known-good", history(), nowhere, None)
    wanted = made.order_of_a_launch("demo", {"stop_s": 1.0}, "why", TICKET)
    assert (wanted["kind"], wanted["release"], wanted["trial"], wanted["on_controller_lost"]) == ("relaunch", 1, True, "restore")
    assert wanted["comparison"] == TICKET


def test_a_build_is_the_playbook_with_it_and_every_launch_an_order_of_its_own(loaded: LoadedPlaybook, build: Path) -> None:
    made = resolve("pack", history(), lambda word: build, loaded)
    first, second = (made.order_of_a_launch("demo", {}, "why", TICKET) for _ in range(2))
    assert first["kind"] == "up" and first["trial"] and first["prepare"]["build"] == {"kind": "tree", "id": made.side.word}
    assert first["spec"] == second["spec"] and first["op"] != second["op"] and first["comparison"] == TICKET


def test_none_is_the_playbook_without_a_build(loaded: LoadedPlaybook) -> None:
    made = resolve("none", history(), nowhere, loaded)
    assert made.order is not None and made.order["prepare"]["build"] is None
    assert made.order["spec"] == order(loaded)["spec"]


def test_two_builds_of_one_playbook_differ_in_nothing_else(loaded: LoadedPlaybook, build: Path) -> None:
    a, b = resolve("none", history(), nowhere, loaded), resolve("pack", history(), lambda word: build, loaded)
    assert differences(a, b) == []


def test_what_else_differs_is_named(loaded: LoadedPlaybook) -> None:
    other = release(1, base="another", summary={**release(1)["summary"], "flags": {"tp": 4}})
    a, b = resolve("known-good", history(other), nowhere, None), resolve("none", history(other), nowhere, loaded)
    assert differences(a, b) == ["server.flags.tp: 4 and 8"]


def test_a_release_of_another_desired_state_whose_difference_shows_nowhere_is_said(loaded: LoadedPlaybook) -> None:
    told = release(1, base="another", runtime="path:/opt/venv")
    a, b = resolve("1", history(told), nowhere, None), resolve("none", history(told), nowhere, loaded)
    assert differences(a, b) == ["something else that makes the desired state, such as the environment"]


@pytest.mark.parametrize(
    ("word", "what"),
    [("9", "there is no release 9"), ("1", "release 1 is bad: it died"), ("current", "there is no release current")],
)
def test_what_cannot_be_launched_is_refused(word: str, what: str) -> None:
    told = history(release(1, state="bad", reason="it died"), current=None)
    with pytest.raises(GpuopsError) as caught:
        resolve(word, told, nowhere, None)
    assert caught.value.what == what


def test_a_build_without_a_playbook_is_refused(build: Path) -> None:
    with pytest.raises(GpuopsError) as caught:
        resolve("pack", history(), lambda word: build, None)
    assert caught.value.code == 2 and "needs a playbook" in caught.value.what
