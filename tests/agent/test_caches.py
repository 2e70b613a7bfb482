"""Caches on disk: what makes another one, what a new one begins with, and what is counted."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import caches
from gpuops_agent.builds import Build
from gpuops_agent.caches import Identity
from gpuops_agent.overlays import Overlay
from gpuops_agent.paths import Root
from gpuops_agent.runtimes import Runtime
from gpuops_agent.wire import Cancelled

ENGINE: dict[str, Any] = {
    "name": "engine",
    "caches": [
        {"folder": "triton", "packages": ["triton", "torch"], "rebase": "__grp__*"},
        {"folder": "engine", "packages": ["engine"]},
        {"folder": "driver", "packages": []},
    ],
}
VERSIONS = {"triton": "3.6.0", "torch": "2.11.0", "engine": "1.0"}


class Events(list[tuple[str, dict[str, Any]]]):
    def __call__(self, name: str, /, **fields: Any) -> None:
        self.append((name, fields))

    def names(self) -> list[str]:
        return [name for name, _ in self]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def wanted(build: str = "new-1", **changes: str) -> Identity:
    return Identity(build, "card", "rt-1", {**VERSIONS, **changes})


def made(root: Root, identity: Identity, good: Path | None = None) -> tuple[Path, Events]:
    events = Events()
    return caches.ensure(root, identity, ENGINE, good, events, lambda: False), events


@pytest.fixture
def good(root: Root) -> Path:
    """The known-good release's cache, used."""
    cache, _ = made(root, wanted("old-1"))
    for name in ("triton/K/kernel.cubin", "engine/table", "driver/x", "pycache/a.pyc", "other/y"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text(name)
    (cache / "triton/K/__grp__kernel.json").write_text(json.dumps({"child_paths": {"k": f"{cache}/triton/K/kernel.cubin"}}))
    (cache / "triton/K/lock").touch()
    (cache / "triton/tmp.pid_1").touch()
    os.utime(cache / "engine/table", (1_600_000_000, 1_600_000_000))
    return cache


def runtime(folder: Path, **distributions: str) -> Runtime:
    return Runtime("path:/venv", folder, folder / "bin" / "python", {"distributions": distributions})


def test_every_part_of_the_identity_makes_another_cache() -> None:
    one = wanted()
    others = [
        replace(one, build="new-2"),
        replace(one, card="other"),
        wanted(torch="2.12.0"),
        wanted(triton="3.7.0"),
        wanted(engine="1.1"),
    ]
    assert len({one.key, *(each.key for each in others)}) == 6
    assert replace(one, runtime="rt-2").key == one.key


def test_where_no_version_is_known_the_runtime_stands_for_them() -> None:
    assert Identity("b", "card", "rt-1").key != Identity("b", "card", "rt-2").key


def test_versions_come_from_the_runtime_and_what_the_build_brings_comes_first(tmp_path: Path) -> None:
    (tmp_path / "site" / "engine-2.0.dist-info").mkdir(parents=True)
    build = Build("b-1", tmp_path / "site")
    found = caches.identity(build, runtime(tmp_path, Torch="2.11.0", triton="3.6.0", engine="1.0", six="1"), "card", ENGINE)
    assert found.versions == {"engine": "2.0", "torch": "2.11.0", "triton": "3.6.0"}


def test_a_patched_engine_is_another_version_of_it(tmp_path: Path) -> None:
    keys = set()
    for sha in ("aa", "bb"):
        site = tmp_path / sha / "site"
        site.mkdir(parents=True)
        (tmp_path / sha / "overlay.json").write_text(json.dumps({"files": {"engine/core.py": sha}}))
        build = Build("b-1", tmp_path / "nothing", Overlay("b-1-k", site, "engine-1.0", ("a.patch",)))
        found = caches.identity(build, runtime(tmp_path, engine="1.0"), "card", ENGINE)
        assert found.versions["engine"].startswith("1.0 patched ")
        keys.add(found.key)
    assert len(keys) == 2


def test_a_new_cache_begins_with_what_is_the_same_for_both(root: Root, good: Path) -> None:
    cache, events = made(root, wanted(), good)
    assert (cache / "triton/K/kernel.cubin").read_text() == "triton/K/kernel.cubin"
    assert (cache / "engine/table").stat().st_mtime == 1_600_000_000
    assert not any((cache / name).exists() for name in ("pycache", "other", "triton/K/lock", "triton/tmp.pid_1"))
    told = json.loads((cache / caches.FILE).read_text())
    assert told["seeded_from"]["from"] == good.name and told["seeded_from"]["parts"] == ["triton", "engine", "driver"]
    assert events.names() == ["phase", "seeded"]


def test_a_seeded_cache_shares_no_file_with_its_origin_and_does_not_lead_back_to_it(root: Root, good: Path) -> None:
    cache, _ = made(root, wanted(), good)
    (cache / "engine/table").write_text("changed")
    assert (good / "engine/table").read_text() == "engine/table"
    group = json.loads((cache / "triton/K/__grp__kernel.json").read_text())
    assert group["child_paths"]["k"] == f"{cache}/triton/K/kernel.cubin" and Path(group["child_paths"]["k"]).exists()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"engine": "1.1"}, ["triton", "driver"]),
        ({"torch": "2.12.0"}, ["engine", "driver"]),
        ({"engine": "1.0 patched ab"}, ["triton", "driver"]),
    ],
)
def test_a_part_whose_packages_changed_is_not_taken_over(
    root: Root, good: Path, change: dict[str, str], parts: list[str]
) -> None:
    cache, _ = made(root, wanted(**change), good)
    assert json.loads((cache / caches.FILE).read_text())["seeded_from"]["parts"] == parts


def test_another_cards_cache_is_no_seed(root: Root, good: Path) -> None:
    cache, events = made(root, replace(wanted(), card="other"), good)
    assert list(cache.iterdir()) == [cache / caches.FILE] and events == []


def test_an_empty_cache_is_no_seed(root: Root) -> None:
    empty, _ = made(root, wanted("old-1"))
    (empty / "triton").mkdir()
    assert made(root, wanted(), empty)[1] == []


def test_a_cache_of_unknown_origin_is_no_seed(root: Root, good: Path) -> None:
    (good / caches.FILE).unlink()
    assert made(root, wanted(), good)[1] == []


def test_packages_of_unknown_version_count_as_the_same_in_one_runtime_only(root: Root, good: Path) -> None:
    for name, parts in (("rt-1", ["triton", "engine", "driver"]), ("rt-2", ["driver"])):
        (good / caches.FILE).write_text(json.dumps({"card": "card", "runtime": "rt-1", "versions": {}}))
        cache, _ = made(root, Identity("new-1", "card", name), good)
        assert json.loads((cache / caches.FILE).read_text())["seeded_from"]["parts"] == parts


def test_a_cache_that_is_there_is_left_as_it_is(root: Root, good: Path) -> None:
    before = sorted(good.rglob("*"))
    again, events = made(root, wanted("old-1"), good)
    assert again == good and sorted(good.rglob("*")) == before and events == []


def test_a_disk_without_room_gives_an_empty_cache_and_says_so(root: Root, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "SPARE_BYTES", 1 << 62)
    cache, events = made(root, wanted(), good)
    assert list(cache.iterdir()) == [cache / caches.FILE]
    assert next(fields["text"] for name, fields in events if name == "note").startswith("the new cache begins empty")


def test_a_copy_that_is_cancelled_leaves_nothing(root: Root, good: Path) -> None:
    with pytest.raises(Cancelled):
        caches.ensure(root, wanted(), ENGINE, good, Events(), lambda: True)
    assert [path.name for path in root.caches.iterdir()] == [good.name]


def test_a_copy_that_was_cut_long_ago_is_removed_and_a_young_one_is_left(root: Root) -> None:
    for name, at in (("old", 1_600_000_000), ("young", None)):
        (root.caches / f".incoming-{name}").mkdir(parents=True)
        os.utime(root.caches / f".incoming-{name}", None if at is None else (at, at))
    made(root, wanted())
    assert [path.name for path in root.caches.glob(".incoming-*")] == [".incoming-young"]


def test_a_file_that_a_living_server_changes_during_the_copy_is_left_out(
    root: Root, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copy2

    def copied(source: Path, target: Path, **options: bool) -> None:
        copy(source, target, **options)
        if source.name == "table":
            source.write_text("longer than before")

    monkeypatch.setattr(shutil, "copy2", copied)
    cache, _ = made(root, wanted(), good)
    assert not (cache / "engine/table").exists() and (cache / "driver/x").exists()


def test_what_passes_does_not_count(good: Path) -> None:
    found = caches.look(good)
    assert found.files == {"triton": 2, "engine": 1, "driver": 1, "other": 1}
    assert caches.look(good / "nowhere").entries == 0


def test_a_start_is_noted_with_what_it_added(good: Path) -> None:
    before = caches.look(good)
    (good / "triton/new").touch()
    told = caches.started(good, 7, before, caches.look(good))
    assert (told["release"], told["misses"], told["missed"]) == (7, 1, {"triton": 1})
    shown = caches.describe(str(good))
    assert shown is not None
    assert (shown["entries"], shown["misses"], shown["build"]) == (6, 1, "old-1")


def test_a_damaged_cache_is_put_aside_each_time_under_another_name(good: Path) -> None:
    first = caches.reset(good, "op-1", "cut")
    second = caches.reset(good, "op-1", "cut again")
    assert (first / "engine/table").exists() and second != first and [path.name for path in good.iterdir()] == [caches.FILE]
    told = caches.describe(str(good))
    assert told is not None and told["reset"]["because"] == "cut again" and told["build"] == "old-1"


def test_the_link_leads_to_the_cache_and_one_that_is_gone_is_made_anew(root: Root) -> None:
    service = root.service("demo")
    service.path.mkdir(parents=True)
    for name in ("a", "b"):
        caches.point(service, root.caches / name)
        assert service.cache_link.resolve() == (root.caches / name).resolve() and service.cache_link.is_dir()
