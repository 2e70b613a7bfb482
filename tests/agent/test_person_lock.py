"""A person's lock on a service, and waiting for a rollout's."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import journal, locks, proc
from gpuops_agent.paths import Root, Service
from gpuops_agent.wire import REFUSED, AgentError
from process_lab import eventually

ANN = {"service": "demo", "by": "ann@laptop", "reason": "measuring"}
BOB = {"service": "demo", "by": "bob@desk"}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = Root(tmp_path).service("demo")
    made.path.mkdir(parents=True)
    made.root.locks.mkdir()
    return made


def hold(service: Service) -> int:
    """The service's lock, as a rollout of this process holds it."""
    me = proc.identify(os.getpid())
    assert me is not None
    return locks.acquire(service, {"op": "op-1", "kind": "up", "by": "ann@laptop", "at": time.time(), "runner": me.to_json()})


def release(service: Service, fd: int) -> None:
    service.lock_owner.unlink()
    os.close(fd)


@pytest.mark.failure_mode("locked-by-person")
def test_a_locked_service_refuses_and_says_who_and_why(service: Service) -> None:
    locks.lock(service.root, ANN)
    with pytest.raises(AgentError) as caught:
        locks.refuse_if_locked(service)
    assert (caught.value.code, caught.value.kind) == (REFUSED, "locked_by_person")
    assert caught.value.what == "service demo is locked by ann@laptop: measuring"
    assert caught.value.evidence.startswith("since 20")
    assert "gpuops unlock" in caught.value.next


def test_an_unlocked_service_does_not_refuse(service: Service) -> None:
    locks.lock(service.root, ANN)
    assert locks.unlock(service.root, ANN)["unlocked"]["reason"] == "measuring"
    locks.refuse_if_locked(service)
    assert locks.person(service) is None


def test_unlocking_what_is_not_locked_changes_nothing(service: Service) -> None:
    assert locks.unlock(service.root, ANN) == {"service": "demo", "unlocked": None}


def test_the_lock_of_somebody_else_needs_force(service: Service) -> None:
    locks.lock(service.root, ANN)
    with pytest.raises(AgentError) as caught:
        locks.unlock(service.root, BOB)
    assert "--force" in caught.value.next
    assert locks.person(service) is not None
    locks.unlock(service.root, {**BOB, "force": True})
    assert locks.person(service) is None


def test_a_second_person_cannot_lock_over_the_first(service: Service) -> None:
    locks.lock(service.root, ANN)
    with pytest.raises(AgentError) as caught:
        locks.lock(service.root, {**BOB, "reason": "mine"})
    assert caught.value.kind == "locked_by_person"


def test_the_same_person_may_change_the_reason(service: Service) -> None:
    locks.lock(service.root, ANN)
    locks.lock(service.root, {**ANN, "reason": "still measuring"})
    held = locks.person(service)
    assert held is not None and held["reason"] == "still measuring"


@pytest.mark.failure_mode("locked-by-person")
def test_a_lock_that_cannot_be_read_is_still_a_lock(service: Service) -> None:
    service.person_lock.write_text("{cut")
    with pytest.raises(AgentError):
        locks.refuse_if_locked(service)
    with pytest.raises(AgentError, match="somebody"):
        locks.refuse_if_locked(service)
    locks.unlock(service.root, {**BOB, "force": True})
    locks.refuse_if_locked(service)


def test_locking_and_unlocking_stand_in_the_journal(service: Service) -> None:
    locks.lock(service.root, ANN)
    locks.unlock(service.root, {**BOB, "force": True, "reason": "she has left"})
    told = [(entry["event"], entry["by"], entry["reason"]) for entry in journal.entries(service)]
    assert told == [("locked", "ann@laptop", "measuring"), ("unlocked", "bob@desk", "she has left")]


def test_a_service_that_does_not_exist_cannot_be_locked(service: Service) -> None:
    with pytest.raises(AgentError, match="no service nope"):
        locks.lock(service.root, {**ANN, "service": "nope"})


def test_a_lock_tells_of_the_rollout_that_it_does_not_hinder(service: Service) -> None:
    fd = hold(service)
    assert locks.lock(service.root, ANN)["running"] == "op-1"
    release(service, fd)


def test_waiting_for_a_free_lock_returns_at_once(service: Service) -> None:
    locks.wait_free(service, 0.0, beat=lambda: pytest.fail("there was nothing to wait for"))


def test_waiting_returns_when_the_rollout_has_ended(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 0.0)
    fd = hold(service)
    beats: list[None] = []
    waiting = threading.Thread(target=locks.wait_free, args=(service, 60.0, lambda: beats.append(None)))
    waiting.start()
    eventually(lambda: len(beats) > 1, "it waits, and says so")
    release(service, fd)
    waiting.join()


def test_a_wait_that_is_over_is_refused_and_names_the_rollout(service: Service) -> None:
    fd = hold(service)
    with pytest.raises(AgentError) as caught:
        locks.wait_free(service, 0.0, beat=lambda: None)
    assert (caught.value.code, caught.value.kind) == (REFUSED, "locked")
    assert caught.value.evidence.startswith("up op-1 by ann@laptop")
    release(service, fd)


def test_a_persons_lock_is_never_waited_for(service: Service) -> None:
    locks.lock(service.root, ANN)
    caught: list[Any] = []
    with pytest.raises(AgentError) as error:
        locks.wait_free(service, 3600.0, beat=lambda: caught.append(None))
    assert error.value.kind == "locked_by_person" and not caught
