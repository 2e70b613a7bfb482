"""pin, unpin, prune and wait: what they ask the agent for, what they print and how they end."""

from __future__ import annotations

import pytest
from cli_fakes import service_status

from gpuops.errors import Exit, GpuopsError, OutcomeUnknown, TransportError
from gpuops.report import history as history_report
from gpuops.report.narrate import lines as narrated
from gpuops.report.style import PLAIN

HOST = ("--host", "gpu-box")

PRUNED = {
    "dry_run": False,
    "bytes": 3_400_000,
    "gone": [
        {"kind": "release", "service": "svc", "name": "1", "bytes": 400_000, "why": "good, and older than the newest 5 of these"},
        {"kind": "cache", "service": None, "name": "c1", "bytes": 3_000_000, "why": "no release uses it"},
    ],
    "kept": [{"kind": "release", "service": "svc", "name": "2", "why": "the current release"}],
    "failed": [],
}


def test_prune_names_what_went_with_its_size_and_the_reason(agent, gpuops):
    fake = agent(prune=PRUNED)
    said = gpuops("prune", "--keep", "3", "--service", "svc", *HOST)
    assert said.code == 0
    assert said.out.splitlines() == [
        "3.4 MB are gone from gpu-box:",
        "  release 1 of svc  400 kB  good, and older than the newest 5 of these",
        "  cache c1          3.0 MB  no release uses it",
    ]
    ((verb, asked),) = fake.calls
    assert (verb, asked["keep"], asked["dry_run"], asked["service"]) == ("prune", 3, False, "svc")
    assert "@" in asked["by"]


def test_without_a_service_all_of_the_host_is_pruned(agent, gpuops):
    fake = agent(service="", prune=PRUNED)
    gpuops("prune", *HOST)
    assert fake.calls[0][1]["service"] is None


def test_a_dry_run_says_would(agent, gpuops):
    fake = agent(prune={**PRUNED, "dry_run": True})
    assert gpuops("prune", "--dry-run", *HOST).out.startswith("3.4 MB would go from gpu-box:\n")
    assert fake.calls[0][1]["dry_run"] is True


def test_verbose_also_says_what_stays_and_why(agent, gpuops):
    agent(prune=PRUNED)
    assert gpuops("prune", "-v", *HOST).out.splitlines()[-2:] == ["stays:", "  release 2 of svc    the current release"]


def test_nothing_to_prune_is_said(agent, gpuops):
    agent(prune={**PRUNED, "gone": [], "bytes": 0})
    assert gpuops("prune", *HOST).out == "nothing to prune on gpu-box\n"


def test_what_could_not_be_deleted_is_named_and_ends_with_1(agent, gpuops):
    agent(prune={**PRUNED, "gone": [], "failed": [{**PRUNED["gone"][1], "why": "not permitted"}]})
    said = gpuops("prune", *HOST)
    assert said.code == 1
    assert said.out.splitlines()[1:] == ["could not be deleted:", "  cache c1    not permitted"]


def test_a_busy_service_refuses_with_13(agent, gpuops):
    agent(prune=GpuopsError("service svc is busy: up is running", code=Exit.REFUSED, kind="locked"))
    assert gpuops("prune", *HOST).code == 13


@pytest.mark.parametrize("verb", ["prune", "pin", "unpin"])
def test_json_is_the_agents_answer(verb, agent, gpuops):
    told = {**PRUNED, "release": 7, "was": None}
    agent(**{verb: told})
    words = ("7",) if verb != "prune" else ()
    assert gpuops(verb, *words, "--json", *HOST).objects == [told]


def test_pin_says_how_to_end_it(agent, gpuops):
    fake = agent(pin={"release": 7, "pinned": {}})
    assert gpuops("pin", "7", "--reason", "figures", *HOST).out == "release 7 of svc is pinned; gpuops unpin 7 ends that\n"
    assert (fake.calls[0][1]["release"], fake.calls[0][1]["reason"]) == (7, "figures")


@pytest.mark.parametrize(
    ("was", "line"),
    [
        (None, "release 7 of svc was not pinned"),
        ({"by": "ann@x", "reason": "figures"}, "release 7 of svc is no longer pinned; it was by ann@x (figures)"),
        ({"by": "ann@x", "reason": None}, "release 7 of svc is no longer pinned; it was by ann@x"),
    ],
)
def test_unpin_says_what_it_ended(was, line, agent, gpuops):
    agent(unpin={"release": 7, "was": was})
    assert gpuops("unpin", "7", *HOST).out == f"{line}\n"


def test_history_shows_pinned_releases():
    release = {"release": 2, "state": "good", "reason": "", "at": 1990.0, "summary": None}
    told = {"service": "svc", "current": 2, "known_good": 2, "releases": [{**release, "pinned": {"by": "ann"}}], "operations": []}
    assert history_report.releases(told, 2000.0) == ["  *2  good  known-good, pinned  10 s ago  unknown content"]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"status": 0, "output": ""}, ["✓ hook before-stop 1.0 s"]),
        ({"status": 3, "output": "a\nb\n"}, ["✗ hook before-stop failed with status 3", "    a", "    b"]),
        ({"status": None, "output": ""}, ["✗ hook before-stop failed"]),
    ],
)
def test_a_hook_that_fails_is_shown_whole(event, told):
    assert narrated({"event": "hook", "name": "before-stop", "seconds": 1.0, **event}, PLAIN) == told


READY = {"for": "ready", "service": "svc", "release": 7, "pid": 77, "port": 30000, "evidence": "generated 'Paris'"}
PROMOTED = {"outcome": "promoted", "code": 0, "release": 7, "op": "op-1"}
DEAD = {
    "for": "dead",
    "service": "svc",
    "release": 7,
    "pid": 77,
    "code": None,
    "signal": 9,
    "at": 1.0,
    "last_lost_rank": None,
    "operation": None,
    "line": "CUDA out of memory",
}


@pytest.mark.parametrize(
    ("words", "told", "lines"),
    [
        ((), READY, ["svc is ready: release 7, pid 77, port 30000; generated 'Paris'"]),
        (("--for", "promoted"), PROMOTED, ["svc is promoted: release 7, operation op-1"]),
        (("--for", "dead"), DEAD, ["svc is dead: pid 77 of release 7 was killed by signal 9", "  line   CUDA out of memory"]),
        (
            ("--for", "dead"),
            {**DEAD, "signal": None, "line": "", "operation": {"kind": "up", "op": "op-2", "by": "ann"}},
            ["svc is dead: pid 77 of release 7 is gone", "  by     up op-2, which is running"],
        ),
    ],
)
def test_wait_prints_what_came_true(words, told, lines, agent, gpuops):
    fake = agent(wait=told)
    said = gpuops("wait", *words, *HOST)
    assert (said.code, said.out.splitlines()) == (0, lines)
    assert fake.calls[0][1] == {"service": "svc", "for": words[1] if words else "ready", "timeout_s": None}


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({"outcome": "unchanged", "code": 0, "release": 7, "op": "op-1"}, 0),
        ({"outcome": "restored", "code": 10, "release": 7, "failed": 8, "reason": "it died", "op": "op-1"}, 10),
        ({"outcome": "restore_failed", "code": 11, "release": 7, "reason": "it died", "op": "op-1"}, 11),
        ({"outcome": "stopped", "code": 0, "release": 7, "op": "op-1"}, 1),
    ],
)
def test_waiting_for_a_promotion_ends_as_the_operation_did(told, code, agent, gpuops):
    agent(wait=told)
    assert gpuops("wait", "--for", "promoted", *HOST).code == code


def test_a_wait_that_takes_too_long_ends_with_1_and_says_for_what(agent, gpuops):
    agent(wait=GpuopsError("after 5 s still waiting for release 7 of svc to generate", kind="timeout"))
    said = gpuops("wait", "--timeout", "5", *HOST)
    assert (said.code, said.err.splitlines()[0]) == (1, "error: after 5 s still waiting for release 7 of svc to generate")


def test_a_lost_link_is_answered_by_asking_again_for_what_is_known(agent, gpuops, monkeypatch):
    monkeypatch.setattr("gpuops.cli.waiter.LONGEST_WAIT_S", 0)
    heard = iter(
        [
            ([{"event": "waiting", "since": 12.5}], OutcomeUnknown("cut")),
            ([], TransportError("no route")),
            ([{"event": "waiting", "since": 12.5}, {"event": "waiting", "op": "op-1"}], OutcomeUnknown("cut")),
            ([], PROMOTED),
        ]
    )

    def answer(args, on_event):
        events, end = next(heard)
        for event in events:
            on_event(event)
        if isinstance(end, BaseException):
            raise end
        return end

    fake = agent(wait=answer)
    assert gpuops("wait", "--for", "promoted", *HOST).code == 0
    known = [{key: asked.get(key) for key in ("since", "op")} for _, asked in fake.calls]
    since = {"since": 12.5, "op": None}
    assert known == [{"since": None, "op": None}, since, since, {"since": 12.5, "op": "op-1"}]


def test_the_time_goes_on_while_the_link_is_lost(agent, gpuops, monkeypatch):
    monkeypatch.setattr("gpuops.cli.waiter.LONGEST_WAIT_S", 0)
    now = iter([100.0, 100.0, 103.0])
    monkeypatch.setattr("gpuops.cli.waiter.monotonic", lambda: next(now))
    ends = iter([OutcomeUnknown("cut"), READY])

    def answer(args, on_event):
        end = next(ends)
        if isinstance(end, BaseException):
            raise end
        return end

    fake = agent(wait=answer)
    gpuops("wait", "--timeout", "10", *HOST)
    assert [asked["timeout_s"] for _, asked in fake.calls] == [10.0, 7.0]


def test_a_link_that_stays_lost_is_given_up(agent, gpuops, monkeypatch):
    monkeypatch.setattr("gpuops.cli.waiter.LONGEST_WAIT_S", 0)
    fake = agent(wait=OutcomeUnknown("cut"), status=service_status())
    assert gpuops("wait", *HOST).code == 12
    assert len(fake.calls) == 6
