"""swap from the command line, against a fake agent: the plan before anything is sent, what is refused, and what is handed over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_fakes import replay, service_status

from gpuops.builds.manifest import hashed, write_manifest
from gpuops.playbook.loader import load
from gpuops.rollout.desired import order

PLAYBOOK = """\
service: svc
host: ann@gpu-box
runtime: {path: /opt/venv}
model: {path: /models/llm}
engine: {name: sglang, version: 0.5.23}
probes:
  - {name: capital, ask: What is the capital of France?, expect: {contains: Paris}}
"""
STARTS = [{"outcome": "promoted", "code": 0, "phases": {"stop": 4.0, "launch": 30.0}}]


def build(folder: Path, name: str, text: str) -> str:
    """A build in the folder's store; returns its id."""
    site = folder / "builds" / "new" / "site"
    site.mkdir(parents=True)
    (site / "pack.py").write_text(text)
    tree = hashed(name, {"site": site})
    write_manifest(site.parent, tree)
    site.parent.rename(folder / "builds" / tree.id)
    return tree.id


@pytest.fixture
def history(folder: Path) -> dict[str, Any]:
    """One good release: what the playbook says, without a build."""
    (folder / "gpuops.yaml").write_text(PLAYBOOK)
    wanted = order(load(folder / "gpuops.yaml"))
    candidate = wanted["candidate"]
    release = {"release": 3, "state": "good", "spec": wanted["spec"], "base": wanted["base"], "build": None, "swap": False}
    shown = {"runtime": "path:/opt/venv", "summary": candidate["summary"], "playbook": candidate["playbook"]}
    return {"service": "svc", "current": 3, "known_good": 3, "releases": [{**release, **shown}], "operations": STARTS}


def there(args: dict[str, Any], on_event: Any) -> dict[str, Any]:
    return {"present": True}


def test_swap_shows_plan_and_expected_outage_then_sends_the_build_and_the_order(folder, history, agent, gpuops):
    chosen = build(folder, "pack", "A = 1\n")
    fake = agent(status=service_status(), history=history, run=replay("promoted"), **{"tree.have": there})
    said = gpuops("swap", "pack", "--reason", "faster")
    assert said.code == 0, said.err
    assert [verb for verb, _ in fake.calls] == ["status", "history", "tree.have", "run"]
    sent = fake.calls[-1][1]["order"]
    assert (sent["prepare"]["build"]["id"], sent["swap"], sent["reason"]) == (chosen, True, "faster")
    assert f"  build  (none)  ->  {chosen}" in said.err.splitlines()
    assert "expected outage  34 s (stop 4.0 s, start 30 s: as in its last rollout)" in said.err.splitlines()


def test_a_dry_run_shows_the_plan_and_sends_nothing(folder, history, agent, gpuops):
    build(folder, "pack", "A = 1\n")
    fake = agent(status=service_status(), history={**history, "operations": []})
    said = gpuops("swap", "pack", "--dry-run")
    assert said.code == 0 and [verb for verb, _ in fake.calls] == ["status", "history"]
    assert "expected outage  unknown: this service has no history of a start" in said.out.splitlines()


def test_a_dry_run_as_json_is_one_object(folder, history, agent, gpuops):
    build(folder, "pack", "A = 1\n")
    agent(status=service_status(), history=history)
    [told] = gpuops("swap", "pack", "--dry-run", "--json").objects
    assert told["outage"] == {"seconds": 34.0, "stop_s": 4.0, "start_s": 30.0, "rollouts": 1}
    assert (told["action"], told["beyond_the_build"]) == ("replace", [])


def test_a_playbook_that_says_more_than_the_build_is_refused_unless_that_is_meant(folder, history, agent, gpuops):
    build(folder, "pack", "A = 1\n")
    fake = agent(status=service_status(), history=history, run=replay("promoted"), **{"tree.have": there})
    said = gpuops("swap", "pack", "--set", "server.flags.tp=4")
    assert said.code == 13 and "server.flags.tp: (none) -> 4" in said.err
    assert "run" not in [verb for verb, _ in fake.calls]
    assert gpuops("swap", "pack", "--set", "server.flags.tp=4", "--with-playbook-changes").code == 0


def test_a_build_that_is_not_there_is_refused_before_anything_is_asked(folder, history, agent, gpuops):
    chosen = build(folder, "pack", "A = 1\n")
    fake = agent()
    said = gpuops("swap", "other")
    assert said.code == 2 and chosen in said.err and fake.calls == []


def test_a_name_that_two_builds_have_is_refused_with_both(folder, history, agent, gpuops):
    ids = {build(folder, "pack", "A = 1\n"), build(folder, "pack", "A = 2\n")}
    agent()
    said = gpuops("swap", "pack")
    assert said.code == 2 and all(each in said.err for each in ids)


def test_a_whole_name_is_preferred_to_the_beginning_of_another(folder, history, agent, gpuops):
    chosen = build(folder, "pack", "A = 1\n")
    build(folder, "pack-cpu", "A = 2\n")
    agent(status=service_status(), history=history)
    [told] = gpuops("swap", "pack", "--dry-run", "--json").objects
    assert [change["new"] for change in told["changes"]] == [chosen]


def test_a_build_that_was_altered_is_refused_before_anything_is_asked(folder, history, agent, gpuops):
    chosen = build(folder, "pack", "A = 1\n")
    (folder / "builds" / chosen / "site" / "pack.py").write_text("A = 2\n")
    fake = agent()
    said = gpuops("swap", chosen)
    assert said.code == 1 and "pack.py (altered)" in said.err and fake.calls == []


def test_a_service_that_never_ran_has_nothing_to_swap(folder, history, agent, gpuops):
    build(folder, "pack", "A = 1\n")
    empty = {**history, "current": None, "known_good": None, "releases": []}
    agent(status=service_status(release=None, server=None, known_good=None), history=empty)
    said = gpuops("swap", "pack")
    assert said.code == 1 and "gpuops up PLAYBOOK, then swap" in said.err


def test_detached_the_host_has_the_order_and_finishes_alone(folder, history, agent, gpuops, monkeypatch):
    from gpuops.rollout import watch

    build(folder, "pack", "A = 1\n")
    agent(status=service_status(), history=history, **{"tree.have": there})
    orders: list[dict[str, Any]] = []
    monkeypatch.setattr(watch, "hand_over", lambda session, wanted: orders.append(wanted) or "op-1")
    assert gpuops("swap", "pack", "--detach", "--yes").code == 0
    assert (orders[0]["on_controller_lost"], orders[0]["swap"]) == ("finish", True)


@pytest.mark.parametrize(("words", "answer", "code"), [((), False, 1), ((), True, 0), (("--yes",), False, 0)])
def test_on_a_terminal_you_are_asked_unless_yes(words, answer, code, folder, history, agent, gpuops, monkeypatch):
    from gpuops.cli import swap

    build(folder, "pack", "A = 1\n")
    fake = agent(status=service_status(), history=history, run=replay("promoted"), **{"tree.have": there})
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(swap, "sys", SimpleNamespace(stdin=terminal, stderr=terminal))
    monkeypatch.setattr(swap.typer, "confirm", lambda *args, **options: answer)
    assert gpuops("swap", "pack", *words).code == code
    assert ("run" in [verb for verb, _ in fake.calls]) is (code == 0)
