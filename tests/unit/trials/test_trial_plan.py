"""Which step comes next."""

from __future__ import annotations

import pytest
from gpuops_agent.experiment_plan import Plan, found, left, longest, next_step


def played(plan: Plan, outcomes: dict[str, str]) -> list[str]:
    """The steps in the order in which they are played, when each has its outcome."""
    verdicts: dict[str, str] = {}
    while (name := next_step(plan, verdicts)) is not None:
        assert name not in verdicts
        verdicts[name] = outcomes[name]
    return list(verdicts)


@pytest.mark.parametrize(("stop", "wanted"), [("never", ["a", "b", "c"]), ("first-failure", ["a", "b"]), ("first-pass", ["a"])])
def test_a_sequence_is_played_in_its_order_until_its_rule_stops_it(stop: str, wanted: list[str]) -> None:
    assert played(Plan("sequence", ("a", "b", "c"), stop), {"a": "passed", "b": "failed", "c": "passed"}) == wanted


def test_steps_with_a_verdict_are_not_played_again() -> None:
    plan = Plan("sequence", ("a", "b", "c"))
    assert next_step(plan, {"a": "failed"}) == "b"
    assert left(plan, {"a": "failed"}) == ["b", "c"]


@pytest.mark.parametrize("culprit", range(1, 9))
@pytest.mark.parametrize(("find", "before", "after"), [("breaks", "passed", "failed"), ("fixes", "failed", "passed")])
def test_a_bisect_finds_the_change_in_a_number_of_launches_that_grows_as_the_logarithm(
    culprit: int, find: str, before: str, after: str
) -> None:
    steps = tuple(str(count) for count in range(9))
    plan = Plan("bisect", steps, find=find)
    outcomes = {step: after if int(step) >= culprit else before for step in steps}
    order = played(plan, outcomes)
    told = found(plan, {name: outcomes[name] for name in order})
    assert told is not None and told.step == str(culprit)
    assert len(order) <= longest(plan) == 5


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ({"0": "passed", "1": "passed", "2": "passed"}, "none of them breaks it"),
        ({"0": "failed", "1": "failed", "2": "failed"}, "the base alone has failed already"),
        ({"0": "passed", "1": "timeout", "2": "failed"}, "1 could not be judged (timeout)"),
        ({"0": "unfit", "1": "passed", "2": "failed"}, "0 could not be judged (unfit)"),
    ],
)
def test_a_bisect_with_nothing_to_find_says_so(outcomes: dict[str, str], why: str) -> None:
    plan = Plan("bisect", ("0", "1", "2"))
    told = found(plan, {name: outcomes[name] for name in played(plan, outcomes)})
    assert told is not None and told.step is None and why in told.text


def test_an_incomplete_bisect_has_found_nothing() -> None:
    assert found(Plan("bisect", ("0", "1", "2")), {"2": "failed"}) is None
