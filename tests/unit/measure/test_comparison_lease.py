"""The lease of a comparison: who has it, when it is lost, and what is refused then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparisons import comparison
from gpuops_agent import ab_end, ab_lease, comparisons, recovery
from gpuops_agent.paths import Service
from gpuops_agent.wire import AgentError
from measuring import service
from test_ladder import PROBE
from wise_server import WiseServer, wise


@pytest.fixture
def server() -> Iterator[WiseServer]:
    with wise() as made:
        yield made


@pytest.fixture
def demo(server: WiseServer, tmp_path: Path) -> Service:
    """A service whose release 3 is known-good, and serves as this very process."""
    made = service(server.port, tmp_path, good=3, release=3, probes=[PROBE])
    made.operations.mkdir(parents=True)
    return made


def save(demo: Service, *, take: bool = False, lease_s: float = 60.0, **changes: Any) -> None:
    record = {**comparison().to_json(), **changes}
    comparisons.save(demo.root, {"service": "demo", "record": record, "take": take, "lease_s": lease_s})


def renewed(demo: Service, token: str = "t-1") -> bool:
    return bool(ab_lease.renew(demo.root, {"service": "demo", "token": token})["renewed"])


def launch(token: str = "t-1", **changes: Any) -> dict[str, Any]:
    return {"kind": "relaunch", "op": "op-1", "by": "ann", "trial": True, "comparison": {"id": "ab-1", "token": token}, **changes}


def record(demo: Service) -> dict[str, Any]:
    (found,) = comparisons.records(demo)
    return found


def test_taking_a_comparison_begins_its_lease_and_being_home_ends_it(demo: Service) -> None:
    save(demo, take=True)
    assert ab_lease.held(demo) is not None and ab_lease.lost(demo) is None and renewed(demo)
    save(demo)
    assert ab_lease.held(demo) is not None
    save(demo, back={"release": 3, "verdict": "right"})
    assert ab_lease.held(demo) is None and not renewed(demo)


def test_a_lease_that_has_run_out_is_not_renewed_and_its_launches_are_refused_but_not_the_way_home(demo: Service) -> None:
    save(demo, take=True, lease_s=1e-9)
    assert ab_lease.lost(demo) is not None and not renewed(demo)
    with pytest.raises(AgentError, match="the host has ended comparison ab-1") as caught:
        ab_lease.refuse_foreign(demo, launch())
    assert (caught.value.kind, caught.value.code) == ("taken", 13)
    ab_lease.refuse_foreign(demo, launch(kind="restore", trial=False))


def test_a_process_from_before_is_refused_when_another_one_has_taken_the_comparison(demo: Service) -> None:
    save(demo, take=True)
    save(demo, take=True, token="t-2")
    assert not renewed(demo, "t-1") and renewed(demo, "t-2")
    for trial in (True, False):
        with pytest.raises(AgentError, match="another process goes on with comparison ab-1"):
            ab_lease.refuse_foreign(demo, launch(trial=trial))


def test_an_order_that_is_of_no_comparison_is_nobodys_to_refuse(demo: Service) -> None:
    save(demo, take=True)
    ab_lease.refuse_foreign(demo, {"kind": "up", "op": "op-1"})


@pytest.mark.parametrize(
    "text", ["", "{", '{"comparison": "ab-1"}', '{"comparison": "ab-1", "token": "t-1", "lease_s": 60, "until": 9e99}']
)
def test_a_lease_that_cannot_be_read_or_is_of_another_boot_is_lost_and_stays_so_until_it_is_dropped(
    demo: Service, text: str
) -> None:
    demo.comparison_file.write_text(text)
    assert ab_lease.lost(demo) is not None and ab_lease.lost(demo) is not None
    ab_lease.drop(demo)
    assert ab_lease.held(demo) is None


@pytest.mark.parametrize(("lease_s", "cut"), [(60.0, []), (1e-9, ["comparison"])])
def test_a_lost_comparison_is_recovered_from_like_a_cut_rollout(demo: Service, lease_s: float, cut: list[str]) -> None:
    save(demo, take=True, lease_s=lease_s)
    demo.operation("op-1").mkdir(parents=True, exist_ok=True)
    assert recovery.close_cut_operations(demo, "op-1") == cut
    assert recovery.was_touched(demo, "op-1") == bool(cut)
    assert recovery.decide(recovery.Facts(cut, running=4, current=4, good=3)) == ("restore" if cut else "nothing")


def settle(demo: Service, order: dict[str, Any], **ended: Any) -> dict[str, Any]:
    return ab_end.settle(demo, order, {"outcome": "recovered", "code": 0, **ended}, lambda *words, **fields: None)


def test_a_recovery_closes_the_record_and_frees_it_for_whoever_goes_on(demo: Service) -> None:
    save(demo, take=True, lease_s=1e-9)
    assert settle(demo, {"kind": "recover", "op": "op-1"})["verdict"] == "right"
    kept = record(demo)
    assert (kept["state"], kept["token"], kept["back"]["release"]) == ("interrupted", "", 3)
    with pytest.raises(AgentError, match="its controller was lost"):
        save(demo)
    save(demo, take=True, token="t-2")


def test_a_recovery_that_fails_closes_the_record_too_and_is_not_begun_again(demo: Service) -> None:
    save(demo, take=True, lease_s=1e-9)
    demo.server_file.unlink()
    told = settle(demo, {"kind": "recover", "op": "op-1"}, outcome="restore_failed", code=11)
    assert (told["outcome"], told["verdict"], record(demo)["back"]["verdict"]) == ("restore_failed", "down", "down")
    assert ab_lease.held(demo) is None


def test_a_known_good_release_that_answers_wrong_afterwards_is_told_as_a_failure(server: WiseServer, demo: Service) -> None:
    server.broken.add("capital")
    save(demo, take=True, lease_s=1e-9)
    told = settle(demo, {"kind": "recover", "op": "op-1"})
    assert (told["outcome"], told["code"], told["verdict"]) == ("failed", 11, "wrong") and "its probes say" in told["reason"]


def test_a_recovery_that_began_before_the_lease_ran_out_and_left_a_launch_serving_closes_nothing(
    server: WiseServer, tmp_path: Path
) -> None:
    demo = service(server.port, tmp_path, good=3, release=4)
    save(demo, take=True, lease_s=1e-9)
    settle(demo, {"kind": "recover", "op": "op-1"}, outcome="nothing_to_recover")
    assert ab_lease.lost(demo) is not None


def test_a_comparison_that_lives_survives_a_recovery_and_its_own_orders(demo: Service) -> None:
    save(demo, take=True)
    settle(demo, {"kind": "recover", "op": "op-1"})
    for token in ("t-1", "t-of-a-process-from-before"):
        demo.operation("op-1").mkdir(exist_ok=True)
        recovery.touch(demo, "op-1")
        settle(demo, launch(token))
    assert ab_lease.held(demo) is not None and record(demo)["state"] == "running"


@pytest.mark.parametrize("touched", [True, False])
def test_another_order_ends_the_comparison_when_it_has_changed_the_server(demo: Service, touched: bool) -> None:
    save(demo, take=True)
    demo.operation("op-9").mkdir()
    if touched:
        recovery.touch(demo, "op-9")
    settle(demo, {"kind": "down", "op": "op-9", "by": "bob"})
    assert (ab_lease.held(demo) is None) == touched
    assert record(demo)["reason"] == ("down was ordered by bob" if touched else "")
