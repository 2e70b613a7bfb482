"""What of a build is tried before the stop: which modules, for which cards, in which environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpuops_agent import compiling, gpus
from gpuops_agent.builds import Build
from gpuops_agent.gpus import Capability
from gpuops_agent.overlays import Overlay

CARDS = [Capability("0", "GPU-aa", "12.0"), Capability("1", "GPU-bb", "12.0"), Capability("2", "GPU-cc", "9.0")]


@pytest.mark.parametrize(
    ("cards", "chosen", "found"),
    [
        (CARDS, [], ["12.0", "9.0"]),
        (CARDS, ["0", "1"], ["12.0"]),
        (CARDS, ["GPU-cc"], ["9.0"]),
        (CARDS, ["00000000:01:00.0"], ["12.0", "9.0"]),
        ([], [], ["cpu"]),
        ([], ["0"], ["cpu"]),
    ],
)
def test_each_capability_of_the_services_cards_is_compiled_for_once(
    cards: list[Capability], chosen: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "capabilities", lambda: cards)
    assert compiling.capabilities(chosen) == found


def test_packages_the_plugin_and_the_patched_engine_are_imported(tmp_path: Path) -> None:
    for package in ("site/pack", "site/pack-1.0.dist-info", "overlay/site/engine"):
        (tmp_path / package).mkdir(parents=True)
    for package in ("site/pack", "overlay/site/engine"):
        (tmp_path / package / "__init__.py").touch()
    overlay = Overlay("b-1-k", tmp_path / "overlay" / "site", "engine-1.0", ("a.patch",))
    build = Build("b-1", tmp_path / "site", overlay, {"proof": {"plugin": "pack.plugin", "content": "c"}})
    assert compiling.modules(build) == ["engine", "pack", "pack.plugin"]


def test_programs_that_prepare_see_no_secret_and_no_card() -> None:
    told = compiling.seen({"A": "b", "KEY": "Bearer @{secret:KEY}", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert told == {"A": "b", "CUDA_VISIBLE_DEVICES": ""}
