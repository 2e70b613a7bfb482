"""Seeded rollouts of the real engine with one fault each, on one host: whatever fails, the right server serves at the end, and only it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos_real import parts_of, run
from lab import Lab

SEEDS = range(10)


@pytest.mark.slow
@pytest.mark.failure_mode("controller-killed")
@pytest.mark.failure_mode("controller-lost")
@pytest.mark.failure_mode("runner-killed")
@pytest.mark.failure_mode("supervisor-killed")
@pytest.mark.failure_mode("candidate-dies")
@pytest.mark.failure_mode("rank-lost")
@pytest.mark.failure_mode("link-cut")
def test_ten_rollouts_of_the_real_engine_end_well_whatever_fails(serving: Lab, tmp_path: Path) -> None:
    release = serving.release(serving.status()["release"])
    assert serving.run("down").code == 0
    for result in run(SEEDS, tmp_path, parts_of(release, tmp_path / "parts")):
        print(f"{result.case}; {result.fault}: {result.outcome}, {result.seconds:.0f} s")
        assert not result.faults, "\n".join([str(result.case), result.fault, *result.faults, *result.evidence])
