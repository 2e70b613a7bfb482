"""The first word between a detached process and whoever started it, when one of them dies before it."""

from __future__ import annotations

import os

import pytest
from gpuops_agent.detach import ACK_FD_VARIABLE, acknowledge, spawn
from gpuops_agent.wire import AgentError
from rollouts import Lab


def test_a_process_that_dies_before_it_answers_is_told_with_the_end_of_its_log(lab: Lab) -> None:
    with pytest.raises(AgentError) as failed:
        spawn(lab.service, "runner", {"no": "service"}, lab.zipapp, str(lab.folder / "runner.log"))
    assert failed.value.what == "the runner ended before it answered"
    assert failed.value.evidence == "exit status 1; KeyError: 'service'"


@pytest.mark.failure_mode("ssh-session-killed")
def test_a_detached_process_goes_on_when_nobody_is_left_to_hear_its_first_word(monkeypatch: pytest.MonkeyPatch) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    monkeypatch.setenv(ACK_FD_VARIABLE, str(writable))
    acknowledge({"op": "op-1"})
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writable)
