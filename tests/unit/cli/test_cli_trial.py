"""trial, records and profile as a user runs them, against a fake agent."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpuops.errors import GpuopsError, OutcomeUnknown
from gpuops.report.style import PLAIN
from gpuops.report.trial_live import TrialProgress

PLAYBOOK = """\
service: svc
host: ann@gpu-box
runtime: {path: /opt/venv}
model: {path: /models/llm}
engine: {name: sglang, version: 0.5.23}
server: {flags: {api-key: sk-inline-1}}
"""
TRIAL = """\
question: Does it start with x?
hypothesis: No.
base: prod.yaml
steps:
  - {name: "off", expect: passes}
  - {name: "on", flags: {x: 1}, expect: fails, why: to see}
verdict: {step: "on", against: "off"}
"""
FINGERPRINT = {
    "host": {"hostname": "gpu-box", "python": "3.12"},
    "card": "H200",
    "driver": "580",
    "kernel": "6",
    "runtime": {},
    "model": {},
}
OFF = {"step": "off", "verdict": "passed", "release": 2, "seconds": 60.0, "ready_s": 50.0, "fingerprint": FINGERPRINT}
ON = {
    "step": "on",
    "verdict": "failed",
    "release": 3,
    "seconds": 9.0,
    "class": "wrong_arguments",
    "kind": "died",
    "reason": "exited with status 2",
    "evidence": "error: unrecognized arguments: --x 1 api_key='sk-inline-1'",
    "fingerprint": FINGERPRINT,
}


def host(*results: dict[str, Any], outcome: str = "tried", code: int = 0, **more: Any) -> Any:
    """An answer to `run`: a trial that has these results."""

    def answer(args: dict[str, Any], on_event: Any) -> dict[str, Any]:
        op = args["order"]["op"]
        on_event({"event": "op", "t": 1.0, "op": op, "kind": "experiment"})
        for number, result in enumerate(results, 1):
            on_event({"event": "step", "t": 1.0, "op": op, "step": result["step"], "number": number, "of": 2})
            on_event({"event": "tried", "t": 2.0, "op": op, **result})
        return {"outcome": outcome, "code": code, "release": 1, "op": op, "seconds": 70.0, "steps": list(results), **more}

    return answer


@pytest.fixture
def trial(folder: Path) -> str:
    (folder / "prod.yaml").write_text(PLAYBOOK)
    (folder / "t.yaml").write_text(TRIAL)
    return "t.yaml"


def test_a_dry_run_shows_the_steps_and_asks_no_host(trial, agent, gpuops):
    fake = agent()
    said = gpuops("trial", trial, "--dry-run")
    assert said.code == 0 and not fake.calls
    lines = said.out.splitlines()
    assert lines[0] == "trial t: Does it start with x?"
    assert "  off: the base as it is" in lines and "  on: server.flags.x = 1" in lines
    assert lines[-1].endswith("the known-good release serves, and has been probed")


def test_a_dry_run_shows_no_secret(trial, gpuops, folder):
    (folder / trial).write_text(TRIAL.replace("{x: 1}", "{admin-api-key: sk-step-5}"))
    for said in (gpuops("trial", trial, "--dry-run"), gpuops("trial", trial, "--dry-run", "--json")):
        assert said.code == 0 and "server.flags.admin-api-key" in said.out and "sk-step-5" not in said.out


def test_a_trial_that_fails_before_its_first_step_says_why(trial, agent, gpuops):
    why = {"reason": "a trial ends with the known-good release, and there is none", "next": "gpuops up"}

    def answer(args: dict[str, Any], on_event: Any) -> dict[str, Any]:
        return {"outcome": "failed", "code": 1, "op": args["order"]["op"], "kind": "no_release", **why}

    agent(run=answer)
    said = gpuops("trial", trial)
    assert said.code == 1 and f"error: failed: {why['reason']}" in said.err and "next: gpuops up" in said.err


def test_a_complete_trial_shows_its_steps_its_verdict_and_its_record(trial, agent, gpuops, folder):
    agent(run=host(OFF, ON))
    said = gpuops("trial", trial)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[1].split()[:2] == ["off", "passed"] and lines[2].split()[:2] == ["on", "failed"]
    assert "reject: on has failed: wrong_arguments: exited with status 2" in lines
    assert [path.name for path in sorted((folder / "records").iterdir())] == [lines[-1].rpartition("/")[2]]
    assert "step on has failed after 9.0 s: wrong_arguments" in said.err


@pytest.mark.failure_mode("trial-unkept")
def test_a_trial_whose_record_cannot_be_written_shows_what_it_has_found(trial, agent, gpuops, folder):
    answer = host(OFF, ON)

    def spoiled(args: dict[str, Any], on_event: Any) -> dict[str, Any]:
        shutil.rmtree(folder / "records")
        (folder / "records").write_text("no folder any more")
        return answer(args, on_event)

    agent(run=spoiled)
    said = gpuops("trial", trial)
    assert said.code == 1 and "unexpectedly" not in said.err
    assert [line.split()[:2] for line in said.out.splitlines()[1:3]] == [["off", "passed"], ["on", "failed"]]
    assert said.err.splitlines()[-1].endswith("; then: gpuops trial t.yaml --resume")

    (folder / "records").unlink()
    agent(run=answer)
    assert gpuops("trial", trial).code == 0


def test_the_order_plays_every_step_and_promotes_none(trial, agent, gpuops):
    fake = agent(run=host(OFF, ON))
    gpuops("trial", trial, "--for", "480")
    order = next(args["order"] for verb, args in fake.calls if verb == "run")
    assert (order["kind"], order["service"], order["on_controller_lost"]) == ("experiment", "svc", "restore")
    assert order["experiment"] == {
        "name": "t",
        "mode": "sequence",
        "stop": "never",
        "find": "breaks",
        "done": {},
        "budget_s": 480.0,
    }
    assert [step["order"]["candidate"]["argv"][-2:] for step in order["steps"]][1] == ["--x", "1"]


def test_a_trial_that_ends_early_keeps_what_it_has_found_and_goes_on_with_the_rest(trial, agent, gpuops, folder):
    told = {**OFF, "evidence": "api_key='sk-inline-1'"}
    agent(run=host(told, outcome="trial_cut", code=10, reason="its time of 60 s is over; left: on"))
    said = gpuops("trial", trial, "--for", "60")
    assert said.code == 10
    assert "error: the trial ended early: its time of 60 s is over; left: on; release 1 (known-good) serves again" in said.err
    assert "next: gpuops trial t.yaml --resume" in said.err
    assert "sk-inline-1" not in (folder / "records" / ".t.unfinished.json").read_text()
    assert gpuops("trial", trial).code == 2
    fake = agent(run=host(ON))
    assert gpuops("trial", trial, "--resume").code == 0
    order = next(args["order"] for verb, args in fake.calls if verb == "run")
    assert order["experiment"]["done"] == {"off": "passed"}
    record = json.loads(next((folder / "records").glob("*/record.json")).read_text())
    assert [step["name"] for step in record["steps"]] == ["off", "on"]


def test_a_lost_link_leaves_a_trial_that_can_be_followed_again(trial, agent, gpuops, monkeypatch):
    monkeypatch.setattr("gpuops.rollout.watch.ATTEMPTS", 1)
    fake = agent(run=OutcomeUnknown("the link is lost"))
    assert gpuops("trial", trial).code == 12
    op = next(args["order"]["op"] for verb, args in fake.calls if verb == "run")
    fake = agent(run=host(OFF, ON))
    assert gpuops("trial", trial, "--resume").code == 0
    assert [args["order"]["op"] for verb, args in fake.calls if verb == "run"] == [op]


def test_a_refused_trial_is_told_so(trial, agent, gpuops):
    agent(run=GpuopsError("the service is busy", kind="locked"))
    said = gpuops("trial", trial)
    assert said.code == 1 and "the service is busy" in said.err
    agent(run=host(OFF, ON))
    assert gpuops("trial", trial).code == 0, "nothing was found that could be lost"


def test_a_known_good_release_that_does_not_come_back_is_an_error_of_its_own(trial, agent, gpuops):
    agent(run=host(OFF, ON, outcome="restore_failed", code=11, reason="it died", evidence="boom", next="gpuops logs"))
    said = gpuops("trial", trial)
    assert said.code == 11 and "release 1 is not back: it died" in said.err


def test_records_are_listed_shown_and_exported_without_secrets(trial, agent, gpuops, folder):
    agent(run=host(OFF, ON))
    gpuops("trial", trial)
    assert "reject" in gpuops("records", "list").out
    page = gpuops("records", "show").out
    assert "**Question.** Does it start with x?" in page and "**Verdict: reject.**" in page
    said = gpuops("records", "export", "t", "out", "--step", "on")
    assert said.code == 0
    for path in [*(folder / "out").iterdir(), *(folder / "records").rglob("*.*")]:
        assert path.is_dir() or "sk-inline-1" not in path.read_text(), path
    assert gpuops("records", "export", "t", "out").code == 2


def test_the_live_table_shows_what_runs_what_has_a_verdict_and_what_is_to_come():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    view = TrialProgress(console, PLAIN, ["off", "on", "last"], [])
    view.hear({"event": "tried", "t": 1.0, **OFF})
    view.hear({"event": "step", "t": 2.0, "step": "on", "number": 2, "of": 3})
    view.hear({"event": "phase", "t": 3.0, "phase": "weights", "progress": 0.5, "detail": "loading"})
    screen.truncate(0)
    console.print(view._draw())
    text = screen.getvalue()
    rows = [line.split()[:2] for line in text.splitlines() if line.strip()]
    assert ["off", "passed"] in rows and ["on", "runs"] in rows and ["last", "-"] in rows
    assert "weights" in text and "50%" in text


def trace() -> bytes:
    kernel = {"ph": "X", "cat": "kernel", "name": "nvjet_x", "ts": 1.0, "dur": 2.0, "tid": 7}
    return gzip.compress(json.dumps({"traceEvents": [kernel]}).encode())


def profile_answers(data: bytes, lose: int = 0) -> dict[str, Any]:
    """`profile` and `profile.get`; the link is lost ``lose`` times in the middle of a file."""
    left = [lose]
    file = {"name": "gpuops-1-TP-0.trace.json.gz", "rank": "TP-0", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def get(args: dict[str, Any], on_event: Any) -> dict[str, Any]:
        rest = data[args["offset"] :]
        on_event({"event": "chunk", "t": 1.0, "data": base64.b64encode(rest[:10]).decode()})
        if left[0]:
            left[0] -= 1
            raise OutcomeUnknown("the link is lost")
        on_event({"event": "chunk", "t": 1.0, "data": base64.b64encode(rest[10:]).decode()})
        return {"bytes": len(data)}

    made = {"service": "svc", "release": 4, "profile": "p", "steps": 1, "concurrency": 16, "folder": "/there", "files": [file]}
    return {"profile": made, "profile.get": get}


def test_a_profile_is_fetched_shown_and_kept(trial, agent, gpuops, folder):
    agent(**profile_answers(trace(), lose=2))
    said = gpuops("profile", "-p", "prod.yaml", "--out", "p")
    assert said.code == 0
    assert said.out.startswith("release 4 of svc, 16 at once: 1 steps")
    assert gpuops("profile", "show", "p").out == said.out
    assert gpuops("profile", "diff", "p", "p").code == 0


def test_a_profile_of_so_few_steps_that_their_number_cannot_be_told_is_refused(trial, agent, gpuops):
    said = gpuops("profile", "-p", "prod.yaml", "--steps", "3")
    assert said.code == 2 and "4 to 1000" in " ".join(said.err.split())


def test_a_profile_that_does_not_know_its_service_is_called_by_its_folder(trial, agent, gpuops, folder):
    agent(**profile_answers(trace()))
    gpuops("profile", "-p", "prod.yaml", "--out", "p")
    told = json.loads((folder / "p" / "profile.json").read_text())
    del told["about"]["service"]
    (folder / "p" / "profile.json").write_text(json.dumps(told))
    assert gpuops("profile", "show", "p").out.startswith("p: 1 steps")


def test_a_damaged_record_is_a_note_of_the_list(trial, agent, gpuops, folder):
    agent(run=host(OFF, ON))
    gpuops("trial", trial)
    (found,) = (folder / "records").iterdir()
    (folder / "records" / "old").mkdir()
    (folder / "records" / "old" / "record.json").write_text('{"version": 1}')
    said = gpuops("records", "list")
    assert said.code == 0 and said.out.splitlines()[0].startswith(found.name)
    assert said.err.startswith("left out: the record old cannot be read: records/old/record.json: it lacks ")
    assert gpuops("records", "show", "old").code == 1


def test_traces_that_are_larger_than_wanted_stay_on_the_host(trial, agent, gpuops):
    answers = profile_answers(trace())
    answers["profile"]["files"][0]["bytes"] = 3_000_000_000
    agent(**answers)
    said = gpuops("profile", "-p", "prod.yaml")
    assert said.code == 1
    assert "the traces have 3.0 GB, more than --most 500" in said.err and "/there on the host" in said.err
    assert "--most 3001, or --rank TP-0" in said.err


def test_a_trace_that_arrives_otherwise_than_it_was_sent_is_refused(trial, agent, gpuops):
    answers = profile_answers(trace())
    answers["profile"]["files"][0]["sha256"] = "0" * 64
    agent(**answers)
    assert "did not arrive as it was sent" in gpuops("profile", "-p", "prod.yaml").err
