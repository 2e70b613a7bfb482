"""Seeded rollouts with one fault each, by the real command line over a real sshd: they end well. `make bench-chaos` plays 300 of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos_draw import FAULTS, REAL_FAULTS, REAL_PHASES, draw, draw_real
from benchmarks.chaos_faults import impossible
from benchmarks.chaos_host import Parts, make_parts, sshd
from benchmarks.chaos_trial import play
from gpuops.sandbox import SandboxInfo, prerequisites

SEEDS = range(1, 31)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return make_parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxInfo]:
    prerequisites.ensure(print)
    with sshd(tmp_path_factory.mktemp("sshd")) as info:
        yield info


@pytest.mark.slow
@pytest.mark.failure_mode("controller-killed")
@pytest.mark.failure_mode("controller-lost")
@pytest.mark.failure_mode("runner-killed")
@pytest.mark.failure_mode("supervisor-killed")
@pytest.mark.failure_mode("candidate-dies")
@pytest.mark.failure_mode("rank-lost")
@pytest.mark.failure_mode("ssh-session-killed")
@pytest.mark.failure_mode("link-cut")
@pytest.mark.failure_mode("link-half-open")
@pytest.mark.failure_mode("disk-full-during")
@pytest.mark.failure_mode("no-fork")
@pytest.mark.failure_mode("second-controller")
@pytest.mark.failure_mode("garbled-file")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rollout_ends_well_whatever_fails(seed: int, parts: Parts, host: SandboxInfo, tmp_path: Path) -> None:
    result = play(draw(seed, impossible()), tmp_path / str(seed), parts, host)
    assert not result.faults, "\n".join([str(result.case), result.fault, *result.faults, *result.evidence])


def test_the_seeds_draw_every_fault() -> None:
    assert {draw(seed).fault for seed in SEEDS} == set(FAULTS)


def test_ten_seeds_of_the_real_engine_draw_every_fault_and_every_phase() -> None:
    cases = [draw_real(seed) for seed in range(10)]
    assert ({case.fault for case in cases}, {case.phase for case in cases}) == (set(REAL_FAULTS), set(REAL_PHASES))


def test_a_seed_always_draws_the_same_case() -> None:
    assert draw(7) == draw(7) != draw(8)


def test_a_fault_that_a_machine_cannot_make_is_not_drawn_and_changes_no_other_seed() -> None:
    drawn = [(draw(seed), draw(seed, without=["disk_full"])) for seed in range(200)]
    assert all(allowed == case for case, allowed in drawn if case.fault != "disk_full")
    assert "disk_full" not in {allowed.fault for _, allowed in drawn}
