"""Output that cannot be written: a full disk, a reader that has left, a stream that is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import replay

from gpuops.cli import progress
from gpuops.cli.talk import OutputLost, Talk

HOST = ("--host", "gpu-box")


def full() -> Any:
    return open("/dev/full", "w", encoding="utf-8")


def without_reader() -> Any:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


def lost_during(name: str, stream: str, broken: Callable[[], Any]) -> Callable[[Any, Any], dict[str, Any]]:
    """An answer to `run`: a recorded operation, during which a standard stream cannot be written any more."""

    kept: list[Any] = []

    def answer(args: Any, on_event: Callable[[Any], None]) -> dict[str, Any]:
        # The runner of the test puts the old stream back, and reads it: it must not be closed.
        kept.append(getattr(sys, stream))
        setattr(sys, stream, broken())
        return replay(name)(args, on_event)

    return answer


@pytest.mark.failure_mode("output-lost")
@pytest.mark.parametrize(("recorded", "code"), [("promoted", 0), ("restored_after_death", 10)])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("broken", [full, without_reader])
@pytest.mark.parametrize("options", [(), ("--json",), ("-v",)])
def test_a_rollout_goes_on_to_its_outcome_and_its_code_when_its_output_is_lost(
    recorded, code, stream, broken, options, agent, gpuops
):
    fake = agent(run=lost_during(recorded, stream, broken))
    assert gpuops("restart", *HOST, *options).code == code
    assert [verb for verb, _ in fake.calls] == ["run"]


def test_a_result_that_could_not_be_printed_is_told(agent, gpuops):
    agent(run=lost_during("promoted", "stdout", full))
    assert (
        "warning: svc is promoted, and the result could not be printed: No space left on device" in gpuops("restart", *HOST).err
    )


def test_a_terminal_that_goes_away_ends_the_drawing_and_not_the_rollout(monkeypatch):
    heard: list[str] = []

    @contextmanager
    def view():
        yield
        sys.stderr.write("the last frame")
        sys.stderr.flush()

    def hear(event: Any) -> None:
        heard.append(event["event"])
        sys.stderr.write("a line")
        sys.stderr.flush()

    with full() as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        with progress.drawn(view(), hear) as listener:
            listener({"event": "ready"})
            listener({"event": "outcome"})
    assert heard == ["ready", "outcome"]


def test_what_is_lost_once_leads_to_nowhere_afterwards(monkeypatch):
    with full() as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(OutputLost, match="No space left"):
            Talk().say(["a result"])
        Talk().say(["another one"])


def run(shell: str) -> subprocess.CompletedProcess[str]:
    words = f"{sys.executable} -m gpuops"
    return subprocess.run(
        ["sh", "-c", shell.replace("gpuops", words, 1)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("gpuops schema >&-", 0, ""),
        ("gpuops diagnose no-such.log >&-", 2, "error: no-such.log cannot be read"),
        ("gpuops plan -p /nope.yaml 2>&-", 3, ""),
        ("gpuops schema > /dev/full", 1, "error: the output cannot be written"),
        ("gpuops plan -p /nope.yaml --json > /dev/full", 3, ""),
        ("gpuops plan -p /nope.yaml 2> /dev/full", 3, ""),
    ],
)
def test_a_stream_that_is_closed_or_full_costs_what_is_written_to_it_alone(shell: str, code: int, said: str) -> None:
    ended = run(shell)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr and "Traceback" not in ended.stderr and "unexpectedly" not in ended.stderr


def test_a_reader_that_leaves_ends_a_verb_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        ended = subprocess.run(
            [sys.executable, "-m", "gpuops", "schema"], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ended.stderr == ""


def test_standard_input_that_is_closed_is_no_failure_of_ours(folder: Path) -> None:
    ended = run("gpuops diagnose - <&-")
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (2, "error: standard input is empty")
