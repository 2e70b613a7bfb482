"""The agent's client over a transport that plays back what a host would say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from gpuops.agent import pack
from gpuops.agent.client import Agent
from gpuops.errors import Exit, GpuopsError, OutcomeUnknown
from gpuops.transport.base import Completed, Transport


class Stream:
    def __init__(self, lines: Sequence[bytes], ended: Completed) -> None:
        self._lines, self._ended = lines, ended

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)

    def finish(self) -> Completed:
        return self._ended


class Fake:
    """Answers streams and runs by a script, and remembers what was asked."""

    name = "fake"

    def __init__(self, *streams: tuple[Sequence[Any], int, bytes], runs: Sequence[Completed] = ()) -> None:
        self.streams, self.runs = list(streams), list(runs)
        self.asked: list[tuple[list[str], bytes]] = []

    @contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", idle_timeout: float = 60.0) -> Iterator[Stream]:
        self.asked.append((list(argv), stdin))
        lines, status, stderr = self.streams.pop(0)
        yield Stream(
            [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines], Completed(status, b"", stderr)
        )

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        self.asked.append((list(argv), stdin))
        return self.runs.pop(0)

    def agent(self) -> Agent:
        return Agent(cast(Transport, self), "~/.gpuops", "python3")


def result(value: Any) -> tuple[list[Any], int, bytes]:
    return ([{"result": value}], 0, b"")


def test_a_call_is_one_fixed_command_and_one_json_line() -> None:
    fake = Fake(result({"a": 1}))
    assert fake.agent().call("status", service="demo", payload=b"raw") == {"a": 1}
    argv, stdin = fake.asked[0]
    assert argv[0] == "python3" and argv[-2:] == [f"~/.gpuops/agent/{pack.name()}", "status"]
    request, _, payload = stdin.partition(b"\n")
    assert json.loads(request) == {"protocol": 1, "args": {"service": "demo"}} and payload == b"raw"


def test_events_are_heard_in_order_and_beats_are_not() -> None:
    events = [{"event": "op"}, {"event": "beat"}, {"event": "ready"}]
    fake = Fake(([*events, {"result": {}}], 0, b""))
    heard: list[Any] = []
    fake.agent().call("run", on_event=heard.append)
    assert heard == [{"event": "op"}, {"event": "ready"}]


@pytest.mark.failure_mode("login-shell")
def test_a_shell_that_talks_before_between_and_after_changes_nothing() -> None:
    fake = Fake(([b"Welcome!", {"event": "op"}, b"", b"[1, 2]", {"result": {"a": 1}}, b"logout"], 0, b""))
    heard: list[Any] = []
    assert fake.agent().call("run", on_event=heard.append) == {"a": 1}
    assert heard == [{"event": "op"}]


def test_the_agents_own_error_keeps_its_parts_and_code() -> None:
    error = {"code": 13, "kind": "locked", "what": "busy", "evidence": "by x", "next": "wait"}
    with pytest.raises(GpuopsError) as raised:
        Fake(([{"error": error}], 13, b"")).agent().call("run")
    assert raised.value.as_dict() == error


@pytest.mark.failure_mode("exit-status-lost")
def test_an_answer_without_a_last_line_is_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown) as unknown:
        Fake(([{"event": "op"}], 137, b"Killed")).agent().call("run")
    assert unknown.value.code == Exit.UNKNOWN and "137" in unknown.value.evidence and "Killed" in unknown.value.evidence


def missing() -> tuple[list[Any], int, bytes]:
    said = f"python3: can't open file '/root/.gpuops/agent/{pack.name()}': [Errno 2] No such file or directory"
    return ([], 2, said.encode())


def test_an_agent_that_is_not_there_is_uploaded_and_asked_again() -> None:
    fake = Fake(missing(), result({"a": 1}), runs=[Completed(0, b"installed /root/x.pyz\n", b"")])
    assert fake.agent().call("hello") == {"a": 1}
    assert [argv[:2] for argv, _ in fake.asked][1] == ["python3", "-"]


def test_an_agent_that_is_missing_after_its_upload_is_an_error() -> None:
    fake = Fake(missing(), missing(), runs=[Completed(0, b"installed /elsewhere\n", b"")])
    with pytest.raises(GpuopsError) as lost:
        fake.agent().call("hello")
    assert lost.value.code == Exit.HOST_UNFIT


@pytest.mark.parametrize(
    ("said", "kind", "part"),
    [
        (b"too-old 3.6.15\n", "old_python", "3.6.15"),
        (b"failed [Errno 28] No space left on device\n", "disk_full", "could not be put"),
        (b"failed [Errno 13] Permission denied\n", "root", "could not be put"),
    ],
)
def test_an_upload_that_fails_says_why(said: bytes, kind: str, part: str) -> None:
    with pytest.raises(GpuopsError) as failed:
        Fake(missing(), runs=[Completed(0, said, b"")]).agent().call("hello")
    assert (failed.value.code, failed.value.kind) == (Exit.HOST_UNFIT, kind) and part in failed.value.what


@pytest.mark.failure_mode("no-python")
def test_a_host_without_python_is_unfit() -> None:
    with pytest.raises(GpuopsError) as none:
        Fake(([], 127, b"sh: python3: not found")).agent().call("hello")
    assert (none.value.code, none.value.kind) == (Exit.HOST_UNFIT, "no_python")
