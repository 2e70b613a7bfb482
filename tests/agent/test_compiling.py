"""What of a build is tried before the stop: which modules, for which cards, in which environment."""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from gpuops_agent import builds, compiling, gpus
from gpuops_agent.gpus import Capability
from gpuops_agent.overlays import Overlay
from gpuops_agent.prepare import Work
from gpuops_agent.proc import boottime

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
    build = builds.Build("b-1", tmp_path / "site", overlay, {"proof": {"plugin": "pack.plugin", "content": "c"}})
    assert compiling.modules(build) == ["engine", "pack", "pack.plugin"]


def test_a_build_and_the_patched_engine_have_their_byte_code_and_are_still_what_they_are_called(tmp_path: Path) -> None:
    build = builds.Build("b-1", tmp_path / "b" / "site", Overlay("b-1-k", tmp_path / "overlay" / "site", "engine-1.0", ()))
    sources = [build.site / "pack" / "core.py", tmp_path / "overlay" / "site" / "engine" / "__init__.py"]
    for source in (*sources, build.site / "pack" / "template.py"):
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("{{ no python }}\n" if source.stem == "template" else "NAME = 1\n")
        source.chmod(0o444)
    files = builds.manifest(tmp_path / "b")
    work = Work(emit=lambda *_, **__: None, cancelled=lambda: False, deadline=boottime() + 60, log=tmp_path / "log")
    compiling.byte_code(build, Path(sys.executable), dict(os.environ), work)
    for source in sources:
        stamp = int(source.stat().st_mtime) & 0xFFFFFFFF
        assert Path(cache_from_source(source)).read_bytes()[8:12] == stamp.to_bytes(4, "little"), source
    assert builds.manifest(tmp_path / "b") == files


def test_programs_that_prepare_see_no_secret_and_no_card() -> None:
    told = compiling.seen({"A": "b", "KEY": "Bearer @{secret:KEY}", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert told == {"A": "b", "CUDA_VISIBLE_DEVICES": ""}


def test_a_build_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    told: list[str] = []
    work = Work(
        emit=lambda name, **fields: told.append(fields.get("text", "")),
        cancelled=lambda: False,
        deadline=boottime() + 60,
        log=tmp_path / "log",
    )
    compiling.byte_code(builds.Build("b-1", tmp_path / "site"), Path(sys.executable), dict(os.environ), work)
    assert any("cannot be written" in text for text in told)
