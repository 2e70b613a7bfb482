"""The `tree.*` verbs: a build arrives whole and as it was sent, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rollouts import Lab

from gpuops.builds.manifest import Tree, read_tree
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
    site = Path(lab.agent.call("tree.have", kind="builds", id=tree.id)["incoming"])
    shutil.rmtree(site)
    for name, data, mode in files or [(path, (tree.source / path).read_bytes(), mode) for path, mode, _ in tree.entries]:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
        (site / name).chmod(mode)


def test_a_tree_is_asked_for_checked_and_named(lab: Lab, tree: Tree) -> None:
    asked = lab.agent.call("tree.have", kind="builds", id=tree.id)
    assert asked == {"present": False, "incoming": str(lab.root.builds / f".incoming-{tree.id}" / "site"), "link_dest": None}
    arrive(lab, tree)
    assert commit(lab, tree) == {"id": tree.id}
    assert lab.agent.call("tree.have", kind="builds", id=tree.id)["present"]
    assert read_tree(lab.root.builds / tree.id / "site").entries == tree.entries
    # Somebody who pushed the same at the same time is not told of an error.
    assert commit(lab, tree) == {"id": tree.id}


def test_the_nearest_build_is_what_unchanged_files_are_linked_from(lab: Lab, tree: Tree) -> None:
    arrive(lab, tree)
    commit(lab, tree)
    assert lab.agent.call("tree.have", kind="builds", id="mine-0")["link_dest"] == str(lab.root.builds / tree.id / "site")


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
    assert (refused.value.code, refused.value.kind, refused.value.evidence) == (5, "checksum", wrong)
    assert not (lab.root.builds / tree.id).exists()
    arrive(lab, tree)
    assert commit(lab, tree) == {"id": tree.id}


def test_a_commit_of_nothing_and_a_name_with_a_slash_are_refused(lab: Lab, tree: Tree) -> None:
    with pytest.raises(GpuopsError, match=r"nothing of .* has arrived"):
        commit(lab, tree)
    for name in ("../x", ".x", ""):
        with pytest.raises(GpuopsError, match="no name for a tree"):
            lab.agent.call("tree.have", kind="builds", id=name)
