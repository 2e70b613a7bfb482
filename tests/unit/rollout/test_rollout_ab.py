"""Playing a comparison: what is launched and measured, what is repeated, and that the host always ends where it began."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "measure"))

from comparisons import block, comparison

from gpuops.errors import Exit, GpuopsError
from gpuops.measure.ab import Comparison, Name
from gpuops.rollout.ab import Player, resumable

HOME, OTHER = 3, 4


@dataclass
class FakeBox:
    """A host that does what it is told; ``launches``, ``benches`` and ``smokes`` are what comes instead, one a call, while there are any."""

    launches: list[Any] = field(default_factory=list)
    benches: list[Any] = field(default_factory=list)
    smokes: list[Any] = field(default_factory=list)
    serving: int | None = HOME
    did: list[str] = field(default_factory=list)
    saved: list[Comparison] = field(default_factory=list)
    taken: bool = False
    good: int = HOME

    def launch(self, played: Comparison, name: Name) -> dict[str, Any]:
        side = played.side(name)
        self.did.append(f"launch {side.word}")
        special = _next(self.launches)
        if special is not None:
            self.serving = HOME
            return dict(special)
        self.serving = side.release or OTHER
        return {"outcome": "launched", "code": 0, "release": self.serving}

    def bench(self, played: Comparison) -> dict[str, Any]:
        self.did.append("bench")
        special = _next(self.benches) or {}
        blocks = [{**block(100.0, cell), "valid": True, "rejected": False, "faults": []} for cell in played.cells or ()]
        told = {"release": self.serving, "launch": f"{len(self.did)}-1", "client": "client", "blocks": blocks, "valid": True}
        return {**told, **special}

    def save(self, played: Comparison, *, take: bool = False) -> None:
        if self.taken and not take:
            raise GpuopsError("another process goes on with it", code=Exit.REFUSED, kind="taken")
        self.saved.append(played)

    def now(self) -> tuple[int | None, int | None]:
        return self.serving, self.good

    def restore(self, played: Comparison) -> dict[str, Any]:
        self.did.append(f"restore {played.home}")
        self.serving = played.home
        return {"outcome": "restored", "code": 0, "release": played.home}

    def smoke(self) -> dict[str, Any]:
        self.did.append("smoke")
        return _next(self.smokes) or {"verdict": "right", "check": {"state": "serving"}}


def _next(specials: list[Any]) -> Any:
    special = specials.pop(0) if specials else None
    if isinstance(special, BaseException):
        raise special
    return special


def invalid(*, rejected: bool) -> dict[str, Any]:
    spoiled = {**block(100.0, comparison().cells[0]), "valid": False, "rejected": rejected, "faults": ["it is so"]}  # type: ignore[index]
    return {"valid": False, "blocks": [spoiled]}


def play(box: FakeBox, begun: Comparison | None = None) -> Comparison:
    return Player(begun or comparison(pairs=2), box, lambda text: None).play()


def test_every_launch_is_measured_and_stored_and_the_comparison_ends_at_home() -> None:
    box = FakeBox()
    ended = play(box)
    assert [step for step in box.did if step.startswith("launch")] == [
        "launch known-good",
        "launch none",
        "launch none",
        "launch known-good",
    ]
    assert [len(each.launches) for each in box.saved if each.state == "running"] == [0, 1, 1, 2, 3, 4]
    assert (ended.state, ended.b.release, len(ended.launches)) == ("done", OTHER, 4)
    assert ended.back is not None and (ended.back["release"], ended.back["verdict"]) == (HOME, "right")


def test_a_comparison_that_ends_with_home_serving_asks_its_probes_and_restores_nothing() -> None:
    box = FakeBox()
    play(box)
    assert box.did[-1] == "smoke" and "restore 3" not in box.did


def test_a_comparison_that_ends_with_another_release_restores_home() -> None:
    box = FakeBox()
    play(box, comparison(pairs=1))
    assert box.did[-2:] == ["restore 3", "smoke"]


def test_a_launch_that_fails_ends_the_comparison_with_its_own_words_and_home_serves() -> None:
    failed = {
        "outcome": "restored",
        "code": 10,
        "release": HOME,
        "failed": 9,
        "reason": "it died",
        "evidence": "a line",
        "next": "gpuops logs",
    }
    box = FakeBox(launches=[None, failed])
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert caught.value.code == Exit.RESTORED and "release 9 failed: it died" in caught.value.what
    assert caught.value.next == "gpuops logs; then gpuops ab --resume ab-1"
    assert box.did[-1] == "smoke" and box.saved[-1].state == "failed" and len(box.saved[-1].launches) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"client": "another client"},
        {"blocks": []},
        {"blocks": [{**block(100.0, {**cell, "input": 7}), "valid": True} for cell in comparison().cells or ()]},
    ],
    ids=["another client", "fewer cells", "another cell"],
)
def test_what_another_client_or_other_cells_have_measured_is_not_compared(other: dict[str, Any]) -> None:
    box = FakeBox(benches=[None, other])
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert caught.value.kind == "not_comparable" and "release 3: client" in caught.value.evidence
    assert box.did[-1] == "smoke" and box.serving == HOME and len(box.saved[-1].launches) == 1


@pytest.mark.parametrize("where", ["launches", "benches"])
def test_ctrl_c_ends_the_comparison_and_home_serves(where: str) -> None:
    box = FakeBox(**{where: [None, KeyboardInterrupt()]})
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert (caught.value.code, caught.value.next) == (Exit.RESTORED, "gpuops ab --resume ab-1")
    assert box.did[-1] == "smoke" and box.serving == HOME and box.saved[-1].state == "interrupted"


def test_a_rollout_that_was_asked_to_undo_itself_is_an_interruption() -> None:
    box = FakeBox(launches=[{"outcome": "restored", "code": 10, "release": HOME, "kind": "cancelled", "reason": "cancelled"}])
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert caught.value.what == "the comparison was interrupted"


def test_a_launch_that_the_host_spoils_is_made_again_and_counts_for_nothing() -> None:
    box = FakeBox(benches=[invalid(rejected=False)])
    ended = play(box)
    assert box.did[:4] == ["launch known-good", "bench", "launch known-good", "bench"]
    assert len(ended.launches) == 4 and ended.spoiled[0]["faults"] == ["c1: it is so"]


def test_a_host_that_spoils_a_launch_twice_is_not_fit() -> None:
    box = FakeBox(benches=[invalid(rejected=False), invalid(rejected=False)])
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert caught.value.kind == "spoiled" and box.did[-1] == "smoke"


def test_figures_that_cannot_be_believed_end_the_comparison_at_once() -> None:
    box = FakeBox(benches=[None, invalid(rejected=True)])
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert (caught.value.kind, caught.value.evidence) == ("rejected", "c1: it is so")
    assert box.did.count("bench") == 2 and box.did[-2:] == ["restore 3", "smoke"]


def test_a_service_that_somebody_changed_is_not_measured() -> None:
    box = FakeBox(benches=[{"release": 99}])
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert caught.value.kind == "changed"


def test_a_defect_of_ours_leaves_the_host_at_home_too() -> None:
    box = FakeBox(benches=[None, ZeroDivisionError("no")])
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert caught.value.kind == "bug" and box.did[-2:] == ["restore 3", "smoke"] and box.saved[-1].state == "failed"


def test_a_release_that_somebody_promoted_meanwhile_is_not_taken_down() -> None:
    box = FakeBox(good=8)
    with pytest.raises(GpuopsError) as caught:
        play(box)
    assert (caught.value.code, caught.value.kind) == (Exit.REFUSED, "not_back")
    assert "left to them" in caught.value.what and "restore 3" not in box.did


def test_a_comparison_that_another_process_has_taken_over_is_left_to_it() -> None:
    box = FakeBox(benches=[None, None])
    played = Player(comparison(pairs=2), box, lambda text: setattr(box, "taken", text.startswith("launch 2")))
    with pytest.raises(GpuopsError) as caught:
        played.play()
    assert caught.value.kind == "taken" and "smoke" not in box.did and "restore 3" not in box.did


def test_a_cut_comparison_goes_on_with_the_launch_that_is_missing() -> None:
    box = FakeBox(launches=[None, None, KeyboardInterrupt()])
    with pytest.raises(GpuopsError):
        play(box)
    stored = Comparison.from_json(box.saved[-1].to_json())
    again = FakeBox()
    ended = play(again, resumable(stored, HOME, None, "t-2"))
    assert [step for step in again.did if step.startswith("launch")] == ["launch none", "launch known-good"]
    assert len(ended.launches) == 4 and ended.state == "done"


def test_a_complete_comparison_goes_on_only_with_more_pairs() -> None:
    ended = play(FakeBox())
    with pytest.raises(GpuopsError) as caught:
        resumable(ended, HOME, None, "t-2")
    assert caught.value.kind == "complete"
    assert resumable(ended, HOME, 3, "t-2").next_side == "A"


def test_a_comparison_does_not_go_on_over_another_known_good_release() -> None:
    with pytest.raises(GpuopsError) as caught:
        resumable(comparison(), 8, None, "t-2")
    assert (caught.value.code, caught.value.evidence) == (Exit.REFUSED, "it was 3, it is 8")


def test_home_that_does_not_come_back_is_an_error_of_its_own() -> None:
    class Broken(FakeBox):
        def restore(self, release: int) -> dict[str, Any]:
            return {"outcome": "restore_failed", "code": 11, "release": release, "reason": "no memory"}

    with pytest.raises(GpuopsError) as caught:
        play(Broken(), comparison(pairs=1))
    assert caught.value.code == Exit.RESTORE_FAILED and caught.value.next == "gpuops restore 3"


def test_home_that_answers_wrong_is_said() -> None:
    with pytest.raises(GpuopsError) as caught:
        play(FakeBox(smokes=[{"verdict": "wrong", "check": {"state": "serving"}}]))
    assert caught.value.code == Exit.RESTORE_FAILED and "wrong" in caught.value.what
