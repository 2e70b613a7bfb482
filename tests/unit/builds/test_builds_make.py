"""Making builds: the same sources are the same build, and what cannot be one is refused with the reason."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

import pytest
from build_samples import PATCH, committed, git, patches, project, wheel

from gpuops.builds.make import make
from gpuops.builds.manifest import read_build, read_manifest
from gpuops.errors import GpuopsError


def test_a_build_is_the_unpacked_wheel_its_manifest_and_a_name_by_content(tmp_path: Path, builds: Path) -> None:
    made = make(builds, project(tmp_path / "kernels"))
    assert made.new and made.path == builds / made.tree.id and made.tree.id.startswith("tiny-kernels-")
    assert sorted(path.name for path in made.path.iterdir()) == ["manifest.json", "site"]
    told = read_manifest(made.path)
    assert [path for path, _, _ in told["files"]][:2] == [
        "site/tiny_kernels-1.0.dist-info/METADATA",
        "site/tiny_kernels-1.0.dist-info/WHEEL",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o222 for path in made.path.glob("site/**/*") if path.is_file()} == {0}
    assert os.access(made.path / "site" / "tiny_kernels" / "tool.sh", os.X_OK)
    assert read_build(made.path).id == made.tree.id


def test_two_clean_clones_give_the_same_build_whatever_umask_time_and_backend_version(
    tmp_path: Path, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = committed(project(tmp_path / "origin"))
    git(tmp_path, "clone", "-q", str(origin), "one")
    before = os.umask(0o077)
    try:
        git(tmp_path, "clone", "-q", str(origin), "two")
        for path in (tmp_path / "two").rglob("*.py"):
            os.utime(path, (1, 1))
        # What lies about and is ignored is no source.
        (tmp_path / "two" / "scratch").mkdir()
        (tmp_path / "two" / "tiny_kernels" / "__pycache__").mkdir()
        (tmp_path / "two" / "tiny_kernels" / "__pycache__" / "x.pyc").write_bytes(b"x")
        monkeypatch.setenv("GENERATOR", "another 2.0")
        second = make(builds, tmp_path / "two")
    finally:
        os.umask(before)
    monkeypatch.setenv("GENERATOR", "one")
    first = make(tmp_path / "elsewhere", tmp_path / "one")
    assert first.tree.id == second.tree.id
    assert first.tree.entries == second.tree.entries


def test_the_commit_and_the_uncommitted_changes_are_told_and_are_no_part_of_the_id(tmp_path: Path, builds: Path) -> None:
    source = committed(project(tmp_path / "kernels"))
    head = git(source, "rev-parse", "HEAD").strip()
    clean = make(builds, source)
    assert clean.tree.about["source"] == {"commit": head, "dirty": None}
    # Not in the wheel.
    (source / "notes.txt").write_text("x")
    again = make(tmp_path / "elsewhere", source)
    assert again.tree.id == clean.tree.id
    assert again.tree.about["source"]["commit"] == head and len(again.tree.about["source"]["dirty"]) == 12
    (source / "tiny_kernels" / "__init__.py").write_text("VERSION = 2\n")
    assert make(builds, source).tree.id != clean.tree.id


def test_a_folder_that_a_repository_ignores_is_built_whole_and_is_of_no_commit(tmp_path: Path, builds: Path) -> None:
    outer = committed(project(tmp_path / "outer"))
    (outer / ".git" / "info" / "exclude").write_text("/mine/\n")
    made = make(builds, project(outer / "mine"))
    assert made.tree.about["source"] == {"commit": None, "dirty": None}


def test_what_the_plugin_is_for_is_read_from_its_own_table(tmp_path: Path, builds: Path) -> None:
    about = make(builds, project(tmp_path / "kernels")).tree.about
    assert about["plugin"] == "tiny_kernels.plugin"
    family = {"on": True, "targets": ["sglang.srt.layers.activation:SiluAndMul.forward"]}
    assert about["engines"] == {"sglang": [{"first": "0.5.18", "last": "0.5.23", "families": {"act": family}}]}
    assert about["wheel"]["tags"] == ["py3-none-any"] and about["wheel"]["requires_python"] == ">=3.9"


def test_without_a_table_of_targets_the_project_says_which_engines_it_is_for(tmp_path: Path, builds: Path) -> None:
    source = project(tmp_path / "kernels")
    (source / "tiny_kernels" / "plugin" / "targets.py").unlink()
    with (source / "pyproject.toml").open("a") as file:
        file.write('[tool.gpuops.engines]\nsglang = [["0.5.20", "0.5.23"]]\n')
    assert make(builds, source).tree.about["engines"] == {"sglang": [{"first": "0.5.20", "last": "0.5.23"}]}


TELLS_ITS_CONTENT = """
import hashlib, pathlib
print(hashlib.sha256((pathlib.Path(__file__).parents[1] / "__init__.py").read_bytes()).hexdigest())
"""


def proving(folder: Path) -> Path:
    """A project whose plugin tells its content, and that names it and a compiler."""
    source = project(folder, ahead="")
    (source / "tiny_kernels" / "plugin" / "__main__.py").write_text(TELLS_ITS_CONTENT)
    with (source / "pyproject.toml").open("a") as file:
        file.write('[tool.gpuops.build]\nplugin = "tiny_kernels.plugin"\ncompile = "tiny_kernels.ahead"\n')
    return source


def test_what_every_rank_has_to_say_is_what_the_unpacked_plugin_says(tmp_path: Path, builds: Path) -> None:
    made = make(builds, proving(tmp_path / "kernels"))
    content = hashlib.sha256((made.path / "site" / "tiny_kernels" / "__init__.py").read_bytes()).hexdigest()
    assert made.tree.about["proof"] == {"plugin": "tiny_kernels.plugin", "content": content}
    assert made.tree.about["compile"] == "tiny_kernels.ahead"


def test_a_plugin_that_does_not_tell_its_content_is_refused(tmp_path: Path, builds: Path) -> None:
    source = proving(tmp_path / "kernels")
    (source / "tiny_kernels" / "plugin" / "__main__.py").write_text("raise SystemExit('no such option: --content')")
    with pytest.raises(GpuopsError, match=r"tiny_kernels\.plugin does not tell its content") as refused:
        make(builds, source)
    assert "no such option" in refused.value.evidence


def test_a_build_table_that_names_what_is_not_there_is_refused(tmp_path: Path, builds: Path) -> None:
    source = proving(tmp_path / "kernels")
    (source / "tiny_kernels" / "ahead.py").unlink()
    with pytest.raises(GpuopsError, match="is not understood") as refused:
        make(builds, source)
    assert "no module tiny_kernels.ahead" in refused.value.evidence


def changed(folder: Path) -> Path:
    """A build that is the project beside it with one module changed."""
    source = folder / "mine"
    (source / "tiny_kernels").mkdir(parents=True)
    table = '[tool.gpuops.build]\nbase = "../kernels"\nplugin = "tiny_kernels.plugin"\n'
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (source / "pyproject.toml").write_text(backend + table)
    (source / "tiny_kernels" / "__init__.py").write_text("VERSION = 2\n")
    return source


def test_a_build_with_a_base_has_its_files_and_those_of_the_folder_on_top(tmp_path: Path, builds: Path) -> None:
    base = make(builds, proving(tmp_path / "kernels"))
    made = make(builds, changed(tmp_path))
    assert {path for path, _, _ in {*base.tree.entries} ^ {*made.tree.entries}} == {"site/tiny_kernels/__init__.py"}
    assert made.tree.about["proof"]["content"] != base.tree.about["proof"]["content"]


def test_where_the_base_comes_from_is_recorded(tmp_path: Path, builds: Path) -> None:
    proving(tmp_path / "kernels")
    made = make(builds, changed(committed(tmp_path)))
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert made.tree.about["source"]["base"] == {"commit": commit, "dirty": None}


def test_a_base_that_is_not_there_is_refused(tmp_path: Path, builds: Path) -> None:
    with pytest.raises(GpuopsError, match=r"kernels cannot be built"):
        make(builds, changed(tmp_path))


def test_the_gates_record_gives_cards_versions_and_resources(tmp_path: Path, builds: Path) -> None:
    source = project(tmp_path / "kernels")
    resources = source / "tiny_kernels" / "gate" / "resources"
    resources.mkdir(parents=True)
    (resources / "cc120.json").write_text('{"versions": {"triton": "3.8.0"}, "resources": {"mla/decode/k": {"registers": 168}}}')
    about = make(builds, source).tree.about
    assert (about["capabilities"], about["versions"]) == (["12.0"], {"triton": "3.8.0"})
    assert about["resources"] == {"12.0": {"mla/decode/k": {"registers": 168}}}


def test_the_same_content_is_not_made_twice(tmp_path: Path, builds: Path) -> None:
    source = project(tmp_path / "kernels")
    first, second = make(builds, source), make(builds, source)
    assert (first.path, first.new, second.new) == (second.path, True, False)
    assert [path.name for path in builds.iterdir()] == [first.tree.id]


def test_a_wheel_that_is_there_already_is_taken_as_it_is(tmp_path: Path, builds: Path) -> None:
    made = make(builds, wheel(tmp_path, "ready"), name="mine")
    assert made.tree.id.startswith("mine-")
    assert made.tree.about["source"] == {"wheel": "ready-1.0-py3-none-any.whl"}


@pytest.mark.parametrize(
    "tag", ["cp311-cp311-macosx_11_0_arm64", "cp312-cp312-win_amd64", "py2-none-any", "cp27-cp27mu-linux_x86_64"]
)
def test_a_wheel_for_another_platform_or_python_is_refused(tag: str, tmp_path: Path, builds: Path) -> None:
    with pytest.raises(GpuopsError) as refused:
        make(builds, wheel(tmp_path, "other", tag))
    assert refused.value.what == f"the wheel other-1.0-{tag}.whl is for another platform or Python"
    assert tag in refused.value.evidence and "build it for Linux" in refused.value.next
    assert list(builds.iterdir()) == []


def test_a_wheel_with_scripts_is_refused(tmp_path: Path, builds: Path) -> None:
    made = wheel(tmp_path, "other", **{"other-1.0.data__scripts__run": "#!python"})
    with pytest.raises(GpuopsError) as refused:
        make(builds, made)
    assert "scripts, headers and data files have no place" in refused.value.evidence


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path, builds: Path) -> None:
    (tmp_path / "x.whl").write_text("no zip")
    with pytest.raises(GpuopsError, match=r"x\.whl is no wheel"):
        make(builds, tmp_path / "x.whl")


def test_a_folder_without_a_project_is_refused(tmp_path: Path, builds: Path) -> None:
    with pytest.raises(GpuopsError) as refused:
        make(builds, tmp_path)
    assert refused.value.evidence == "it has no pyproject.toml" and "--from FILE.whl" in refused.value.next


def test_a_backend_that_fails_is_told_with_its_own_words(tmp_path: Path, builds: Path) -> None:
    source = project(tmp_path / "kernels")
    (source / "backend.py").write_text("def build_wheel(*a, **k):\n    raise RuntimeError('no compiler today')\n")
    with pytest.raises(GpuopsError) as failed:
        make(builds, source)
    assert failed.value.kind == "wheel_build"
    assert list(builds.iterdir()) == []


def test_without_a_network_the_backend_that_is_installed_here_builds(
    tmp_path: Path, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = project(tmp_path / "kernels")
    text = (source / "pyproject.toml").read_text()
    # pytest is installed beside us, and stands in for a backend that an index would have to give.
    (source / "pyproject.toml").write_text(text.replace("requires = []", 'requires = ["pytest"]'))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    told: list[str] = []
    assert make(builds, source, note=told.append).new
    assert told[-1] == "the build backend cannot be downloaded: using the one that is installed here"


def test_patches_are_content_and_a_build_may_hold_nothing_else(tmp_path: Path, builds: Path) -> None:
    made = make(builds, None, name="fix", patch_folder=patches(tmp_path / "p"))
    assert [path for path, _, _ in made.tree.entries] == ["patches/engine-1.0/b.patch"]
    assert made.tree.patched == ("engine-1.0",) and made.tree.about["patches"] == ["engine-1.0"]
    other = make(builds, None, name="fix", patch_folder=patches(tmp_path / "q", text=PATCH.replace("B = 3", "B = 4")))
    assert other.tree.id != made.tree.id


@pytest.mark.parametrize(
    ("engine", "name", "text", "complaint"),
    [
        ("engine", "b.patch", PATCH, "is no folder of patches"),
        ("engine-1.0", "b.txt", PATCH, "holds b.txt"),
        ("engine-1.0", "b.patch", "words\n", "changes nothing"),
    ],
)
def test_a_patch_that_is_none_is_refused(engine: str, name: str, text: str, complaint: str, tmp_path: Path, builds: Path) -> None:
    with pytest.raises(GpuopsError) as refused:
        make(builds, None, name="fix", patch_folder=patches(tmp_path / "p", engine, text, name))
    assert complaint in refused.value.what and refused.value.kind == "patch"
    assert "git diff" in refused.value.next


def test_a_patch_for_what_the_wheel_brings_itself_is_refused(tmp_path: Path, builds: Path) -> None:
    with pytest.raises(GpuopsError) as refused:
        make(builds, wheel(tmp_path, "engine"), patch_folder=patches(tmp_path / "p"))
    assert "which the wheel brings itself" in refused.value.what


def test_there_must_be_something_to_make(builds: Path) -> None:
    with pytest.raises(GpuopsError, match="nothing to make a build of"):
        make(builds, None)


def test_a_name_that_no_folder_could_have_is_refused(tmp_path: Path, builds: Path) -> None:
    with pytest.raises(GpuopsError, match="no name for a build"):
        make(builds, None, name="A/B", patch_folder=patches(tmp_path / "p"))


def test_the_shipped_patch_is_one_that_git_reads() -> None:
    folder = Path(__file__).parents[3] / "playbooks" / "embedded" / "patches"
    for path in folder.glob("*/*.patch"):
        assert subprocess.run(["git", "apply", "--numstat", str(path)], capture_output=True, text=True).stdout.count("\n") == 1
