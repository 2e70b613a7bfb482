"""The main job on real parts: up, look, ask, break, be back. In order: a later test starts from what an earlier one left, or makes it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab import GPUOPS, Lab, process_titled, stopped, wait_for

PHASES = ["launch", "weights", "warm-up", "listening", "generating", "probes"]


def test_up_makes_everything_serves_and_marks_the_release_known_good(lab: Lab) -> None:
    fresh = not (lab.root / "runtimes").exists()
    ran = lab.up()
    assert ran.code == 0, ran
    assert ran.json["outcome"] == "promoted"
    assert [phase for phase in ran.phases() if phase in PHASES] == PHASES
    if fresh:
        assert ran.phases()[:3] == ["install", "download", "convert"]
    probes = [event for event in ran.events if event["event"] == "probe"]
    assert {probe["name"] for probe in probes} >= {"capital", "sum", "planet", "week", "echo", "fingerprint"}
    assert all(probe["passed"] for probe in probes if probe["gate"] == "required")
    entry = lab.status()
    assert entry["state"] == "running"
    assert entry["release_state"]["state"] == "good"
    assert entry["known_good"] == entry["release"] == ran.json["release"]
    assert entry["server"]["listening"] and entry["server"]["supervised"]


def test_up_again_changes_nothing(serving: Lab) -> None:
    pids = serving.servers()
    ran = serving.up()
    assert ran.code == 0
    assert ran.json["outcome"] == "unchanged"
    assert serving.servers() == pids
    assert not {"server", "stopping", "staged"} & {event["event"] for event in ran.events}


def test_the_summary_for_people_says_what_to_type_next(serving: Lab) -> None:
    ran = serving.run("up")
    assert ran.code == 0
    assert "nothing to do" in ran.out


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_status_over_both_ssh_transports(serving: Lab, transport: str) -> None:
    ran = serving.run("status", "--transport", transport)
    assert ran.code == 0, ran
    assert "running" in ran.out and "sglang 0.5.23" in ran.out and "sglang::scheduler" in ran.out


def test_status_works_with_a_host_of_the_users_ssh_config_alone(serving: Lab, tmp_path: Path) -> None:
    """No playbook: a home folder whose ~/.ssh/config has the alias, and whose ~/.gpuops is the sandbox's."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(f"Include {serving.sandbox}/ssh_config\n")
    # OpenSSH takes the home folder from the password database, so the config is named by a wrapper that comes first on PATH.
    wrapper = home / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {home}/.ssh/config "$@"\n')
    wrapper.chmod(0o755)
    env = {**serving.environment(), "PATH": f"{wrapper.parent}:{os.environ['PATH']}"}
    argv = [GPUOPS, "exec", "--host", "gpuops-sandbox", "--", "echo", "hello"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "hello\n"), ended


def test_logs_show_the_servers_own_words(serving: Lab) -> None:
    ran = serving.run("logs", "-n", "5000")
    assert ran.code == 0
    assert "The server is fired up and ready to roll!" in ran.out


def test_logs_follow_ends_when_its_reader_leaves(serving: Lab) -> None:
    argv = [GPUOPS, "logs", "-f", "-n", "1", "-p", str(serving.playbook("local.yaml"))]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=serving.environment())
    stdout = process.stdout
    assert stdout is not None
    assert stdout.readline()
    serving.run("smoke")
    wait_for(lambda: "POST /v1/chat/completions" in stdout.readline(), "the probes' access log")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    assert serving.status()["state"] == "running"


def test_smoke_puts_the_probes_and_says_right(serving: Lab) -> None:
    ran = serving.run("smoke")
    assert ran.code == 0, ran
    assert "is right: 6 of 6 probes passed" in ran.out


def test_chat_answers_through_the_tunnel(serving: Lab) -> None:
    ran = serving.run("chat", "What is the capital of France? Answer in one word.")
    assert ran.code == 0, ran
    assert "Paris" in ran.out


def test_plan_for_the_same_playbook_changes_nothing(serving: Lab) -> None:
    ran = serving.run("plan", "--json")
    assert ran.code == 0
    assert ran.json["action"] == "nothing"


def test_plan_for_the_other_build_shows_what_would_change(serving: Lab) -> None:
    plan = serving.run("plan", "--json", playbook="local-0.5.22.yaml").json
    assert plan["action"] == "replace"
    assert {"engine", "build"} <= {change["key"] for change in plan["changes"]}


def test_exec_passes_streams_and_status_through(serving: Lab) -> None:
    ran = serving.run("exec", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ran.code, ran.out, "err" in ran.err) == (7, "out\n", True)


def test_exec_in_the_runtime_finds_the_engine(serving: Lab) -> None:
    ran = serving.run("exec", "--runtime", "--", "python", "-c", "import importlib.metadata as m; print(m.version('sglang'))")
    assert (ran.code, ran.out) == (0, "0.5.23\n")


@pytest.mark.failure_mode("hang")
def test_a_stopped_scheduler_is_a_hang_and_not_slowness(serving: Lab) -> None:
    with stopped(process_titled(serving.status(), "sglang::scheduler")):
        ran = serving.run("status", "--check", "--timeout", "5", "--json")
        check = ran.json["services"][0]["check"]
    assert ran.code == 6
    assert check["state"] == "hung"
    assert "sglang::scheduler" in check["evidence"] and "stopped" in check["evidence"]
    assert serving.run("smoke").code == 0


@pytest.mark.failure_mode("garbage")
def test_garbage_answers_end_with_the_known_good_server_and_exit_code_10(serving: Lab) -> None:
    good = serving.status()["release"]
    ran = serving.up(playbook="local-bad.yaml")
    assert ran.code == 10, ran
    assert ran.json["outcome"] == "restored"
    error = ran.json["error"]
    assert "What is the capital of France?" in error["evidence"] and "logupload" in error["evidence"]
    bad = ran.json["failed"]
    state = json.loads((serving.service / "releases" / str(bad) / "state.json").read_text())
    assert state["state"] == "bad" and "capital" in state["reason"]
    assert "fired up" in (serving.service / "releases" / str(bad) / "server.log").read_text()
    entry = serving.status()
    assert (entry["release"], entry["state"]) == (good, "running")
    assert "restored" in serving.run("status").out
    assert serving.run("smoke").code == 0


def test_restore_refuses_a_bad_release_without_force(serving: Lab) -> None:
    history = serving.run("history", "--json").json
    bad = next(entry["release"] for entry in history["releases"] if entry["state"] == "bad")
    ran = serving.run("restore", str(bad))
    assert ran.code == 13
    assert "--force" in ran.err


def test_the_other_build_serves_and_restore_goes_back(serving: Lab) -> None:
    first = serving.status()["release"]
    ran = serving.up(playbook="local-0.5.22.yaml")
    assert ran.code == 0, ran
    assert ran.json["outcome"] == "promoted"
    port = ran.json["port"]
    assert _info(port)["version"] == "0.5.22"
    back = serving.run("restore", str(first), "--json")
    assert back.code == 0, back
    assert back.json["release"] == first
    assert _info(port)["version"] == "0.5.23"


def test_a_killed_server_is_seen_with_its_signal_and_up_starts_it_again(serving: Lab) -> None:
    entry = serving.status()
    os.kill(entry["server"]["pid"], signal.SIGKILL)
    dead = wait_for(lambda: _died(serving), "the server's death in status")
    assert dead["exit"]["signal"] == 9
    ran = serving.up()
    assert ran.code == 0
    assert ran.json["release"] == entry["release"], "a good release of the same content is started again"
    assert len(serving.servers()) == 1


@pytest.mark.failure_mode("controller-killed")
def test_a_client_that_is_killed_leaves_one_rollout_and_the_next_up_attaches_to_it(serving: Lab) -> None:
    change = ("--set", "server.flags.max-running-requests=4")

    def kill_the_client(event: dict[str, Any], client: subprocess.Popen[str]) -> None:
        if event.get("phase") == "weights":
            client.kill()

    killed = serving.up_watched(kill_the_client, *change)
    assert killed.code == -signal.SIGKILL
    ran = serving.up(*change)
    assert ran.code == 0, ran
    assert ran.events[0].get("attached"), "the first rollout is still played by the host"
    assert ran.json["op"] == ran.events[0]["op"]
    assert len(serving.servers()) == 1


@pytest.mark.failure_mode("port-taken")
def test_a_foreign_process_on_the_port_is_named_and_not_touched(lab: Lab) -> None:
    assert lab.run("down").code == 0
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        before = lab.run("history", "--json").json["releases"]
        ran = lab.up("--set", f"server.port={port}")
        assert ran.code == 13, ran
        assert f"pid {os.getpid()}" in ran.json["error"]["evidence"]
        assert lab.servers() == []
        assert lab.run("history", "--json").json["releases"] == before
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_down_stops_everything_and_says_so(lab: Lab) -> None:
    ran = lab.run("down", "--json")
    assert ran.code == 0
    assert lab.servers() == []
    assert lab.status()["state"] == "stopped"
    assert re.search("not running|nothing", lab.run("down").out)


def _died(lab: Lab) -> dict[str, Any] | None:
    entry = lab.status()
    return entry if entry["state"] == "died" and entry["exit"] else None


def _info(port: int) -> dict[str, Any]:
    import httpx

    value: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/server_info", timeout=30).json()
    return value
