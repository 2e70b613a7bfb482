"""up and plan with a whole playbook, against a fake agent; schema and sandbox."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from cli_fakes import recorded, replay, service_status
from rich.console import Console

from gpuops.cli import last
from gpuops.report.live import LiveProgress
from gpuops.report.style import PLAIN, Paint

PLAYBOOK = """\
service: svc
host: ann@gpu-box
runtime: {path: /opt/venv}
model: {path: /models/llm}
engine: {name: sglang, version: 0.5.23}
probes:
  - {name: capital, ask: What is the capital of France?, expect: {contains: Paris}}
"""
HISTORY = {"service": "svc", "current": None, "known_good": None, "releases": [], "operations": []}


@pytest.fixture
def playbook(folder: Path) -> Path:
    path = folder / "prod.yaml"
    path.write_text(PLAYBOOK)
    return path


def test_up_ends_with_where_the_server_is_and_how_to_ask_it(playbook, agent, gpuops):
    agent(run=replay("promoted"))
    said = gpuops("up", "prod.yaml")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "release 1 of svc is good and serves on gpu-box"
    assert "  content     sglang 0.5.23, llm" in lines
    assert "  URL         http://127.0.0.1:46757/v1 on the host" in lines
    assert '  ask         gpuops chat "What is the capital of France?"' in lines
    assert "  next        gpuops status, gpuops logs -f, gpuops down" in lines


def test_up_shows_the_tunnel_in_the_users_own_ssh_words(playbook, agent, gpuops):
    agent(run=replay("promoted"))
    assert "ssh -N -L 46757:127.0.0.1:46757 gpu-box" in gpuops("up", "prod.yaml").out


def test_up_with_nothing_to_do_says_so_in_one_line(playbook, agent, gpuops):
    agent(run={"outcome": "unchanged", "code": 0, "release": 4, "pid": 1, "port": 2, "seconds": 0.1, "phases": {}})
    assert gpuops("up", "prod.yaml").out == "release 4 is running and answers right; nothing to do\n"


def test_up_remembers_its_playbook_for_the_verbs_that_follow(playbook, folder, agent, gpuops):
    agent(run=replay("promoted"), status=service_status())
    gpuops("up", "prod.yaml", "--host", "box-b")
    assert last.recall(folder) == last.Used(str(playbook), "box-b")
    assert gpuops("status").code == 0


def test_a_playbook_that_is_invalid_is_not_remembered(playbook, folder, agent, gpuops):
    playbook.write_text(PLAYBOOK.replace("engine:", "motor:"))
    agent()
    assert gpuops("up", "prod.yaml").code == 3
    assert last.recall(folder) is None


def test_up_sends_set_and_reason_in_the_order(playbook, agent, gpuops):
    fake = agent(run=replay("promoted"))
    gpuops("up", "prod.yaml", "--set", "server.flags.tp=4", "--reason", "try tp 4")
    [(verb, args)] = fake.calls
    assert (verb, args["order"]["reason"]) == ("run", "try tp 4")
    assert args["order"]["candidate"]["summary"]["flags"] == {"tp": 4}


def test_up_stores_secrets_before_the_order_and_shows_their_names_only(playbook, agent, gpuops, monkeypatch):
    playbook.write_text(PLAYBOOK + "secrets: [API_KEY]\nserver: {flags: {api-key: '${API_KEY}'}}\n")
    monkeypatch.setenv("API_KEY", "very-hidden")
    fake = agent(secret={"stored": ["API_KEY"]}, run=replay("promoted"))
    said = gpuops("up", "prod.yaml", "-v")
    assert fake.calls[0] == ("secret", {"values": {"API_KEY": "very-hidden"}})
    assert "secrets stored on the host: API_KEY" in said.err
    assert "  ask         gpuops chat --api-key-env API_KEY " in said.out
    assert "very-hidden" not in said.out + said.err + json.dumps(fake.calls[1:])


def test_up_pushes_a_build_that_the_host_has_and_says_so(playbook, folder, agent, gpuops):
    (folder / "site").mkdir()
    (folder / "site" / "kernel.py").write_text("x = 1\n")
    playbook.write_text(PLAYBOOK + "build: {tree: site}\n")
    fake = agent(run=replay("promoted"), **{"tree.have": {"present": True}})
    assert "is on the host already" in gpuops("up", "prod.yaml").err
    assert [verb for verb, _ in fake.calls] == ["tree.have", "run"]


def test_plan_says_what_would_be_done_and_asks_for_nothing(playbook, agent, gpuops):
    fake = agent(status=service_status(release=None, server=None, known_good=None), history=HISTORY)
    said = gpuops("plan", "prod.yaml")
    assert said.code == 0
    assert said.out.splitlines()[0] == "svc on gpu-box: nothing runs; a release would be started"
    assert [verb for verb, _ in fake.calls] == ["status", "history"]


def test_plan_shows_each_change(playbook, agent, gpuops):
    summary = {"engine": "sglang 0.5.23", "model": "llm", "build": None, "flags": {"tp": 2}}
    entry = {"release": 3, "state": "good", "spec": "other", "runtime": "path:/opt/venv", "summary": summary}
    agent(status=service_status(), history={**HISTORY, "releases": [entry]})
    said = gpuops("plan", "prod.yaml", "--set", "server.flags.tp=4")
    assert "  server.flags.tp  2  ->  4" in said.out.splitlines()


def test_smoke_with_a_playbook_puts_its_probes(playbook, agent, gpuops):
    told = {"state": "serving", "evidence": ""}
    fake = agent(smoke={"verdict": "right", "passed": True, "release": 1, "check": told, "results": []})
    gpuops("smoke", "-p", "prod.yaml")
    assert [probe["name"] for probe in fake.calls[0][1]["probes"]] == ["capital"]


def test_schema_is_the_json_schema_of_a_playbook(gpuops):
    assert set(json.loads(gpuops("schema").out)["properties"]) >= {"service", "host", "runtime", "model", "probes"}
    assert len(gpuops("schema", "--json").out.splitlines()) == 1


def test_a_sandbox_that_does_not_run_is_said_so(gpuops):
    said = gpuops("sandbox", "status")
    assert (said.code, said.out) == (1, "the sandbox in .sandbox does not run; gpuops sandbox start --dir .sandbox\n")


def test_stopping_a_sandbox_that_does_not_run_is_no_failure(gpuops):
    assert gpuops("sandbox", "stop", "--json").objects == [{"stopped": False}]


def live(name: str, paint: Paint = PLAIN) -> str:
    """What stays on a terminal of 200 columns after a recorded operation."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, color_system=None, legacy_windows=False)
    progress = LiveProgress(console, paint)
    with progress.shown():
        for event in recorded(name):
            progress.hear(event)
    return screen.getvalue()


def test_on_a_terminal_every_finished_phase_stays_with_its_seconds():
    screen = live("promoted")
    for phase in ("launch 0.7 s", "weights 1.2 s", "warm-up", "listening", "generating", "probes"):
        assert f"• {phase}" in screen


def test_on_a_terminal_probes_stay_as_lines():
    assert "✗ capital" in live("restored_after_wrong_answers")
    assert "✓ capital: 'The capital is Paris.'" in live("restored_after_wrong_answers")
