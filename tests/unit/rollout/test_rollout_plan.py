"""The plan of an order on a host in a given state, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.rollout.plan import Change, plan

Json = dict[str, Any]


def order(spec: str = "new", *, flags: Json | None = None, runtime: Json | None = None, probes: int = 2) -> Json:
    return {
        "service": "demo",
        "spec": spec,
        "prepare": {
            "runtime": runtime or {"kind": "lock", "id": "rt-1", "download_bytes": 5_000_000},
            "model": {"kind": "path", "path": "/models/m"},
            "build": None,
        },
        "candidate": {"summary": {"engine": "sglang 0.5.23", "model": "m", "build": None, "flags": flags or {}}},
        "probes": [{}] * probes,
    }


def release(number: int, spec: str, state: str = "good", *, flags: Json | None = None) -> Json:
    summary = {"engine": "sglang 0.5.23", "model": "m", "build": None, "flags": flags or {}}
    return {"release": number, "spec": spec, "state": state, "runtime": "rt-1", "summary": summary}


def status(number: int | None, *, running: bool = True, good: int | None = None, **more: Any) -> Json:
    server = {"pid": 77} if running else None
    return {"release": number, "server": server, "known_good": good, "operation": None, "foreign": None, **more}


@pytest.mark.parametrize(
    ("wanted", "now", "releases", "action"),
    [
        (order("a"), status(None, running=False), [], "start"),
        (order("a"), status(1, good=1), [release(1, "a")], "nothing"),
        (order("b"), status(1, good=1), [release(1, "a")], "replace"),
        (order("a"), status(1, running=False, good=1), [release(1, "a")], "start"),
        (order("a"), status(1), [release(1, "a", "unknown")], "replace"),
    ],
    ids=["empty host", "the same runs", "another runs", "the same is down", "the same is not proved"],
)
def test_the_action_follows_from_what_runs(wanted: Json, now: Json, releases: list[Json], action: str) -> None:
    assert plan(wanted, now, {"releases": releases}).action == action


def test_a_first_start_has_nothing_to_stop_and_nothing_to_restore() -> None:
    made = plan(order(), status(None, running=False), {"releases": []})
    assert made.steps == (
        "make the runtime rt-1 (about 5 MB to download)",
        "model /models/m in place and complete",
        "stage a new release",
        "start, and wait for: process, port, identity, generation",
        "put 2 probes",
        "promote; there is nothing to restore",
    )
    assert (made.changes, made.fallback, made.warnings) == ((), None, ())


def test_a_replacement_names_what_is_stopped_and_what_would_come_back() -> None:
    made = plan(order("b"), status(2, good=1), {"releases": [release(2, "a"), release(1, "x")]})
    assert "runtime rt-1 is in place" in made.steps
    assert "stop release 2 (pid 77), with proof" in made.steps
    assert made.steps[-1] == "promote; or restore release 1"
    assert made.fallback == 1


def test_content_of_an_older_good_release_starts_that_one_again() -> None:
    made = plan(order("x"), status(2, good=2), {"releases": [release(2, "a"), release(1, "x")]})
    assert "start release 1 again: it is good and has this content" in made.steps


def test_changes_name_the_flags_that_differ() -> None:
    old = release(1, "a", flags={"tp": 8, "gone": True, "same": 1})
    made = plan(order("b", flags={"tp": 4, "new": "x", "same": 1}), status(1, good=1), {"releases": [old]})
    assert made.changes == (
        Change("server.flags.gone", "True", None),
        Change("server.flags.new", None, "x"),
        Change("server.flags.tp", "8", "4"),
    )


def test_a_list_is_the_same_as_the_host_tells_it() -> None:
    now = release(1, "a", flags={"cuda-graph-bs-decode": [1, 16]})
    made = plan(order("b", flags={"cuda-graph-bs-decode": (1, 16)}), status(1, good=1), {"releases": [now]})
    assert made.changes == ()


def test_a_path_runtime_is_used_as_it_is_and_shown_as_a_change() -> None:
    made = plan(order("b", runtime={"kind": "path", "path": "/opt/v"}), status(1, good=1), {"releases": [release(1, "a")]})
    assert made.steps[0] == "use the runtime /opt/v as it is"
    assert Change("runtime", "rt-1", "path:/opt/v") in made.changes


def test_warnings_tell_what_may_go_wrong() -> None:
    now = status(1, good=1, operation={"kind": "up", "op": "op-9"}, foreign="pid 5: nginx")
    made = plan(order("b", probes=0), now, {"releases": [release(2, "b", "bad"), release(1, "a")]})
    assert made.warnings == (
        "a rollout is running: up op-9",
        "the port is taken by a foreign process: pid 5: nginx",
        "the playbook has no probes: wrong answers will not be noticed",
        "release 2 had the same content and is bad; this would be a new attempt",
    )


def test_a_plan_is_plain_json() -> None:
    json = plan(order("b"), status(1, good=1), {"releases": [release(1, "a")]}).to_json()
    assert json.keys() == {"action", "service", "release", "fallback", "changes", "steps", "warnings", "outage"}
