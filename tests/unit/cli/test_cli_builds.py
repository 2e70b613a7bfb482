"""`gpuops builds` and `gpuops up --bundle`: what they ask for, what they print and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuops.builds.manifest import Tree, hashed, write_manifest
from gpuops.cli import builds_host
from gpuops.errors import Exit, GpuopsError
from gpuops.transport.base import PushStats

HOST = ("--host", "gpu-box")

PRUNED = {
    "dry_run": False,
    "bytes": 0,
    "gone": [],
    "kept": [],
    "failed": [],
}


def build(name: str = "mine", text: str = "A = 1\n", at: float = 1.0, **about: Any) -> Tree:
    """A build in ``builds/`` of the present folder."""
    staging = Path("builds") / f".{name}"
    (staging / "site" / "pkg").mkdir(parents=True)
    (staging / "site" / "pkg" / "a.py").write_text(text)
    tree = hashed(name, {"site": staging / "site"}, {"made": {"at": at}, **about})
    write_manifest(staging, tree)
    staging.rename(Path("builds") / tree.id)
    return tree


@pytest.fixture
def patches(folder: Path) -> Path:
    path = folder / "patches" / "sglang-0.5.23"
    path.mkdir(parents=True)
    (path / "a.patch").write_text("--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ -1 +1 @@\n-A = 1\n+A = 2\n")
    return path.parent


def test_make_says_where_the_build_is_and_how_to_use_it(gpuops, patches):
    said = gpuops("builds", "make", "--patches", str(patches), "--name", "fix")
    assert said.code == 0
    (path,) = Path("builds").iterdir()
    assert said.out.splitlines()[0] == f"builds/{path.name} is made: 1 file"
    assert f"gpuops builds push {path.name}" in said.out
    again = gpuops("builds", "make", "--patches", str(patches), "--name", "fix", "--json").objects[0]
    assert (again["id"], again["new"], again["about"]["patches"]) == (path.name, False, ["sglang-0.5.23"])


def test_make_without_anything_looks_for_kernels_and_says_that_there_are_none(gpuops):
    said = gpuops("builds", "make")
    assert said.code == 1
    assert "kernels" in said.err and "next:" in said.err


def test_builds_lie_where_the_option_or_the_environment_says(gpuops, patches, tmp_path, monkeypatch):
    gpuops("builds", "make", "--patches", str(patches), "--name", "one", "--dir", str(tmp_path / "a"))
    monkeypatch.setenv("GPUOPS_BUILDS", str(tmp_path / "b"))
    gpuops("builds", "make", "--patches", str(patches), "--name", "two")
    assert [path.name[:3] for folder in ("a", "b") for path in (tmp_path / folder).iterdir()] == ["one", "two"]


def test_list_shows_here_and_with_a_host_also_there(gpuops, agent):
    tree = build(patches=["sglang-0.5.23"], source={"commit": "c" * 40, "dirty": "d" * 12})
    here = gpuops("builds", "list").out.splitlines()
    assert here[0] == "1 build in builds" and tree.id in here[1]
    assert f"{'c' * 12} with changes {'d' * 12}, patches for sglang-0.5.23" in here[1]
    agent(**{"build.list": {"builds": [{"id": "theirs-1", "files": 3, "at": 1.0, "about": {}}]}})
    assert "theirs-1" in gpuops("builds", "list", *HOST).out
    (told,) = gpuops("builds", "list", "--json", *HOST).objects
    assert [each["id"] for each in told["builds"]] == [tree.id] and told["host"][0]["id"] == "theirs-1"


def test_list_says_which_builds_it_leaves_out(gpuops):
    tree, cut = build(), build("cut", "B = 1\n")
    (Path("builds") / cut.id / "manifest.json").write_text("{")
    said = gpuops("builds", "list")
    assert tree.id in said.out and cut.id not in said.out
    assert f"left out: builds/{cut.id} is no build that this gpuops can read" in said.err


def test_show_tells_what_a_build_is_for(gpuops):
    family = {"on": True, "targets": ["m:f"]}
    tree = build(
        engines={"sglang": [{"first": "0.5.18", "last": "0.5.23", "families": {"mhc": family}}]},
        capabilities=["12.0"],
        resources={"12.0": {"k": {"registers": 168, "shared": 1024}}},
    )
    out = gpuops("builds", "show", "mine").out
    assert (
        "sglang 0.5.18 to 0.5.23: mhc" in out and "compute capability 12.0" in out and "at most registers 168, shared 1024" in out
    )
    assert "site/pkg/a.py" not in out and "site/pkg/a.py" in gpuops("builds", "show", "mine", "-v").out
    assert gpuops("builds", "show", "mine", "--json").objects[0]["id"] == tree.id


def test_verify_ends_with_1_and_the_files_that_differ_here_or_there(gpuops, agent):
    tree = build()
    assert gpuops("builds", "verify", "mine").code == 0
    wrong = [{"path": "site/pkg/a.py", "what": "altered"}]
    fake = agent(**{"build.verify": {"id": tree.id, "files": 1, "wrong": wrong}})
    said = gpuops("builds", "verify", "mine", *HOST)
    assert said.code == 1
    assert [line.split()[0] for line in said.out.splitlines()] == ["✓", "✗", "site/pkg/a.py"]
    assert fake.calls == [("build.verify", {"id": tree.id})]
    (told,) = gpuops("builds", "verify", "mine", "--json", *HOST).objects
    assert [place["wrong"] for place in told["places"]] == [[], wrong]


def test_diff_says_what_changed(gpuops):
    first, second = build(), build(text="A = 2\n")
    said = gpuops("builds", "diff", first.id, second.id)
    assert said.out.splitlines()[:2] == [f"{first.id} -> {second.id}", "pkg: 1 file"]
    assert gpuops("builds", "diff", first.id, first.id, "--json").objects[0]["same"] is True


def test_push_sends_a_build_that_is_true(gpuops, agent, monkeypatch):
    tree = build()
    agent()
    monkeypatch.setattr("gpuops.builds.push.push", lambda agent, tree: PushStats(1, 6, "rsync"))
    said = gpuops("builds", "push", "mine", *HOST)
    assert (said.code, said.out) == (0, f"{tree.id} is on gpu-box: 1 file, 6 B sent by rsync\n")


@pytest.mark.failure_mode("build-altered")
def test_push_refuses_a_build_that_was_altered_before_it_connects(gpuops):
    tree = build()
    (Path("builds") / tree.id / "site" / "pkg" / "a.py").write_text("A = 7\n")
    said = gpuops("builds", "push", "mine", "--json", *HOST)
    assert said.code == 1
    error = said.objects[0]["error"]
    assert (error["kind"], error["evidence"]) == ("manifest", "site/pkg/a.py (altered)")


def test_prune_keeps_the_newest_and_what_stays_on_the_host(gpuops, agent):
    trees = [build(text=f"A = {at}\n", at=at) for at in (1.0, 2.0, 3.0)]
    kept = [{"kind": "build", "service": None, "name": trees[0].id, "why": "release 3 of svc uses it"}]
    fake = agent(prune={**PRUNED, "kept": kept})
    said = gpuops("builds", "prune", "--keep", "1", "--dry-run", "-v", *HOST)
    assert said.code == 0
    assert len(list(Path("builds").iterdir())) == 3
    assert f"{trees[0].id}  on gpu-box: release 3 of svc uses it" in " ".join(said.out.split("\n"))
    assert fake.calls[0][1]["kinds"] == ["build", "overlay"] and fake.calls[0][1]["dry_run"] is True
    gpuops("builds", "prune", "--keep", "1", *HOST)
    assert sorted(path.name for path in Path("builds").iterdir()) == sorted([trees[0].id, trees[2].id])


def test_prune_of_this_machine_alone_asks_no_host(gpuops):
    build()
    assert gpuops("builds", "prune", "--json").objects[0]["gone"] == []


def test_a_busy_host_refuses_before_anything_is_deleted_here(gpuops, agent):
    for at in (1.0, 2.0):
        build(text=f"A = {at}\n", at=at)
    agent(prune=GpuopsError("service svc is busy", code=Exit.REFUSED, kind="locked"))
    assert gpuops("builds", "prune", "--keep", "1", *HOST).code == 13
    assert len(list(Path("builds").iterdir())) == 2


PLAYBOOK = """\
service: svc
host: gpu-box
runtime: {path: /opt/venv}
model: {path: /models/m}
engine: {name: sglang, version: 0.5.23}
build: {tree: builds/%s}
"""


@pytest.fixture
def playbook() -> Tree:
    tree = build()
    Path("box.yaml").write_text(PLAYBOOK % tree.id)
    return tree


def test_bundle_packs_the_playbooks_build_for_the_host_that_it_asked(gpuops, agent, playbook):
    agent(**{"bundle.platform": {"python": [3, 12], "machine": "x86_64", "glibc": [2, 31]}})
    said = gpuops("builds", "bundle", "box.tar", "-p", "box.yaml")
    assert said.code == 0
    assert playbook.id in said.out and "gpuops up --bundle box.tar" in said.out
    told = gpuops("builds", "bundle", "two.tar", "-p", "box.yaml", "--python", "3.12", "--split", "100k", "--json").objects[0]
    assert told["builds"] == [playbook.id] and told["files"][0] == "two.tar.001"


@pytest.mark.parametrize(
    "words", [("--split", "1x"), ("--split", "1k"), ("--python", "three"), ("--python", "3.12", "--glibc", "new")], ids=" ".join
)
def test_sizes_and_versions_that_are_none_are_usage_errors(words, gpuops, playbook):
    assert gpuops("builds", "bundle", "box.tar", "-p", "box.yaml", *words).code == 2
    assert not Path("box.tar").exists()


def test_a_host_without_glibc_gets_no_bundle(gpuops, agent, playbook):
    agent(**{"bundle.platform": {"python": [3, 12], "machine": "x86_64", "glibc": None}})
    assert gpuops("builds", "bundle", "box.tar", "-p", "box.yaml").code == 5


def test_sizes_are_powers_of_ten():
    assert [builds_host.part_bytes(text) for text in ("100000", "60M", "2GB", "300kB")] == [
        100_000,
        60_000_000,
        2_000_000_000,
        300_000,
    ]


@pytest.mark.failure_mode("bundle-cut")
@pytest.mark.parametrize("harm", ["cut", "missing"])
def test_up_refuses_a_bundle_that_is_cut_or_missing_before_it_connects(harm, gpuops, agent, playbook):
    agent(**{"bundle.platform": {"python": [3, 12], "machine": "x86_64", "glibc": [2, 31]}})
    gpuops("builds", "bundle", "box.tar", "-p", "box.yaml")
    fake = agent()
    if harm == "cut":
        with Path("box.tar").open("r+b") as file:
            file.truncate(2000)
    else:
        Path("box.tar").unlink()
    said = gpuops("up", "box.yaml", "--bundle", "box.tar", "--json")
    assert said.code == 1
    assert json.loads(said.out)["error"]["kind"] == "bundle"
    assert fake.calls == []


def test_up_sends_the_bundle_and_names_it_in_the_order(gpuops, agent, playbook):
    agent(**{"bundle.platform": {"python": [3, 12], "machine": "x86_64", "glibc": [2, 31]}})
    gpuops("builds", "bundle", "box.tar", "-p", "box.yaml")
    fake = agent(
        **{
            "bundle.have": {"present": False, "received": 0},
            "bundle.put": lambda args, on_event: {"received": args["offset"] + args["size"]},
            "bundle.commit": {},
            "tree.have": {"present": True, "incoming": "", "link_dest": None},
            "run": {"outcome": "unchanged", "code": 0, "release": 1, "service": "svc"},
        }
    )
    said = gpuops("up", "box.yaml", "--bundle", "box.tar", "--detach")
    asked = dict(fake.calls)
    assert asked["bundle.commit"]["id"].startswith("bundle-"), said
    sent = sum(args["size"] for verb, args in fake.calls if verb == "bundle.put")
    assert sent == Path("box.tar").stat().st_size
