"""The folder of builds: finding, verifying, comparing and pruning."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from build_samples import build

from gpuops.builds import store
from gpuops.builds.diff import Change, diff
from gpuops.builds.manifest import Tree, read_build, read_tree, verified
from gpuops.errors import GpuopsError


def test_a_build_is_found_by_id_beginning_hash_or_path(builds: Path) -> None:
    tree = build(builds, "mine", pkg_a="A = 1\n")
    path = builds / tree.id
    for word in (tree.id, "mine", tree.id.rpartition("-")[2][:4], str(path)):
        assert store.find(builds, word) == path


def test_a_word_for_no_build_or_for_several_is_refused_with_what_is_there(builds: Path) -> None:
    first, second = build(builds, "mine", pkg_a="A = 1\n"), build(builds, "mine", pkg_a="A = 2\n")
    with pytest.raises(GpuopsError) as several:
        store.find(builds, "mine")
    assert first.id in several.value.evidence and second.id in several.value.evidence and several.value.code == 2
    with pytest.raises(GpuopsError) as none:
        store.find(builds, "yours")
    assert none.value.what == "there is no build yours" and none.value.next == "gpuops builds list"


def alter(path: Path) -> None:
    (path / "site" / "pkg" / "a.py").write_text("A = 7\n")


def lose(path: Path) -> None:
    (path / "site" / "pkg" / "a.py").unlink()


def add(path: Path) -> None:
    (path / "site" / "pkg" / "b.py").write_text("B = 1\n")


def change_mode(path: Path) -> None:
    (path / "site" / "pkg" / "a.py").chmod(0o755)


def link(path: Path) -> None:
    """The same content, for as long as somebody else leaves it so."""
    (path / "site" / "pkg" / "a.py").rename(path.parent / "a.py")
    (path / "site" / "pkg" / "a.py").symlink_to(path.parent / "a.py")


def lie(path: Path) -> None:
    """Altered files, and a manifest that was altered to hide it."""
    alter(path)
    text = (path / "manifest.json").read_text()
    old = next(line for line in text.split('"') if len(line) == 64)
    from gpuops.builds.manifest import sha256

    (path / "manifest.json").write_text(text.replace(old, sha256(path / "site" / "pkg" / "a.py")))


@pytest.mark.parametrize(
    ("harm", "wrong"),
    [
        (alter, ("site/pkg/a.py", "altered")),
        (lose, ("site/pkg/a.py", "missing")),
        (add, ("site/pkg/b.py", "unknown")),
        (change_mode, ("site/pkg/a.py", "mode")),
        (link, ("site/pkg/a.py", "altered")),
        (lie, ("manifest.json", "id")),
    ],
)
def test_a_build_that_is_not_what_its_manifest_says_is_named_and_not_used(harm, wrong: tuple[str, str], builds: Path) -> None:
    path = builds / build(builds, "mine", pkg_a="A = 1\n").id
    harm(path)
    assert verified(path)[1] == (wrong,)
    with pytest.raises(GpuopsError) as refused:
        read_tree(path)
    assert refused.value.kind == "manifest" and f"{wrong[0]} ({wrong[1]})" in refused.value.evidence
    assert "gpuops builds make" in refused.value.next


def test_byte_code_that_an_import_left_is_no_difference(builds: Path) -> None:
    path = builds / build(builds, "mine", pkg_a="A = 1\n").id
    (path / "site" / "pkg" / "__pycache__").mkdir()
    (path / "site" / "pkg" / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert not read_build(path).clean


def test_a_manifest_that_cannot_be_read_is_said(builds: Path) -> None:
    path = builds / build(builds, "mine", pkg_a="A = 1\n").id
    (path / "manifest.json").write_text('{"version": 9, "id": "x", "files": []}')
    assert store.listed(builds) == []
    with pytest.raises(GpuopsError) as refused:
        read_build(store.find(builds, path.name))
    assert "version 9, expected 1" in refused.value.evidence


@pytest.mark.parametrize(
    "change",
    [
        {"files": [["site/a.py", 420]]},
        {"files": "all"},
        {"files": [["site/a.py", 420, None]]},
        {"about": "mine"},
        {"about": {"wheel": "w"}},
        {"about": {"engines": {"sglang": ["0.5.23"]}}},
        {"about": {"engines": {"sglang": [{"first": "1", "last": "2", "families": {"x": {}}}]}}},
        {"about": {"made": {"at": "x"}}},
        {"about": {"patches": 3}},
        {"about": {"patches": [3]}},
        {"about": {"capabilities": 9}},
        {"about": {"wheel": {"name": "w", "version": "1"}}},
        {"about": {"source": {"commit": 7}}},
        {"about": {"source": {"commit": "7", "base": "x"}}},
        {"about": {"proof": {"plugin": "p", "content": 3}}},
        {"about": {"resources": {"9.0": {"k": 3}}}},
        {"about": {"resources": {"9.0": {"k": {"registers": "x"}}}}},
        {"files": [["site/a.py", "420", "0"]]},
        {"id": 7},
    ],
)
def test_a_manifest_of_another_form_costs_that_build_and_no_other(change: dict[str, object], builds: Path) -> None:
    path = builds / build(builds, "mine", pkg_a="A = 1\n").id
    other = build(builds, "other", pkg_a="A = 2\n")
    (path / "manifest.json").write_text(json.dumps({**json.loads((path / "manifest.json").read_text()), **change}))
    assert [each.id for each in store.listed(builds)] == [other.id]
    with pytest.raises(GpuopsError) as refused:
        read_build(store.find(builds, path.name))
    assert refused.value.kind == "manifest" and "gpuops builds make" in refused.value.next


def kept(builds: Path, keep: int, needed: dict[str, str]) -> dict[str, bool]:
    return {each.build.id: not each.goes for each in store.decide(store.listed(builds), keep, needed)}


def test_old_builds_of_a_name_go_and_needed_ones_stay(builds: Path) -> None:
    old, middle, new = (build(builds, "mine", {"made": {"at": at}}, pkg_a=f"A = {at}\n") for at in (1, 2, 3))
    other = build(builds, "other", {"made": {"at": 1}}, pkg_a="A = 0\n")
    assert kept(builds, 1, {}) == {new.id: True, middle.id: False, old.id: False, other.id: True}
    assert kept(builds, 1, {old.id: "release 3 uses it"}) == {new.id: True, middle.id: False, old.id: True, other.id: True}


def test_a_removed_build_leaves_nothing(builds: Path) -> None:
    build(builds, "mine", pkg_a="A = 1\n")
    store.remove(store.listed(builds)[0])
    assert list(builds.iterdir()) == []


def test_of_a_build_that_is_a_link_only_the_link_goes(tmp_path: Path, builds: Path) -> None:
    made = build(builds, "mine", pkg_a="A = 1\n")
    (builds / made.id).rename(tmp_path / made.id)
    (builds / made.id).symlink_to(tmp_path / made.id)
    store.remove(store.listed(builds)[0])
    assert list(builds.iterdir()) == [] and read_build(tmp_path / made.id)


def test_what_a_killed_make_left_goes_and_what_is_being_made_stays(builds: Path) -> None:
    build(builds, "mine", pkg_a="A = 1\n")
    for name in (".making-old", ".trash-old", ".making-new"):
        (builds / name / "site").mkdir(parents=True)
    for name in (".making-old", ".trash-old"):
        os.utime(builds / name, (0, 0))
    store.sweep(builds, time.time())
    assert [path.name for path in builds.iterdir() if path.name.startswith(".")] == [".making-new"]


def of(builds: Path, about: dict[str, object], **files: str) -> Tree:
    return build(builds, "mine", about, **files)


def test_a_difference_names_kernels_by_module_targets_resources_and_metadata(builds: Path) -> None:
    family = {"on": False, "targets": ["m:f"]}
    engines = [{"first": "1", "last": "2", "families": {"mhc": family}}]
    old = of(
        builds,
        {
            "source": {"commit": "a" * 40},
            "engines": {"sglang": engines},
            "resources": {"12.0": {"k": {"registers": 100, "shared": 5}}},
        },
        gk_mhc_op="A = 1\n",
        gk_mla_op="A = 1\n",
    )
    new = of(
        builds,
        {
            "source": {"commit": "b" * 40},
            "engines": {"sglang": [{**engines[0], "families": {"mhc": {**family, "on": True}}}]},
            "resources": {"12.0": {"k": {"registers": 120, "shared": 5}}},
        },
        gk_mhc_op="A = 2\n",
        gk_mla_op="A = 1\n",
        gk_new_op="A = 1\n",
    )
    found = diff(old, new)
    assert {module: [each.what for each in changes] for module, changes in found.files.items()} == {
        "gk.mhc": ["site/gk/mhc/op.py"],
        "gk.new": ["site/gk/new/op.py"],
    }
    assert found.targets == (Change("sglang 1 to 2, mhc", "off: m:f", "on: m:f"),)
    assert found.resources == (Change("12.0 k registers", "100", "120"),)
    assert found.metadata == (Change("commit", "a" * 40, "b" * 40),)
    assert not found.same and diff(old, old).same
