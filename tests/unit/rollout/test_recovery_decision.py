"""What a service that nobody works on needs: the decision table of recovery."""

from __future__ import annotations

import pytest
from gpuops_agent.recovery import NOTHING, RESTORE, REVIVE, STOP, Facts, decide


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        (Facts(cut=[], running=3, current=3, good=3), NOTHING),
        (Facts(cut=[], running=None, current=None, good=3), NOTHING),
        (Facts(cut=[], running=None, current=None, good=None), NOTHING),
        (Facts(cut=[], running=None, current=3, good=3), REVIVE),
        (Facts(cut=[], running=None, current=4, good=3), REVIVE),
        (Facts(cut=[], running=None, current=4, good=None), NOTHING),
        (Facts(cut=["up"], running=4, current=4, good=3), RESTORE),
        (Facts(cut=["up"], running=None, current=4, good=3), RESTORE),
        (Facts(cut=["up"], running=3, current=3, good=3), RESTORE),
        (Facts(cut=["up"], running=4, current=4, good=None), STOP),
        (Facts(cut=["restart"], running=None, current=3, good=3), RESTORE),
        (Facts(cut=["down"], running=3, current=3, good=3), STOP),
        (Facts(cut=["up", "down"], running=3, current=3, good=3), STOP),
        (Facts(cut=["down", "up"], running=4, current=4, good=3), RESTORE),
    ],
)
def test_what_is_done(facts: Facts, action: str) -> None:
    assert decide(facts) == action
