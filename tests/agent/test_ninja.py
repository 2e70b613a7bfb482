"""Ninja's builds in a copied cache, with ninja itself: what names its own folder is built for the new one, and is then up to date."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import caches, ninja, warm
from gpuops_agent.paths import Root
from gpuops_agent.prepare import Work
from gpuops_agent.proc import boottime
from gpuops_agent.wire import Cancelled

ENGINE: dict[str, Any] = {"name": "engine", "caches": [{"folder": "modules", "packages": [], "ninja": True}]}
NINJA = Path(sys.executable).parent / "ninja"
# As tvm-ffi writes them: the source by its whole path. As FlashInfer does: what is made of several, each.
BUILDS = {
    "one": ("one", "", "{folder}/", ["source"]),
    "two": ("two", "", "{folder}/", ["source"]),
    "deep": (".cache/jit/0.1/90a/cached_ops/deep", "{folder}/", "", ["source", "other"]),
}
RULES = """rule copy
  command = cat $in > $out && echo built >> {log}

"""


def build_file(folder: Path, log: Path, made: str, read: str, sources: list[str]) -> str:
    made, read = made.format(folder=folder.resolve()), read.format(folder=folder.resolve())
    objects = [f"{made}{source}.o" for source in sources]
    edges = [f"build {each}: copy {read}{source}\n" for each, source in zip(objects, sources, strict=True)]
    link = f"build {made}module.so: copy {' '.join(objects)}\n\ndefault {made}module.so\n"
    return RULES.format(log=log) + "".join(edges) + link


def identity(build: str) -> caches.Identity:
    return caches.Identity(build, "card", "rt-1", {"torch": "2.11.0"})


def up_to_date(folder: Path) -> bool:
    told = subprocess.run([NINJA, "-n"], cwd=folder, capture_output=True, text=True, check=True)
    return "no work to do" in told.stdout


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


@pytest.fixture
def good(root: Root) -> Path:
    """A cache with three modules that a server has built."""
    cache = caches.ensure(root, identity("good"), ENGINE, None, lambda *_, **__: None, lambda: False)
    for name, (where, made, read, sources) in BUILDS.items():
        folder = cache / "modules" / where
        folder.mkdir(parents=True)
        for source in sources:
            (folder / source).write_text(name)
        (folder / ninja.FILE).write_text(build_file(folder, root.caches / "built", made, read, sources))
        subprocess.run([NINJA], cwd=folder, check=True, capture_output=True)
        assert up_to_date(folder)
    return cache


class Ahead:
    """What a rollout does with a new build's cache, and what it tells."""

    def __init__(self, root: Root, good: Path) -> None:
        self.root, self.told, self.stop, self.at_once = root, [], False, 1
        self.cache = caches.ensure(root, identity("new"), ENGINE, good, self.emit, lambda: False)
        self.parts = [self.cache / "modules"]
        self.modules = [self.cache / "modules" / where for where, *_ in BUILDS.values()]

    def emit(self, name: str, /, **fields: Any) -> None:
        self.told.append(fields.get("text") or fields.get("detail"))

    def rebuild(self, python: Path = Path(sys.executable), **environment: str) -> list[Path]:
        found = ninja.renamed(self.parts, self.cache)
        ninja.rebuild(found, python, {"PATH": "/usr/bin:/bin", **environment}, self.work())
        return found

    def work(self) -> Work:
        log, deadline = self.root.path / "log", boottime() + 60
        return Work(emit=self.emit, cancelled=lambda: self.stop, deadline=deadline, log=log, at_once=self.at_once)


@pytest.fixture
def ahead(root: Root, good: Path) -> Ahead:
    return Ahead(root, good)


def test_a_copied_module_is_built_once_for_its_new_folder(ahead: Ahead, root: Root) -> None:
    assert sorted(ahead.rebuild()) == sorted(ahead.modules)
    for folder in ahead.modules:
        assert str(ahead.cache.resolve()) in (folder / ninja.FILE).read_text()
        assert up_to_date(folder)
    assert (root.caches / "built").read_text().split() == ["built"] * 2 * (2 + 2 + 3)
    assert ahead.told[-2] == "3 compiled modules, for the new folder" and ahead.told[-1].startswith(
        "3 compiled modules of the cache built"
    )


def test_without_it_ninja_would_build_again(ahead: Ahead) -> None:
    """Why all of this is there: the file that the server writes has another path than the copy."""
    ninja.renamed(ahead.parts, ahead.cache)
    assert not any(up_to_date(folder) for folder in ahead.modules)


def test_where_memory_is_short_one_compiler_at_a_time_is_enough(ahead: Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    work = ahead.work()
    for gigabytes, jobs in ((1, 1), (9, 2), (200, 12)):
        monkeypatch.setattr(warm, "room", lambda room=gigabytes << 30: warm.Room(room, "MemAvailable"))
        assert ninja._jobs({}, work) == jobs


def test_what_names_its_own_folder_is_left_alone(ahead: Ahead) -> None:
    ahead.rebuild()
    told = len(ahead.told)
    assert ahead.rebuild() == [] and len(ahead.told) == told


def test_a_module_that_does_not_build_is_left_to_the_server(ahead: Ahead) -> None:
    (ahead.parts[0] / "two" / "source").unlink()
    ahead.rebuild()
    assert ahead.told[-1].endswith("the server compiles what is missing itself") and "source" in ahead.told[-1]
    assert [up_to_date(folder) for folder in ahead.modules if folder.name != "two"] == [True, True]


@pytest.mark.parametrize(
    ("environment", "at_once", "jobs"),
    [({}, 1, 12), ({}, 4, 3), ({}, 20, 1), ({"MAX_JOBS": "5"}, 1, 5), ({"MAX_JOBS": "5"}, 4, 1), ({"MAX_JOBS": "all"}, 1, 12)],
)
def test_no_more_compilers_run_at_a_time_than_there_are_cores_for_or_the_engines_own_builds_may_have(
    ahead: Ahead, tmp_path: Path, environment: dict[str, str], at_once: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of ninja's calls is told how many: of one source side by side, of several all of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr(warm, "room", lambda: warm.Room(100 << 30, "MemAvailable"))
    ahead.at_once = at_once
    said = tmp_path / "said"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ninja").write_text(f'#!/bin/sh\necho "$*" >> {said}\n')
    (tmp_path / "bin" / "ninja").chmod(0o755)
    ahead.rebuild(tmp_path / "bin" / "python", **environment)
    one, two, deep = ahead.modules
    assert sorted(said.read_text().splitlines()) == sorted([f"-j 1 -C {one}", f"-j 1 -C {two}", f"-j {jobs} -C {deep}"])


def test_a_host_without_ninja_says_so(ahead: Ahead, tmp_path: Path) -> None:
    ahead.rebuild(tmp_path / "bin" / "python", PATH=str(tmp_path))
    assert "there is no ninja here" in ahead.told[-1]


def test_a_rollout_that_is_cancelled_does_not_wait_for_it(ahead: Ahead) -> None:
    ahead.stop = True
    with pytest.raises(Cancelled):
        ahead.rebuild()


def test_a_shared_object_that_is_built_anew_is_a_miss(good: Path) -> None:
    before = caches.look(good)
    assert caches.look(good).misses_since(before) == {}
    shutil.copy(good / "modules/one/source", good / "modules/one/module.so")
    assert caches.look(good).misses_since(before) == {"modules": 1}
