"""What is told of a detached process that dies before it has answered."""

from __future__ import annotations

import pytest
from gpuops_agent.detach import spawn
from gpuops_agent.wire import AgentError
from rollouts import Lab


def test_a_process_that_dies_before_it_answers_is_told_with_the_end_of_its_log(lab: Lab) -> None:
    with pytest.raises(AgentError) as failed:
        spawn(lab.service, "runner", {"no": "service"}, lab.zipapp, str(lab.folder / "runner.log"))
    assert failed.value.what == "the runner ended before it answered"
    assert failed.value.evidence == "exit status 1; KeyError: 'service'"
