"""Kernel builds under the real engine: one that is right, one that is subtly wrong, one whose place in the engine does not exist."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import GPUOPS, REPOSITORY, Lab, Ran

SOURCES = {
    "gpuops-kernels": REPOSITORY / "kernels",
    "swiglu-wrong": REPOSITORY / "playbooks/embedded/kernels/swiglu-wrong",
    "swiglu-missing": REPOSITORY / "playbooks/embedded/kernels/swiglu-missing",
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Swapped:
    """The pack serves, swapped in under a running stock engine.

    Args:
        builds: the folder of the three builds.
        ids: of the builds, by name.
        ran: the swap.
        release: the pack's release.
    """

    lab: Lab
    builds: Path
    ids: dict[str, str]
    ran: Ran
    release: int

    def swap(self, name: str) -> Ran:
        """Swap to a build by its name, as one types it."""
        return self.lab.run("swap", name, "--json", "--dir", str(self.builds))

    def serves_on(self) -> None:
        """The pack's release runs, is known-good, and proves itself."""
        entry = self.lab.status("--check")
        assert (entry["release"], entry["known_good"]) == (self.release, self.release)
        assert entry["proof"]["passed"] and entry["proof"]["build"] == self.ids["gpuops-kernels"]


@pytest.fixture(scope="module")
def swapped(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Swapped:
    builds = tmp_path_factory.mktemp("builds")
    ids = {name: _make(source, builds) for name, source in SOURCES.items()}
    up = lab.up()
    assert up.code == 0, up
    ran = lab.run("swap", "gpuops-kernels", "--json", "--dir", str(builds))
    assert ran.code == 0, ran
    return Swapped(lab, builds, ids, ran, ran.json["release"])


def test_the_right_build_is_promoted_and_its_proof_is_shown(swapped: Swapped) -> None:
    pack = swapped.ids["gpuops-kernels"]
    assert swapped.ran.json["outcome"] == "promoted"
    proof = {"build": pack, "state": "active", "text": "1 of 1 ranks, swiglu active"}
    assert swapped.ran.json["proof"] == proof
    (told,) = [event for event in swapped.ran.events if event["event"] == "proof"]
    assert "swiglu active" in told["evidence"][0] and "glue not applicable" in told["evidence"][0]
    swapped.serves_on()
    (file,) = (swapped.lab.service / "releases" / str(swapped.release) / "proofs").glob("*.json")
    family = json.loads(file.read_text())["families"]["swiglu"]
    assert family["targets"][0]["target"] == "sglang.srt.layers.activation:SiluAndMul.forward_native"
    assert family["targets"][0]["calls"] > 0


def test_the_kernels_are_compiled_and_the_build_is_imported_before_the_old_server_stops(swapped: Swapped) -> None:
    story = [event["event"] for event in swapped.ran.events]
    assert story.index("imported") < story.index("compiled") < story.index("stopping") < story.index("proof")


def test_status_names_the_build_and_what_of_it_serves(swapped: Swapped) -> None:
    said = swapped.lab.run("status").out
    assert f"{swapped.ids['gpuops-kernels']}: 1 of 1 ranks, swiglu active" in said


@pytest.mark.failure_mode("garbage")
def test_a_build_that_is_subtly_wrong_gives_way_and_the_failing_probe_is_shown(swapped: Swapped) -> None:
    ran = swapped.swap("swiglu-wrong")
    assert (ran.code, ran.json["outcome"]) == (10, "restored"), ran
    (told,) = [event for event in ran.events if event["event"] == "proof" and event["build"] == swapped.ids["swiglu-wrong"]]
    # Its kernels are where they should be, and it became ready: only the answers are wrong.
    assert told["state"] == "active"
    wrong = [event for event in ran.events if event["event"] == "probe" and not event["passed"]]
    assert wrong[0]["name"] == "capital" and "Paris" not in wrong[0]["answer"]
    assert "What is the capital of France?" in ran.json["evidence"]
    swapped.serves_on()


@pytest.mark.failure_mode("kernels-unproved")
def test_a_build_whose_place_is_missing_gives_way_and_the_place_is_named(swapped: Swapped) -> None:
    ran = swapped.swap("swiglu-missing")
    assert (ran.code, ran.json["outcome"]) == (10, "restored"), ran
    assert "SiluAndMul.forward_fused" in ran.json["evidence"], ran.json
    swapped.serves_on()


def _make(source: Path, builds: Path) -> str:
    argv = [GPUOPS, "builds", "make", "--json", "--from", str(source), "--dir", str(builds)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True)
    return Path(json.loads(ended.stdout)["path"]).name
