"""The `tree.*` verbs: a build arrives whole and as it was sent, or not at all."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rollouts import Lab

from gpuops.builds.manifest import Tree, read_tree
from gpuops.builds.push import push
from gpuops.errors import GpuopsError


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    folder = tmp_path / "mine"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("X = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return read_tree(folder)


def commit(lab: Lab, tree: Tree) -> object:
    return lab.agent.call("tree.commit", kind="builds", id=tree.id, manifest=[list(entry) for entry in tree.entries])


def arrive(lab: Lab, tree: Tree, *files: tuple[str, bytes, int]) -> None:
    """Put files where the transports put what they push: by default the tree's own."""
    site = Path(lab.agent.call("tree.have", kind="builds", id=tree.id)["incoming"]) / "site"
    shutil.rmtree(site)
    source = tree.parts["site"]
    own = [(path.removeprefix("site/"), mode) for path, mode, _ in tree.entries]
    for name, data, mode in files or [(path, (source / path).read_bytes(), mode) for path, mode in own]:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
        (site / name).chmod(mode)


def test_a_tree_is_asked_for_checked_and_named(lab: Lab, tree: Tree) -> None:
    asked = lab.agent.call("tree.have", kind="builds", id=tree.id)
    assert asked == {"present": False, "incoming": str(lab.root.builds / f".incoming-{tree.id}"), "link_dest": None}
    arrive(lab, tree)
    assert commit(lab, tree) == {"id": tree.id}
    assert lab.agent.call("tree.have", kind="builds", id=tree.id)["present"]
    assert read_tree(lab.root.builds / tree.id).entries == tree.entries
    # Somebody who pushed the same at the same time is not told of an error.
    assert commit(lab, tree) == {"id": tree.id}


def test_the_nearest_build_is_what_unchanged_files_are_linked_from(lab: Lab, tree: Tree) -> None:
    arrive(lab, tree)
    commit(lab, tree)
    assert lab.agent.call("tree.have", kind="builds", id="mine-0")["link_dest"] == str(lab.root.builds / tree.id)


@pytest.mark.failure_mode("download-cut")
@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ((("pkg/__init__.py", b"X = 2\n", 0o644), ("run.sh", b"#!/bin/sh\n", 0o755)), "pkg/__init__.py"),
        ((("pkg/__init__.py", b"X = 1\n", 0o644),), "run.sh"),
        ((("pkg/__init__.py", b"X = 1\n", 0o644), ("run.sh", b"#!/bin/sh\n", 0o644)), "run.sh"),
        ((("pkg/__init__.py", b"X = 1\n", 0o644), ("run.sh", b"#!/bin/sh\n", 0o755), ("extra", b"", 0o644)), "extra"),
    ],
    ids=["altered", "missing", "mode", "too many"],
)
def test_a_tree_that_differs_from_its_manifest_gets_no_name(
    lab: Lab, tree: Tree, change: tuple[tuple[str, bytes, int], ...], wrong: str
) -> None:
    arrive(lab, tree, *change)
    with pytest.raises(GpuopsError) as refused:
        commit(lab, tree)
    assert (refused.value.code, refused.value.kind, refused.value.evidence) == (5, "checksum", f"site/{wrong}")
    assert not (lab.root.builds / tree.id).exists()
    arrive(lab, tree)
    assert commit(lab, tree) == {"id": tree.id}


def test_a_commit_of_nothing_and_a_name_with_a_slash_are_refused(lab: Lab, tree: Tree) -> None:
    with pytest.raises(GpuopsError, match=r"nothing of .* has arrived"):
        commit(lab, tree)
    for name in ("../x", ".x", ""):
        with pytest.raises(GpuopsError, match="no name for a tree"):
            lab.agent.call("tree.have", kind="builds", id=name)


def test_a_name_that_is_not_that_of_the_content_is_refused(lab: Lab, tree: Tree) -> None:
    lying = replace(tree, id="mine-0123456789ab")
    arrive(lab, lying)
    with pytest.raises(GpuopsError) as refused:
        commit(lab, lying)
    assert (refused.value.kind, refused.value.evidence) == ("manifest", f"its files make the id ...-{tree.id[-12:]}")
    assert not (lab.root.builds / lying.id).exists()


def test_verify_names_every_file_that_differs_on_the_host(lab: Lab, tree: Tree) -> None:
    arrive(lab, tree)
    commit(lab, tree)
    assert lab.agent.call("build.verify", id=tree.id) == {"id": tree.id, "files": 2, "wrong": []}
    site = lab.root.builds / tree.id / "site"
    (site / "pkg" / "__init__.py").chmod(0o644)
    (site / "pkg" / "__init__.py").write_text("X = 2\n")
    (site / "run.sh").unlink()
    wrong = lab.agent.call("build.verify", id=tree.id)["wrong"]
    assert wrong == [{"path": "site/pkg/__init__.py", "what": "altered"}, {"path": "site/run.sh", "what": "missing"}]


def test_a_link_in_the_place_of_a_file_is_a_difference_whatever_it_leads_to(lab: Lab, tree: Tree, tmp_path: Path) -> None:
    arrive(lab, tree)
    commit(lab, tree)
    file = lab.root.builds / tree.id / "site" / "run.sh"
    file.rename(tmp_path / "run.sh")
    for target in (tmp_path / "run.sh", tmp_path / "gone", tmp_path):
        file.unlink(missing_ok=True)
        file.symlink_to(target)
        assert lab.agent.call("build.verify", id=tree.id)["wrong"] == [{"path": "site/run.sh", "what": "altered"}]


def test_what_arrives_setuid_is_not_when_it_is_in_place(lab: Lab, tree: Tree) -> None:
    arrive(lab, tree, ("pkg/__init__.py", b"X = 1\n", 0o4644), ("run.sh", b"#!/bin/sh\n", 0o6755))
    commit(lab, tree)
    site = lab.root.builds / tree.id / "site"
    modes = {path.name: path.stat().st_mode & 0o7777 for path in site.rglob("*") if path.is_file()}
    assert modes == {"__init__.py": 0o444, "run.sh": 0o555}


def test_byte_code_that_came_along_is_not_kept(lab: Lab, tree: Tree) -> None:
    """It is no content, so that nothing would check it."""
    arrive(lab, tree)
    site = lab.root.builds / f".incoming-{tree.id}" / "site"
    for name in ("pkg/__pycache__/__init__.cpython-311.pyc", "pkg/other.pyc"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_bytes(b"code")
    commit(lab, tree)
    placed = lab.root.builds / tree.id
    assert not [path for path in placed.rglob("*") if path.suffix == ".pyc" or path.name == "__pycache__"]
    assert read_tree(placed).entries == tree.entries


@pytest.mark.failure_mode("disk-full-before")
def test_a_build_that_the_disk_has_no_room_for_is_refused_before_anything_is_sent(lab: Lab, tree: Tree) -> None:
    with pytest.raises(GpuopsError) as refused:
        lab.agent.call("tree.have", kind="builds", id=tree.id, sizes=[("site/large", "0" * 64, 1 << 60)])
    assert (refused.value.code, refused.value.kind) == (5, "disk_full") and "gpuops prune" in refused.value.next
    assert list(lab.root.builds.iterdir()) == []


def test_what_a_build_shares_with_the_nearest_needs_no_room(lab: Lab, tree: Tree) -> None:
    arrive(lab, tree)
    commit(lab, tree)
    path, _, sha = tree.entries[0]
    assert lab.agent.call("tree.have", kind="builds", id="mine-0", sizes=[(path, sha, 1 << 60)])["incoming"]


def test_verify_of_a_build_that_is_not_there_says_which_are(lab: Lab, tree: Tree) -> None:
    arrive(lab, tree)
    commit(lab, tree)
    with pytest.raises(GpuopsError) as none:
        lab.agent.call("build.verify", id="other-1")
    assert none.value.evidence == f"there: {tree.id}" and none.value.next == "gpuops builds push other-1"


def test_the_hosts_builds_are_listed_with_what_their_maker_said(lab: Lab, tree: Tree) -> None:
    assert lab.agent.call("build.list") == {"builds": []}
    arrive(lab, tree)
    manifest = [list(entry) for entry in tree.entries]
    lab.agent.call("tree.commit", kind="builds", id=tree.id, manifest=manifest, about={"patches": ["engine-1.0"]})
    (told,) = lab.agent.call("build.list")["builds"]
    assert (told["id"], told["files"], told["about"]) == (tree.id, 2, {"patches": ["engine-1.0"]})


@pytest.mark.failure_mode("build-altered")
def test_an_altered_build_is_not_used(lab: Lab, tree: Tree) -> None:
    arrive(lab, tree)
    commit(lab, tree)
    path = lab.root.builds / tree.id / "site" / "pkg" / "__init__.py"
    path.chmod(0o644)
    path.write_text("X = 2\n")
    order = lab.order()
    order["prepare"]["build"] = {"kind": "tree", "id": tree.id}
    played = lab.play(order)
    assert (played.name, played.code, played.outcome["kind"]) == ("failed", 5, "manifest")
    assert "site/pkg/__init__.py (altered)" in played.outcome["evidence"]


def test_a_build_that_differs_by_one_file_is_sent_without_the_others(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "large.bin").write_bytes(bytes(range(256)) * 4000)
    (folder / "small.py").write_text("X = 1\n")
    push(lab.agent, read_tree(folder))
    (folder / "small.py").write_text("X = 2\n")
    again = read_tree(folder)
    sent = push(lab.agent, again)
    assert sent is not None and (sent.files, sent.bytes_sent) == (2, 6)
    assert push(lab.agent, again) is None
