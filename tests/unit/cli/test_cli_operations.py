"""Rollouts as the command line shows and ends them, from recorded operations."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cli_fakes import recorded, replay, service_status

from gpuops.errors import OutcomeUnknown
from gpuops.report.plain import PlainProgress
from gpuops.report.style import PLAIN

HOST = ("--host", "gpu-box")


def plain(name: str, **options: Any) -> list[str]:
    lines: list[str] = []
    progress = PlainProgress(lines.append, PLAIN, **options)
    for event in recorded(name):
        progress.hear(event)
    return lines


def test_a_rollout_reads_as_plain_lines_with_the_hosts_time():
    assert plain("promoted") == [
        "[    0.0s] release 1 is staged",
        "[    0.0s] launch release 1",
        "[    0.3s] release 1 is started: pid 14032, port 46757",
        "[    0.7s] weights 0% loading",
        "[    1.0s] weights 25% loading",
        "[    1.4s] weights 50% loading",
        "[    1.7s] weights 75% loading",
        "[    2.0s] weights 100% loading",
        "[    2.0s] warm-up",
        "[    2.0s] listening port 46757",
        "[    2.0s] generating",
        "[    2.1s] ✓ release 1 generates, 2.0 s after its launch",
        "[    2.1s] probes 0% 1 probes",
        "[    2.1s] ✓ capital: 'The capital is Paris.' 0.0 s",
        "[    2.1s] ✓ release 1 is good: it is the known-good release now",
    ]


def test_a_death_shows_the_servers_last_words_and_the_restore():
    lines = [line.partition("] ")[2] for line in plain("restored_after_death")]
    at = lines.index("✗ the server (pid 15022) exited with status 3")
    assert lines[at + 1] == "    RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert "restoring release 1: the server (pid 15022) exited with status 3 in phase weights" in lines[at:]


def test_a_wrong_answer_shows_question_answer_and_expectation():
    lines = [line.partition("] ")[2] for line in plain("restored_after_wrong_answers")]
    at = lines.index("✗ capital 0.0 s")
    assert lines[at + 1 : at + 4] == [
        "    asked     'What is the capital of France?'",
        "    answered  'The capital is London.'",
        "    expected  contains 'Paris'",
    ]


def phases(*moments: tuple[float, float]) -> list[str]:
    """The lines for a phase `weights` with (time, progress)."""
    lines: list[str] = []
    progress = PlainProgress(lines.append, PLAIN)
    for at, done in moments:
        progress.hear({"event": "phase", "t": at, "phase": "weights", "progress": done, "detail": ""})
    return [line.partition("] ")[2] for line in lines]


def test_small_steps_of_progress_do_not_flood():
    assert phases(*((0.01 * step, 0.01 * step) for step in range(25))) == ["weights 0%", "weights 10%", "weights 20%"]


def test_slow_progress_is_told_every_few_seconds():
    assert phases((0, 0.0), (4, 0.01), (5.1, 0.02), (9, 0.03), (10.2, 0.04)) == ["weights 0%", "weights 2%", "weights 4%"]


def test_verbose_shows_events_that_have_no_words_of_their_own():
    assert any("answered release=1" in line for line in plain("promoted", verbose=True))
    assert not any("answered release=1" in line for line in plain("promoted"))


def test_a_promotion_ends_with_0_and_its_headline(agent, gpuops):
    agent(run=replay("promoted"))
    said = gpuops("restart", *HOST)
    assert said.code == 0
    assert said.out.splitlines()[:2] == ["release 1 of svc is good and serves on gpu-box", "  server      pid 14032, port 46757"]
    assert "weights 50% loading" in said.err


def test_a_restored_rollout_ends_with_10_and_the_answers_that_were_wrong(agent, gpuops):
    agent(run=replay("restored_after_wrong_answers"))
    said = gpuops("restart", *HOST, "-q")
    assert (said.code, said.out) == (10, "")
    assert said.err.splitlines() == [
        "error: release 2 failed: probe capital failed (1 of 1 put). Release 1 (known-good) serves again",
        "  because: capital:",
        "             asked     'What is the capital of France?'",
        "             answered  'The capital is London.'",
        "             expected  contains 'Paris'",
        "  next: gpuops logs --release 2",
    ]


def test_a_restored_rollout_after_a_death_ends_with_the_line_that_killed_it(agent, gpuops):
    agent(run=replay("restored_after_death"))
    assert "  because: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB" in gpuops("restart", *HOST).err


@pytest.fixture
def webhook(monkeypatch):
    """A webhook on loopback: its address, and what it has heard."""
    heard = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(404 if self.path == "/gone" else 200)
            self.end_headers()

        def log_message(self, *words):
            pass

    monkeypatch.setenv("NO_PROXY", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", heard
        server.shutdown()


def notifying(folder, address):
    (folder / "gpuops.yaml").write_text(f"service: svc\nhost: gpu-box\nsecrets: [HOOK]\nnotify: [{{webhook: '{address}'}}]\n")


def test_the_webhooks_of_the_playbook_hear_how_an_order_ended(agent, gpuops, folder, webhook, monkeypatch):
    notifying(folder, "${HOOK}/x")
    monkeypatch.setenv("HOOK", webhook[0])
    agent(run=replay("restored_after_death"))
    assert gpuops("restart").code == 10
    assert [(each["service"], each["host"], each["outcome"], each["code"]) for each in webhook[1]] == [
        ("svc", "gpu-box", "restored", 10)
    ]


def test_a_webhook_that_fails_is_a_warning_and_changes_no_exit_code(agent, gpuops, folder, webhook):
    notifying(folder, f"{webhook[0]}/gone")
    agent(run=replay("promoted"))
    said = gpuops("restart", "--json")
    assert (said.code, said.objects[-1]["outcome"]) == (0, "promoted")
    assert said.err.splitlines()[-1] == "warning: the webhook notify.0 was not told: HTTP 404"


def test_a_webhook_whose_secret_is_not_set_is_a_warning(agent, gpuops, folder, monkeypatch):
    notifying(folder, "${HOOK}")
    monkeypatch.delenv("HOOK", raising=False)
    agent(run=replay("promoted"))
    said = gpuops("restart")
    assert said.code == 0
    assert "warning: no webhook was told" in said.err and "the secret HOOK is not set" in said.err


def test_who_only_follows_tells_no_webhook(agent, gpuops, folder, webhook):
    notifying(folder, webhook[0])
    agent(follow=replay("promoted"))
    assert gpuops("attach").code == 0
    assert webhook[1] == []


def test_with_json_every_event_is_a_line_and_the_outcome_is_the_last(agent, gpuops):
    agent(run=replay("promoted"))
    said = gpuops("restart", *HOST, "--json")
    assert [each["event"] for each in said.objects[:-1]] == [event["event"] for event in recorded("promoted")[:-1]]
    assert said.objects[-1]["outcome"] == "promoted"


def test_with_json_a_failed_outcome_carries_its_error(agent, gpuops):
    agent(run=replay("restored_after_death"))
    end = gpuops("restart", *HOST, "--json").objects[-1]
    assert (end["outcome"], end["release"], end["error"]["code"], end["error"]["kind"]) == ("restored", 1, 10, "restored")


@pytest.mark.parametrize(
    ("outcome", "code", "headline"),
    [
        ("stopped", 0, "svc is stopped on gpu-box"),
        ("not_running", 0, "svc does not run on gpu-box; nothing to do"),
        ("unchanged", 0, "release 4 is running and answers right; nothing to do"),
        ("restored", 0, "release 4 of svc is restored and serves on gpu-box"),
    ],
)
def test_each_good_outcome_has_its_headline(outcome, code, headline, agent, gpuops):
    agent(run={"outcome": outcome, "code": 0, "release": 4, "seconds": 1.0, "phases": {}})
    said = gpuops("down", *HOST)
    assert (said.code, said.out.splitlines()[0]) == (code, headline)


@pytest.mark.parametrize(
    ("outcome", "code"), [("restored", 10), ("restore_failed", 11), ("refused", 13), ("nothing_to_restore", 14), ("failed", 5)]
)
def test_each_bad_outcome_ends_with_its_code(outcome, code, agent, gpuops):
    agent(run={"outcome": outcome, "code": code, "release": 4, "reason": "so it is", "seconds": 1.0, "phases": {}})
    said = gpuops("down", *HOST)
    assert said.code == code
    assert "so it is" in said.err.splitlines()[0]


def test_down_sends_the_reason_and_the_playbooks_deadlines(folder, agent, gpuops):
    (folder / "gpuops.yaml").write_text("service: svc\nhost: gpu-box\ndeadlines: {stop_s: 7}\n")
    fake = agent(run={"outcome": "stopped", "code": 0, "release": 1, "seconds": 1.0, "phases": {}})
    gpuops("down", "--reason", "maintenance")
    [(verb, args)] = fake.calls
    assert (verb, args["order"]["kind"], args["order"]["reason"]) == ("run", "down", "maintenance")
    assert args["order"]["deadlines"]["stop_s"] == 7.0


def history(known_good: int | None, *releases: int) -> dict[str, Any]:
    entries = [{"release": n, "state": "bad", "reason": "it died", "at": 0.0, "summary": None} for n in releases]
    return {"service": "svc", "current": None, "known_good": known_good, "releases": entries, "operations": []}


def test_restore_without_a_number_takes_the_known_good_release_and_says_which(agent, gpuops):
    fake = agent(history=history(3, 4, 3), run={"outcome": "restored", "code": 0, "release": 3, "seconds": 1.0, "phases": {}})
    said = gpuops("restore", *HOST)
    assert "restoring release 3, the known-good one" in said.err
    assert fake.calls[-1][1]["order"]["release"] == 3


def test_restore_of_a_number_asks_for_that_one_and_passes_force(agent, gpuops):
    fake = agent(run={"outcome": "restored", "code": 0, "release": 7, "seconds": 1.0, "phases": {}})
    gpuops("restore", "7", "--force", *HOST)
    order = fake.calls[-1][1]["order"]
    assert (order["release"], order["force"]) == (7, True)


def test_restore_without_a_known_good_release_lists_the_candidates(agent, gpuops):
    agent(history=history(None, 4, 3))
    said = gpuops("restore", *HOST)
    assert said.code == 1
    assert said.err.splitlines()[0] == "error: svc has no known-good release"
    assert "4  bad" in said.err and "3  bad" in said.err and "next: gpuops restore 4" in said.err


def test_attach_ends_as_the_operation_ended(agent, gpuops):
    agent(follow=replay("restored_after_death"))
    assert gpuops("attach", *HOST).code == 10


def test_ctrl_c_only_leaves_attach_and_asks_for_nothing(agent, gpuops):
    fake = agent(follow=KeyboardInterrupt())
    said = gpuops("attach", *HOST)
    assert (said.code, [verb for verb, _ in fake.calls]) == (0, ["follow"])
    assert "the host goes on" in said.err


def test_attach_undo_asks_the_host_to_undo_the_running_operation(agent, gpuops):
    operation = {"op": "op-1", "kind": "up", "by": "ann", "at": 0.0, "reason": None}
    fake = agent(status=service_status(operation=operation), cancel={"cancelled": True}, follow=replay("restored_after_death"))
    assert gpuops("attach", "--undo", *HOST).code == 10
    assert fake.calls[1] == ("cancel", {"service": "svc", "op": "op-1"})
    assert fake.calls[2] == ("follow", {"service": "svc", "op": "op-1"})


def test_attach_undo_without_a_running_operation_says_so(agent, gpuops):
    agent(status=service_status())
    said = gpuops("attach", "--undo", *HOST)
    assert (said.code, said.err.splitlines()[0]) == (1, "error: there is nothing to undo: svc has no running operation")


def test_a_link_that_does_not_come_back_ends_with_12(agent, gpuops, monkeypatch):
    monkeypatch.setattr("gpuops.rollout.watch.ATTEMPTS", 1)
    agent(run=OutcomeUnknown("cut"), follow=OutcomeUnknown("cut"))
    said = gpuops("down", *HOST)
    assert said.code == 12
    assert "gpuops attach" in said.err


def test_ctrl_c_during_an_order_of_ours_asks_the_host_to_undo_it(agent, gpuops):
    fake = agent(run=KeyboardInterrupt(), cancel={"cancelled": True}, follow=replay("restored_after_death"))
    assert gpuops("restart", *HOST).code == 10
    assert [verb for verb, _ in fake.calls] == ["run", "cancel", "follow"]
