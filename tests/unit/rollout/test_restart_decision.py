"""Bounded restarts: what is started again, after how long, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from gpuops_agent.restarts import EQUAL_DEATHS, WINDOW_S, Death, decide

from gpuops.engines import facts

POLICY = {"max": 3, "backoff_s": 10}
INCURABLE = [(row["pattern"], row["why"]) for row in facts("sglang", "0.5.23").as_order()["meaningful"]["incurable"]]


def death(at: float = 0.0, **change: Any) -> Death:
    return Death(
        **{"at": at, "boot_id": "b", "code": None, "signal": 9, "line": "CUDA error: an illegal memory access", **change}
    )


@pytest.mark.parametrize(("deaths", "wait_s"), [(1, 10), (2, 20), (3, 40)])
def test_the_backoff_doubles(deaths: int, wait_s: float) -> None:
    decision = decide(POLICY, [death(at, line=f"other words {'x' * at}") for at in range(deaths)], INCURABLE)
    assert decision.wait_s == wait_s
    assert decision.reason == f"restart {deaths} of 3 in a row"


@pytest.mark.failure_mode("restart-loop")
def test_after_as_many_restarts_as_allowed_it_stays_down() -> None:
    decision = decide(POLICY, [death(at, line="x" * at) for at in range(4)], INCURABLE)
    assert decision.wait_s is None
    assert "3 times in a row already" in decision.reason


def test_without_a_policy_nothing_is_started_again() -> None:
    assert decide({}, [death()], INCURABLE).wait_s is None


def test_deaths_long_ago_or_of_another_boot_are_not_in_a_row() -> None:
    old = [death(at) for at in range(3)]
    assert decide(POLICY, [*old, death(WINDOW_S + 3)], INCURABLE).wait_s == 10
    assert decide(POLICY, [*old, death(4.0, boot_id="another")], INCURABLE).wait_s == 10


@pytest.mark.failure_mode("restart-loop")
def test_equal_deaths_end_it_whatever_is_allowed() -> None:
    deaths = [death(float(at), line=f"illegal access at 0x{at:x}0, pid {at}") for at in range(EQUAL_DEATHS)]
    decision = decide({"max": 100, "backoff_s": 1}, deaths, INCURABLE)
    assert decision.wait_s is None and "equal deaths" in decision.reason


def test_different_deaths_are_counted_but_are_no_loop() -> None:
    deaths = [death(float(at), signal=at + 1) for at in range(EQUAL_DEATHS)]
    assert decide({"max": 100, "backoff_s": 1}, deaths, INCURABLE).wait_s is not None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("launch_server.py: error: unrecognized arguments: --nope", "the arguments are wrong"),
        ("RuntimeError: no kernel image is available for execution on the device", "does not fit the card"),
        ("OutOfResources: out of resource: shared memory, Required: 106496, Hardware limit: 101376", "shared memory"),
        ("NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", "needs a reboot"),
    ],
)
@pytest.mark.failure_mode("restart-loop")
def test_what_a_restart_cannot_cure_is_not_restarted(line: str, why: str) -> None:
    decision = decide(POLICY, [death(line=line)], INCURABLE)
    assert decision.wait_s is None and why in decision.reason


@pytest.mark.parametrize("line", ["CUDA error: an illegal memory access was encountered", "NCCL watchdog timeout", "", "Xid 13"])
def test_what_a_restart_may_cure_is_restarted(line: str) -> None:
    assert decide(POLICY, [death(line=line)], INCURABLE).wait_s == 10
