"""Who steers a rollout: cancelling, asking twice, several clients, clients and runners that die, restoring on demand."""

from __future__ import annotations

import importlib
import json
import os
import signal
from pathlib import Path

import pytest
from gpuops_agent import locks, operations, proc
from gpuops_agent.__main__ import VERBS
from gpuops_agent.lease import Leash
from gpuops_agent.paths import Root, Service
from gpuops_agent.wire import AgentError
from process_lab import eventually, gone
from rollouts import Lab, Running

from gpuops.errors import GpuopsError


def runner_pid(lab: Lab, op: str) -> int:
    path = lab.service.operation(op) / "runner.json"
    return int(json.loads(eventually(lambda: path.exists() and path.read_text(), "the runner has written itself"))["pid"])


def held(lab: Lab, *faults: str, phase: str = "weights", **kwargs: object) -> Running:
    """A rollout that waits in the middle of its start until the file ``go`` exists."""
    running = lab.begin(lab.order("--hold", f"{phase}={lab.folder}/go", *faults, **kwargs))  # type: ignore[arg-type]
    running.until("phase", phase=phase)
    return running


@pytest.mark.failure_mode("ctrl-c")
def test_a_cancel_during_the_start_brings_the_known_good_release_back(lab: Lab) -> None:
    lab.good()
    running = held(lab)
    running.cancel()
    played = running.end()
    assert (played.name, played.code, played.outcome["release"]) == ("restored", 10, 1)
    assert played.outcome["kind"] == "cancelled"
    assert lab.state(2)["state"] == "unknown"
    assert lab.engines() == [played.outcome["pid"]]


@pytest.mark.failure_mode("ctrl-c")
def test_an_order_that_is_cancelled_before_it_comes_is_never_played(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    order = lab.order("--flavour", "b")
    told = lab.agent.call("cancel", service="demo", op=order["op"], before=True)
    assert told == {"cancelled": True, "before": True, "release": 1}
    with pytest.raises(GpuopsError, match="was cancelled before it came") as refused:
        lab.play(order)
    assert refused.value.code == 13
    # It is no operation: nobody takes it for a rollout that was cut.
    assert order["op"] not in [each["op"] for each in lab.history()["operations"]]
    assert lab.status()["server"]["pid"] == pid


def test_an_order_that_comes_while_it_is_cancelled_is_refused_or_undone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled between the host's first look for a cancellation and its folder."""
    order = lab.order()
    look = locks.refuse_if_locked

    def cancelled_here(service: Service) -> None:
        look(service)
        operations.cancel(lab.root, {"service": "demo", "op": order["op"], "before": True})

    monkeypatch.setattr(locks, "refuse_if_locked", cancelled_here)
    with pytest.raises(AgentError, match="was cancelled before it came"):
        operations.run(lab.root, {"order": order})
    assert not lab.service.operation(order["op"]).exists()


def test_a_cancel_without_before_leaves_nothing_behind(lab: Lab) -> None:
    assert lab.agent.call("cancel", service="demo", op="op-unheard-of") == {"cancelled": False}
    assert not lab.service.cancelled.exists()


def test_a_cancel_before_the_stop_touches_nothing(lab: Lab) -> None:
    old = lab.good().outcome["pid"]
    order = lab.order("--flavour", "b")
    # The converter of a package model is the longest preparation; a pipe that nobody writes to is a longer one.
    pipe = lab.model / "config.json"
    pipe.unlink()
    os.mkfifo(pipe)
    running = lab.begin(order)
    running.until("op")
    running.cancel()
    with pipe.open("w") as file:
        file.write("{}")
    played = running.end()
    assert (played.name, played.code) == ("cancelled", 10)
    assert not played.names("stopping", "server")
    assert lab.engines() == [old] and lab.link("current") == 1
    # It came while the new release was prepared: there is none yet.
    assert lab.state(1)["state"] == "good" and not lab.service.release(2).exists()


def test_a_cancelled_first_up_leaves_nothing_running(lab: Lab) -> None:
    running = held(lab)
    running.cancel()
    played = running.end()
    assert (played.name, played.code) == ("nothing_to_restore", 14)
    assert lab.engines() == []


def test_a_cancelled_restart_ends_with_the_release_serving(lab: Lab) -> None:
    lab.good()
    lab.faults.write_text(f"--hold weights={lab.folder}/go")
    running = lab.begin(lab.simple("restart"))
    running.until("phase", phase="weights")
    lab.faults.unlink()
    running.cancel()
    played = running.end()
    assert (played.name, played.outcome["release"], played.outcome["serving"]) == ("restored", 1, True)
    assert lab.state(1)["state"] == "good"


def test_a_restore_on_the_way_back_is_not_to_be_cancelled(lab: Lab) -> None:
    lab.good()
    running = held(lab, "--garbage")
    go = lab.folder / "go"
    go2 = lab.folder / "go2"
    lab.faults.write_text(f"--hold launch={go2}")
    go.touch()
    running.until("restoring")
    running.cancel()
    go2.touch()
    played = running.end()
    assert (played.name, played.outcome["kind"]) == ("restored", "wrong_answers")


def test_a_cancel_of_something_that_has_ended_cancels_nothing(lab: Lab) -> None:
    op = lab.good().outcome["op"]
    assert lab.agent.call("cancel", service="demo", op=op) == {"cancelled": False}
    assert lab.status()["state"] == "running"


@pytest.mark.failure_mode("order-repeated")
def test_the_same_operation_id_is_played_once_and_answers_with_its_record(lab: Lab) -> None:
    order = lab.order()
    first = lab.play(order)
    again = lab.play(order)
    assert again.outcome == first.outcome
    assert again.events == first.events
    assert len(lab.history()["operations"]) == 1


@pytest.mark.failure_mode("second-controller")
def test_an_equal_order_attaches_to_the_one_that_is_playing(lab: Lab) -> None:
    running = held(lab)
    second = lab.begin({**lab.order("--hold", f"weights={lab.folder}/go")})
    attached = second.until("op", attached=True)
    assert attached["op"] == running.op != second.op
    (lab.folder / "go").touch()
    assert second.end().outcome == running.end().outcome
    assert [entry["op"] for entry in lab.history()["operations"]] == [running.op]


@pytest.mark.failure_mode("second-controller")
def test_another_order_is_refused_and_told_who_is_at_work(lab: Lab) -> None:
    running = held(lab)
    with pytest.raises(GpuopsError) as refused:
        lab.up("--flavour", "b")
    assert (refused.value.code, refused.value.kind) == (13, "locked")
    assert f"up {running.op} by test@here" in refused.value.evidence
    with pytest.raises(GpuopsError):
        lab.down()
    (lab.folder / "go").touch()
    assert running.end().name == "promoted"


def test_an_order_may_follow_the_last_one_at_once(lab: Lab) -> None:
    for flavour in "abc":
        assert lab.up("--flavour", flavour).name == "promoted"
        assert locks.owner(lab.service) is None


@pytest.mark.failure_mode("controller-killed")
def test_a_client_that_is_killed_costs_only_the_view(lab: Lab) -> None:
    order = lab.order("--hold", f"weights={lab.folder}/go")
    client = lab.client("run", order=order)
    eventually(lambda: lab.engines(), "the engine starts")
    runner = runner_pid(lab, order["op"])
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    assert not gone(runner)
    assert lab.status()["state"] == "rollout"
    (lab.folder / "go").touch()
    played = lab.follow()
    assert (played.name, played.outcome["op"]) == ("promoted", order["op"])
    assert played.names("op", "server", "ready", "outcome") == ["op", "server", "ready", "outcome"]


def test_following_from_an_offset_gives_only_what_came_later(lab: Lab) -> None:
    op = lab.good().outcome["op"]
    whole = lab.follow(op)
    lines = (lab.service.operation(op) / "events.jsonl").read_bytes().splitlines(keepends=True)
    part = lab.follow(op, offset=sum(map(len, lines[:5])))
    assert part.events == whole.events[5:]


@pytest.mark.failure_mode("runner-killed")
def test_a_runner_that_is_killed_leaves_an_unknown_outcome_that_the_next_up_closes(lab: Lab) -> None:
    lab.good()
    running = lab.begin(lab.order("--hold", f"weights={lab.folder}/go"))
    running.until("server", release=2)
    # With one of them alive, the rollout would be undone at once.
    lab.kill_all_watchers(running.op)
    for ask in (running.end, lab.follow):
        with pytest.raises(GpuopsError) as died:
            ask()
        assert (died.value.code, died.value.kind) == (12, "runner_died")
    assert lab.state(2)["state"] == "starting"
    played = lab.up("--flavour", "b")
    assert (played.name, played.outcome["release"]) == ("promoted", 3)
    assert lab.state(2) == {**lab.state(2), "state": "unknown", "reason": "its rollout was cut"}
    assert lab.engines() == [played.outcome["pid"]]
    assert lab.follow(running.op).name == "cut"
    assert [entry["event"] for entry in lab.journal()].count("cut") == 1


@pytest.mark.failure_mode("runner-killed")
def test_a_promotion_that_was_cut_after_the_link_is_a_promotion(lab: Lab) -> None:
    lab.good()
    # As a runner leaves it that is killed between the two.
    path = lab.service.release(1) / "state.json"
    path.write_text(json.dumps({"state": "verified", "reason": "", "at": 1.0}))
    assert lab.up().name == "unchanged"
    assert lab.state(1)["state"] == "good"


# Restoring on demand.


def test_restore_goes_back_to_the_known_good_release_or_to_a_number(lab: Lab) -> None:
    lab.good()
    lab.good("--flavour", "b")
    played = lab.restore(1)
    assert (played.name, played.code, played.outcome["release"]) == ("restored", 0, 1)
    assert lab.engines() == [played.outcome["pid"]]
    assert (lab.link("current"), lab.link("good")) == (1, 1), "somebody chose it"
    again = lab.restore()
    assert (again.name, again.outcome["release"]) == ("restored", 1)
    assert again.outcome["pid"] != played.outcome["pid"]


def test_a_bad_release_is_restored_only_by_force(lab: Lab) -> None:
    lab.good()
    lab.up("--busy", "100000", start_s=0.5)
    assert lab.state(2)["state"] == "bad"
    running = lab.engines()
    refused = lab.restore(2)
    assert (refused.name, refused.code) == ("refused", 13)
    assert "1 (good), 2 (bad)" in refused.outcome["evidence"] and "--force" in refused.outcome["next"]
    assert lab.engines() == running


def test_a_forced_restore_that_fails_falls_back_to_the_known_good_release(lab: Lab) -> None:
    lab.good()
    lab.up("--garbage")
    played = lab.restore(2, force=True)
    assert (played.name, played.code) == ("restored", 10)
    assert (played.outcome["release"], played.outcome["failed"]) == (1, 2)
    assert lab.engines() == [played.outcome["pid"]] and lab.link("current") == 1


def test_a_release_that_does_not_exist_cannot_be_restored(lab: Lab) -> None:
    old = lab.good().outcome["pid"]
    played = lab.restore(9)
    assert (played.name, played.outcome["reason"]) == ("failed", "there is no release 9")
    assert lab.engines() == [old]


# Files that a crash or a person has spoiled.


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": "x"}', "\x00\xff"])
@pytest.mark.parametrize(
    "name", ["state.json", "server.json", "outcome.json", "port.json", "lock.json", "runner.json", "processes.json"]
)
@pytest.mark.failure_mode("garbled-file")
def test_a_spoiled_file_is_unknown_and_never_a_crash(lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, content: str) -> None:
    monkeypatch.setattr(operations, "RUNNER_STARTS_S", 0.0)
    op = lab.service.operation("op-1")
    op.mkdir(parents=True)
    (op / "order.json").write_text("{}")
    release = lab.service.release(1)
    release.mkdir(parents=True)
    (release / "release.json").write_text(json.dumps({"port": 1, "summary": {}, "spec": "s"}))
    lab.service.run.mkdir()
    lab.root.locks.mkdir()
    lab.service.current.symlink_to("releases/1")
    places = {
        "state.json": release,
        "server.json": lab.service.run,
        "outcome.json": op,
        "port.json": lab.service.path,
        "runner.json": op,
        "processes.json": lab.service.run,
    }
    path = places[name] / name if name in places else lab.service.lock_owner
    path.write_text(content, encoding="latin-1")
    seen = {verb: in_process(lab, verb) for verb in ("status", "history", "smoke", "follow", "cancel")}
    assert "bug" not in seen.values(), seen


def in_process(lab: Lab, verb: str) -> str:
    """A verb in this process: the kind of its error, or ``ok``."""
    module, function = VERBS[verb]
    try:
        getattr(importlib.import_module(f"gpuops_agent.{module}"), function)(lab.root, {"service": "demo", "op": "op-1"})
    except AgentError as error:
        return error.kind
    return "ok"


@pytest.mark.failure_mode("garbled-file")
def test_an_up_over_spoiled_files_ends_with_one_server(lab: Lab) -> None:
    lab.good()
    (lab.service.release(1) / "state.json").write_text("{")
    lab.service.port_file.write_text("")
    with lab.service.journal.open("a") as journal:
        journal.write('{"event": "cut in the mid')
    (lab.service.operation(lab.history()["operations"][0]["op"]) / "outcome.json").write_text("garbage")
    # Without an outcome the operation counts as cut: the supervisor looks after it by itself, and finds that all is well.
    eventually(lambda: ("recover", "nothing_to_recover") in _ended(lab), "the supervisor has looked after it")
    played = lab.up()
    assert (played.name, played.outcome["release"]) == ("promoted", 2)
    assert lab.engines() == [played.outcome["pid"]]
    assert (lab.service.release(1) / "state.json.unreadable").exists()


@pytest.mark.failure_mode("garbled-file")
def test_a_lost_pid_file_never_makes_two_servers(lab: Lab) -> None:
    lab.good()
    lab.service.server_file.write_text("{")
    played = lab.up("--flavour", "b")
    assert played.name in ("promoted", "refused")
    assert len(lab.engines()) == 1
    assert proc.read_stat(lab.engines()[0]) is not None


def _ended(lab: Lab) -> set[tuple[str, str]]:
    return {(entry["kind"], entry["outcome"]) for entry in lab.history()["operations"]}


def test_a_cancel_that_comes_before_the_runner_has_the_lock_is_kept_for_it(tmp_path: Path) -> None:
    root = Root(tmp_path)
    service = root.service("demo")
    assert operations.cancel(root, {"service": "demo", "op": "soon"}) == {"cancelled": False}, "nobody has ordered it"
    service.operation("soon").mkdir(parents=True)
    assert operations.cancel(root, {"service": "demo", "op": "soon"}) == {"cancelled": True}
    assert Leash(service, {"op": "soon"})()
