"""What may go and what stays: the decision, as tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpuops_agent import retention
from gpuops_agent.retention import ReleaseFacts, ServiceFacts, Thing, Verdict, decide

ROOT = Path("/r")


def release(number: int, state: str = "good", *, uses: tuple[str, ...] | None = (), pinned: bool = False) -> ReleaseFacts:
    keys = None if uses is None else frozenset(("build", name) for name in uses)
    return ReleaseFacts(number, ROOT / str(number), state, pinned, keys)


def goods(count: int) -> tuple[ReleaseFacts, ...]:
    return tuple(release(number) for number in range(1, count + 1))


def build(name: str, needed: str = "") -> Thing:
    return Thing("build", name, (ROOT / name,), needed)


def going(verdicts: list[Verdict]) -> set[str]:
    return {verdict.name for verdict in verdicts if verdict.goes}


@pytest.mark.parametrize(
    ("service", "keep", "gone"),
    [
        (ServiceFacts("a", goods(7), current=7, good=7), 5, {"1", "2"}),
        (ServiceFacts("a", goods(5), current=5, good=5), 5, set()),
        (ServiceFacts("a", goods(3), current=3, good=3), 1, {"1", "2"}),
        (ServiceFacts("a", goods(3), current=1, good=2), 1, set()),
        (ServiceFacts("a", goods(3), running=1), 1, {"2"}),
        (ServiceFacts("a", goods(9), current=9, busy=True), 1, set()),
        (ServiceFacts("a", (release(1, pinned=True), release(2), release(3))), 1, {"2"}),
        (ServiceFacts("a", (release(1, "bad"), release(2, "bad"), release(3, "bad"))), 1, set()),
        (ServiceFacts("a", (release(1, "unknown"), release(2, "unknown"), release(3))), 1, {"1"}),
        # Cut while it was on its way, and nobody has said so yet.
        (ServiceFacts("a", (release(1, "starting"), release(2, "staged"), release(3))), 1, {"1"}),
        # Good and unknown ones are counted apart: many failures push no good release out.
        (ServiceFacts("a", (release(1), *(release(n, "unknown") for n in range(2, 9)))), 5, {"2", "3"}),
    ],
    ids=[
        "beyond keep",
        "within keep",
        "only the newest",
        "current and known-good are old",
        "an old one runs",
        "a rollout runs",
        "pinned",
        "bad ones are evidence",
        "unknown ones beyond keep",
        "on their way, cut",
        "unknown ones crowd no good one out",
    ],
)
def test_releases(service: ServiceFacts, keep: int, gone: set[str]) -> None:
    assert going(decide((service,), (), keep)) == gone


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("state", ["good", "bad", "unknown", "staged"])
def test_the_newest_release_never_goes_so_that_no_number_is_used_twice(count: int, state: str) -> None:
    service = ServiceFacts("a", tuple(release(number, state) for number in range(1, count + 1)))
    assert str(count) not in going(decide((service,), (), 1))


@pytest.mark.parametrize(
    ("service", "gone"),
    [
        (ServiceFacts("a", (release(1, uses=("b1",)), release(2, uses=("b2",))), current=2), {"1", "b1", "b3"}),
        (ServiceFacts("a", (release(1, uses=("b1",), pinned=True), release(2, uses=("b2",)))), {"b3"}),
        (ServiceFacts("a", (release(1, "bad", uses=("b1",)), release(2, uses=("b2",)))), {"b1", "b3"}),
        (ServiceFacts("a", (release(1, uses=("b2",)), release(2, "unknown", uses=("b1",)))), {"b1", "b3"}),
        (ServiceFacts("a", (release(1, "bad", uses=("b1",)), release(2, uses=("b2",))), current=1), {"b3"}),
        (ServiceFacts("a", (release(1, "bad", uses=("b1",)), release(2, uses=("b2",))), running=1), {"b3"}),
        (ServiceFacts("a", (release(1, uses=None), release(2, uses=("b2",))), current=2), {"1", "b1", "b3"}),
        (ServiceFacts("a", (release(1, uses=("b1",)), release(2, uses=None)), current=2), {"1"}),
        (ServiceFacts("a", (release(2, uses=("b2",)),), busy=True), set()),
        (ServiceFacts("a"), {"b1", "b2", "b3"}),
    ],
    ids=[
        "of an old release",
        "of a pinned release",
        "of a bad release",
        "of an unknown release",
        "of a bad release that is current",
        "of a bad release that runs",
        "an unreadable release that goes",
        "an unreadable release that stays",
        "a rollout may need any",
        "of no release",
    ],
)
def test_what_releases_share(service: ServiceFacts, gone: set[str]) -> None:
    assert going(decide((service,), (build("b1"), build("b2"), build("b3")), 1)) == gone


def test_a_thing_that_another_service_uses_stays_and_says_for_whom() -> None:
    services = (ServiceFacts("a"), ServiceFacts("b", (release(4, uses=("b1",)),), current=4))
    assert decide(services, (build("b1"),), 1)[-1].why == "release 4 of b uses it"


def test_another_service_keeps_all_that_it_has_when_one_is_named() -> None:
    services = (ServiceFacts("a", goods(3)), ServiceFacts("b", (release(11, uses=("b1",)), release(12), release(13))))
    verdicts = decide(services, (build("b1"), build("b2")), 1, only="a")
    assert going(verdicts) == {"1", "2", "b2"}
    assert {verdict.service for verdict in verdicts} == {"a", None}


def test_what_is_needed_for_a_reason_of_its_own_stays() -> None:
    (verdict,) = decide((), (build("b1", needed="just arrived"),), 1)
    assert (verdict.goes, verdict.why) == (False, "just arrived")


def test_an_old_agent_goes_even_while_an_operation_keeps_everything_else() -> None:
    things = (build("b1"), Thing("agent", "old", (ROOT / "old",)), Thing("agent", "new", (ROOT / "new",), "the present agent"))
    assert going(decide((ServiceFacts("a", busy=True),), things, 1)) == {"old"}


def test_the_newest_finished_operations_stay() -> None:
    folders = tuple(ROOT / f"op-{number}" for number in range(retention.KEEP_OPERATIONS + 2))
    assert going(decide((ServiceFacts("a", finished=folders),), (), 5)) == {"op-50", "op-51"}
    assert going(decide((ServiceFacts("a", finished=folders, busy=True),), (), 5)) == set()


def test_everything_has_a_reason() -> None:
    states = ("good", "bad", "unknown", "staged")
    releases = tuple(release(number, states[number % 4], uses=("b1",)) for number in range(1, 30))
    services = (ServiceFacts("a", releases, current=3, good=4, finished=tuple(ROOT / str(n) for n in range(60))),)
    assert all(verdict.why for verdict in decide(services, (build("b1"), build("b2")), 2))
