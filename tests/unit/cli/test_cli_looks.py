"""status, history, logs, exec, smoke: what they print and how they end."""

from __future__ import annotations

import pytest
from cli_fakes import service_status

from gpuops.errors import OutcomeUnknown
from gpuops.report import history as history_report
from gpuops.report import status as status_report
from gpuops.report.style import PLAIN
from gpuops.report.words import duration, size

HOST = ("--host", "gpu-box")


def block(**changes):
    return status_report.lines(service_status(**changes), "gpu-box", 2000.0, PLAIN)


def test_a_running_service_reads_as_a_small_block():
    assert block() == [
        "svc on gpu-box: running",
        "  release     3 (good), known-good",
        "  content     sglang 0.5.23, llm",
        "  server      pid 77, port 30000, up 2 h 3 min, supervised",
        "  processes   1: sglang::scheduler (78)",
    ]


DIED = {
    "state": "died",
    "server": None,
    "exit": {"pid": 77, "release": 3, "code": None, "signal": 9, "at": 1940.0, "last_lost_rank": None},
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (DIED, "  ended       pid 77 of release 3 was killed by signal 9, 1 min ago"),
        ({**DIED, "exit": None}, "  ended       nobody recorded how"),
        ({"known_good": 2, "release_state": {"state": "bad", "reason": "it died"}}, "  release     3 (bad), known-good is 2"),
        ({"server": None, "foreign": "pid 9: nc -l"}, "  port        30000 is taken by a process that is not ours: pid 9: nc -l"),
        ({"check": {"state": "hung", "evidence": "no token in 30 s"}}, "  check       hung: no token in 30 s"),
        (
            {"operation": {"op": "op-1", "kind": "up", "by": "ann", "at": 1988.0}},
            "  rollout     up op-1 by ann, begun 12 s ago; gpuops attach follows it",
        ),
        (
            {
                "last_operation": {
                    "kind": "up",
                    "outcome": "restored",
                    "release": 3,
                    "failed": 4,
                    "reason": "it died",
                    "seconds": 31.0,
                }
            },
            "  last        up: restored (release 3) in 31 s: release 4 failed: it died",
        ),
    ],
)
def test_what_is_special_about_a_service_has_its_line(changes, line):
    assert line in block(**changes)


def test_lost_ranks_and_a_missing_supervisor_are_named():
    server = service_status()["services"][0]["server"]
    lost = [{"pid": 78, "title": "sglang::scheduler_TP1", "code": None, "signal": 9, "at": 1.0}]
    lines = block(state="degraded", server={**server, "lost": lost, "supervised": False})
    assert "  lost rank   sglang::scheduler_TP1 (pid 78) was killed by signal 9" in lines
    assert any("NOT supervised" in line for line in lines)


def test_lost_ranks_are_told_in_the_words_of_the_agent():
    words = "1 of 2 ranks lost: TP1, signal 9"
    server = service_status()["services"][0]["server"]
    lost = [{"pid": 78, "title": "sglang::scheduler_TP1", "code": None, "signal": 9, "at": 1.0}]
    assert f"  lost        {words}" in block(state="degraded", server={**server, "lost": lost}, ranks_lost=words)
    ended = {**DIED["exit"], "last_lost_rank": lost[0]}
    assert f"  lost        {words}, before it" in block(**{**DIED, "exit": ended}, ranks_lost=words)


def test_a_host_without_services_says_so(agent, gpuops):
    agent(service="", status={**service_status(), "services": []})
    assert gpuops("status", *HOST).out.startswith("gpu-box: no service (5.0 GB free in /root/.gpuops)")


def test_status_is_0_when_it_could_be_told_even_of_a_dead_service(agent, gpuops):
    agent(status=service_status(**DIED))
    assert gpuops("status", *HOST).code == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"check": {"state": "serving", "evidence": ""}}, 0),
        ({"check": {"state": "hung", "evidence": ""}}, 6),
        ({"check": {"state": "slow", "evidence": ""}}, 6),
        ({"check": {"state": "failing", "evidence": ""}}, 6),
        (DIED, 1),
    ],
)
def test_status_check_ends_with_its_verdict(changes, code, agent, gpuops):
    fake = agent(status=service_status(**changes))
    assert gpuops("status", "--check", "--timeout", "5", *HOST).code == code
    assert (fake.calls[0][1]["check"], fake.calls[0][1]["timeout_s"]) == (True, 5.0)


def test_status_json_is_the_agents_answer(agent, gpuops):
    agent(status=service_status())
    assert gpuops("status", "--json", *HOST).objects == [service_status()]


def test_history_marks_the_current_and_the_known_good_release():
    release = {"reason": "", "at": 1990.0, "summary": {"engine": "sglang 0.5.23", "model": "llm", "build": "b1"}}
    told = {
        "service": "svc",
        "current": 2,
        "known_good": 2,
        "releases": [
            {**release, "release": 3, "state": "bad", "reason": "it died\nbadly"},
            {**release, "release": 2, "state": "good"},
        ],
        "operations": [
            {
                "op": "op-9",
                "kind": "up",
                "outcome": "restored",
                "release": 2,
                "failed": 3,
                "reason": "it died",
                "seconds": 4.0,
                "at": 1980.0,
            }
        ],
    }
    assert history_report.lines(told, 2000.0, PLAIN) == [
        "releases",
        "   3  bad               10 s ago  sglang 0.5.23, llm, build b1  (it died ...)",
        "  *2  good  known-good  10 s ago  sglang 0.5.23, llm, build b1",
        "",
        "operations",
        "  op-9  up  restored  release 2  4.0 s  20 s ago    release 3 failed: it died",
    ]


def log(*pieces):
    """An answer to `logs`: pieces of text, then the result or an error."""

    def answer(args, on_event):
        offset = args.get("offset") or 0
        for piece in pieces:
            if isinstance(piece, BaseException):
                raise piece
            offset += len(piece)
            on_event({"event": "log", "text": piece, "offset": offset})
        return {"release": 3, "offset": offset}

    return answer


def test_logs_are_printed_as_they_are(agent, gpuops):
    fake = agent(logs=log("one\n", "two"))
    assert gpuops("logs", "-n", "5", *HOST).out == "one\ntwo"
    assert fake.calls[0][1] == {"service": "svc", "release": None, "lines": 5}


def test_zero_lines_mean_all_of_the_log(agent, gpuops):
    fake = agent(logs=log("one\n"))
    gpuops("logs", "-n", "0", *HOST)
    assert fake.calls[0][1]["lines"] is None


def test_logs_json_carries_the_offset_behind_each_piece(agent, gpuops):
    agent(logs=log("one\n", "two\n"))
    assert gpuops("logs", "--json", *HOST).objects == [{"text": "one\n", "offset": 4}, {"text": "two\n", "offset": 8}]


def test_following_goes_on_from_the_last_offset_after_a_lost_link(agent, gpuops, monkeypatch):
    monkeypatch.setattr("gpuops.cli.tail.LONGEST_WAIT_S", 0)
    answers = iter([log("one\n", OutcomeUnknown("cut")), log(OutcomeUnknown("cut")), log("two\n")])
    fake = agent(status=service_status(), logs=lambda args, on_event: next(answers)(args, on_event))
    said = gpuops("logs", "-f", *HOST)
    assert (said.code, said.out) == (0, "one\ntwo\n")
    asked = [args for verb, args in fake.calls if verb == "logs"]
    assert [args.get("offset") for args in asked] == [None, 4, 4]
    assert {args["release"] for args in asked} == {3}


def test_following_gives_up_when_nothing_comes_any_more(agent, gpuops, monkeypatch):
    monkeypatch.setattr("gpuops.cli.tail.LONGEST_WAIT_S", 0)
    fake = agent(status=service_status(), logs=OutcomeUnknown("cut"))
    assert gpuops("logs", "-f", *HOST).code == 12
    assert [verb for verb, _ in fake.calls].count("logs") == 6


def test_ctrl_c_only_leaves_the_log(agent, gpuops):
    agent(status=service_status(), logs=log("one\n", KeyboardInterrupt()))
    said = gpuops("logs", "-f", *HOST)
    assert (said.code, said.out) == (0, "one\n")


def executed(args, on_event):
    on_event({"event": "out", "text": "to stdout\n"})
    on_event({"event": "err", "text": "to stderr\n"})
    return {"status": 7}


def test_exec_passes_both_streams_and_the_status_through(agent, gpuops):
    fake = agent(exec=executed)
    said = gpuops("exec", *HOST, "--", "nvidia-smi", "--json", "-L")
    assert (said.code, said.out, said.err) == (7, "to stdout\n", "to stderr\n")
    assert fake.calls[0][1]["argv"] == ["nvidia-smi", "--json", "-L"]


def test_words_after_the_commands_name_belong_to_it_without_dashes_too(agent, gpuops):
    fake = agent(exec=executed)
    gpuops("exec", *HOST, "ls", "-v")
    assert fake.calls[0][1]["argv"] == ["ls", "-v"]


def test_exec_json_ends_with_the_status(agent, gpuops):
    agent(exec=executed)
    said = gpuops("exec", "--json", *HOST, "--", "true")
    assert said.objects == [{"stream": "out", "text": "to stdout\n"}, {"stream": "err", "text": "to stderr\n"}, {"status": 7}]


def smoked(verdict, passed, check="serving"):
    result = {
        "name": "capital",
        "gate": "required",
        "question": "?",
        "answer": "Rome",
        "expectation": "contains 'Paris'",
        "error": "",
    }
    probe = {**result, "passed": passed, "seconds": 0.5}

    def answer(args, on_event):
        on_event({"event": "check", "state": check, "evidence": "seen"})
        results = [probe] if check == "serving" else []
        for each in results:
            on_event({"event": "probe", **each})
        told = {"state": check, "evidence": "seen"}
        return {"verdict": verdict, "passed": passed, "release": 3, "check": told, "results": results}

    return answer


@pytest.mark.parametrize(
    ("answer", "code", "line"),
    [
        (smoked("right", True), 0, "svc (release 3) is right: 1 of 1 probes passed"),
        (smoked("wrong", False), 6, "svc (release 3) is wrong: 0 of 1 probes passed"),
        (smoked("down", False, "hung"), 1, "svc (release 3) is down: hung, seen"),
    ],
)
def test_smoke_says_right_wrong_or_down(answer, code, line, agent, gpuops):
    agent(smoke=answer)
    said = gpuops("smoke", *HOST)
    assert (said.code, said.out.splitlines()[-1]) == (code, line)


def test_smoke_shows_what_was_asked_and_answered_when_it_is_wrong(agent, gpuops):
    agent(smoke=smoked("wrong", False))
    assert "    answered  'Rome'\n    expected  contains 'Paris'\n" in gpuops("smoke", *HOST).out


def test_smoke_puts_the_releases_own_probes_unless_a_playbook_is_named(agent, gpuops):
    fake = agent(smoke=smoked("right", True))
    gpuops("smoke", *HOST)
    assert fake.calls[0][1]["probes"] is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (7380, "2 h 3 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (5e9, "5.0 GB"), (3.2e13, "32.0 TB")])
def test_sizes_read_well(count, text):
    assert size(count) == text
