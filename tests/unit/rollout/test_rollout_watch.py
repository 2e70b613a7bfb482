"""Following an operation: every event once however often the link is lost, and what Ctrl-C does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from gpuops.errors import Exit, GpuopsError, OutcomeUnknown, TransportError
from gpuops.rollout import watch
from gpuops.rollout.session import Session
from gpuops.rollout.watch import Watcher, headline, raise_for

ORDER = {"op": "op-1", "service": "demo", "kind": "up"}
EVENTS = [{"event": "op", "op": "op-1"}, {"event": "staged", "op": "op-1"}, {"event": "ready", "op": "op-1"}]
DONE = {"outcome": "promoted", "code": 0}

Answer = Callable[[Callable[[dict[str, Any]], None]], dict[str, Any]]


def after(count: int, end: BaseException | dict[str, Any], events: list[dict[str, Any]] = EVENTS) -> Answer:
    """A call that tells the first ``count`` events, and then ends so."""

    def answer(hear: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        for event in events[:count]:
            hear(event)
        if isinstance(end, BaseException):
            raise end
        return end

    return answer


class Host:
    """A session whose calls answer by a script."""

    def __init__(self, *script: Answer | BaseException) -> None:
        self.script = list(script)
        self.calls: list[str] = []
        self.heard: list[dict[str, Any]] = []
        self.agent = self.transport = self
        self.cancelled: dict[str, Any] = {"cancelled": True}

    def call(self, verb: str, *, on_event: Any = None, **args: Any) -> dict[str, Any]:
        self.calls.append(verb if verb == "run" else f"{verb} {args['op']}")
        if verb == "cancel":
            assert args["before"]
            return self.cancelled
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step(on_event)

    def close(self) -> None:
        self.calls.append("close")

    def watcher(self) -> Watcher:
        session = cast(Session, self)
        return Watcher(session, lambda: session, lambda event: self.heard.append(dict(event)))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LONGEST_WAIT_S", 0.0)


def lost() -> OutcomeUnknown:
    return OutcomeUnknown("the link was lost", evidence="broken pipe")


def test_an_operation_is_followed_to_its_outcome() -> None:
    host = Host(after(3, DONE))
    assert host.watcher().run(ORDER) == DONE
    assert host.heard == EVENTS and host.calls == ["run"]


@pytest.mark.failure_mode("link-cut")
def test_a_lost_link_is_answered_by_asking_again_and_each_event_is_shown_once() -> None:
    host = Host(after(2, lost()), after(1, lost()), TransportError("no route"), after(3, DONE))
    assert host.watcher().run(ORDER) == DONE
    assert host.heard == EVENTS
    # The same order: it may never have arrived, and is not played twice.
    assert host.calls == ["run", "close", "run", "close", "run", "close", "run"]


def test_after_attaching_to_another_operation_that_one_is_followed() -> None:
    other = [{"event": "op", "op": "op-0", "attached": True}, {"event": "op", "op": "op-0"}, {"event": "ready", "op": "op-0"}]
    host = Host(after(2, lost(), other), after(2, DONE, other[1:]))
    assert host.watcher().run(ORDER) == DONE
    assert host.heard == other
    assert host.calls == ["run", "close", "follow op-0"]


@pytest.mark.failure_mode("link-cut")
def test_a_host_that_stays_away_is_left_alone_and_the_next_command_is_named() -> None:
    host = Host(after(1, lost()), *(TransportError("no route", evidence="timed out") for _ in range(watch.ATTEMPTS)))
    with pytest.raises(OutcomeUnknown) as away:
        host.watcher().run(ORDER)
    assert "carries on" in away.value.what and away.value.evidence == "timed out" and "gpuops attach" in away.value.next
    assert host.script == []


def test_a_runner_that_died_is_not_asked_again() -> None:
    host = Host(OutcomeUnknown("its runner died", kind="runner_died"))
    with pytest.raises(OutcomeUnknown, match="its runner died"):
        host.watcher().run(ORDER)
    assert host.calls == ["run"]


@pytest.mark.failure_mode("ctrl-c")
def test_ctrl_c_asks_the_host_to_undo_and_follows_that() -> None:
    restored = {"outcome": "restored", "code": 10}
    host = Host(after(2, KeyboardInterrupt()), after(3, restored))
    assert host.watcher().run(ORDER) == restored
    assert host.calls == ["run", "close", "cancel op-1", "follow op-1"]
    assert [event for event in host.heard if event["event"] != "note"] == EVENTS


def test_ctrl_c_while_the_link_is_lost_undoes_as_soon_as_it_is_back() -> None:
    host = Host(after(2, KeyboardInterrupt()), lost(), after(3, DONE))
    assert host.watcher().run(ORDER) == DONE
    assert host.calls[-3:] == ["close", "cancel op-1", "follow op-1"]


@pytest.mark.failure_mode("ctrl-c")
def test_a_second_ctrl_c_leaves_with_an_unknown_outcome() -> None:
    host = Host(after(2, KeyboardInterrupt()), KeyboardInterrupt())
    with pytest.raises(OutcomeUnknown) as left:
        host.watcher().run(ORDER)
    assert (left.value.code, left.value.kind) == (Exit.UNKNOWN, "left")


@pytest.mark.failure_mode("ctrl-c")
@pytest.mark.parametrize(("serving", "code"), [(3, Exit.RESTORED), (None, Exit.NOTHING_TO_RESTORE)])
def test_ctrl_c_before_the_host_has_the_order_cancels_it_for_good(serving: int | None, code: Exit) -> None:
    host = Host(KeyboardInterrupt())
    host.cancelled = {"cancelled": True, "before": True, "release": serving}
    outcome = host.watcher().run(ORDER)
    assert (outcome["outcome"], outcome["code"], outcome["release"]) == ("cancelled", code, serving)
    assert host.calls == ["run", "close", "cancel op-1"]
    assert "cancelled before the host had the order" in headline(outcome)


def test_ctrl_c_for_an_order_that_the_host_does_not_know_is_an_unknown_outcome() -> None:
    unknown = [GpuopsError("service demo has no operation op-1", kind="no_operation") for _ in range(watch.ATTEMPTS)]
    host = Host(KeyboardInterrupt(), *unknown)
    with pytest.raises(OutcomeUnknown, match="has not seen the order yet; it may still arrive") as unseen:
        host.watcher().run(ORDER)
    assert (unseen.value.code, unseen.value.next) == (Exit.UNKNOWN, "gpuops status")


def test_ctrl_c_while_only_watching_leaves_at_once_and_cancels_nothing() -> None:
    host = Host(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        host.watcher().attach("demo", "op-1")
    assert host.calls == ["follow op-1"]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ({"outcome": "restored", "code": 10, "failed": 2, "release": 1, "reason": "died"}, "release 2 failed: died. Release 1"),
        ({"outcome": "restore_failed", "code": 11, "release": 1, "reason": "died"}, "release 1 did not come up: died"),
        ({"outcome": "nothing_to_restore", "code": 14, "release": 1, "reason": "died"}, "no known-good release to restore"),
        ({"outcome": "refused", "code": 13, "reason": "port 1 is taken"}, "port 1 is taken"),
        ({"outcome": "failed", "code": 5, "reason": "disk full"}, "disk full"),
        ({"outcome": "cut", "code": 12, "reason": "its runner died"}, "the rollout was cut: its runner died"),
    ],
)
def test_an_outcome_that_is_no_success_is_an_error_with_its_code(outcome: dict[str, Any], text: str) -> None:
    with pytest.raises(GpuopsError) as error:
        raise_for(outcome)
    assert error.value.code == outcome["code"] and text in error.value.what and text in headline(outcome)


def test_a_success_is_no_error() -> None:
    raise_for(DONE)
