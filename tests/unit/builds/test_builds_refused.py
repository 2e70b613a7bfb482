"""What cannot become a build is refused by name, and leaves nothing: altered wheels, odd sources, a folder that cannot be written."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from build_samples import committed, project, wheel

from gpuops.builds import source as sources
from gpuops.builds.make import make
from gpuops.errors import GpuopsError


def crc(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"X = 1\n", b"X = 2\n"))


def without(line: str) -> Callable[[Path], None]:
    """A wheel whose metadata lacks a line."""

    def harm(path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            members = {item: archive.read(item) for item in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, b"\n".join(row for row in data.split(b"\n") if not row.startswith(line.encode())))

    return harm


def clash(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other", "a file where a folder is")


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (crc, "the wheel other-1.0-py3-none-any.whl is altered"),
        (clash, "the wheel other-1.0-py3-none-any.whl is altered"),
        (without("Tag:"), "is no wheel"),
        (without("Name:"), "is no wheel"),
    ],
    ids=["content", "clash", "no tag", "no name"],
)
def test_a_wheel_that_was_altered_is_refused(harm: Callable[[Path], None], what: str, tmp_path: Path, builds: Path) -> None:
    made = wheel(tmp_path, "other")
    harm(made)
    with pytest.raises(GpuopsError) as refused:
        make(builds, made)
    assert what in refused.value.what and refused.value.kind == "wheel" and refused.value.next
    assert list(builds.iterdir()) == []


def test_a_tag_that_is_none_fits_no_host(tmp_path: Path, builds: Path) -> None:
    with pytest.raises(GpuopsError, match="for another platform or Python"):
        make(builds, wheel(tmp_path, "other", "py3"))


def to_nowhere(source: Path) -> None:
    (source / "tiny_kernels" / "odd").symlink_to("/no/such/file")


def to_a_folder(source: Path) -> None:
    (source / "tiny_kernels" / "odd").symlink_to("plugin")


def to_outside(source: Path) -> None:
    (source / "tiny_kernels" / "odd").symlink_to("/etc/hostname")


def a_repository(source: Path) -> None:
    (source / "tiny_kernels" / "odd").mkdir()
    (source / "tiny_kernels" / "odd" / "x.py").touch()
    committed(source / "tiny_kernels" / "odd")


@pytest.mark.parametrize(
    ("add", "known", "why"),
    [
        (to_nowhere, True, "which is not there"),
        (to_nowhere, False, "which is not there"),
        (to_a_folder, True, "a folder"),
        (to_a_folder, False, "a folder"),
        (to_outside, True, "which another machine need not have"),
        (to_outside, False, "which another machine need not have"),
        # Outside of git a repository is a folder like any other.
        (a_repository, True, "a repository of its own"),
    ],
)
def test_what_would_be_left_out_or_differ_elsewhere_is_refused_by_name(
    add: Callable[[Path], None], known: bool, why: str, tmp_path: Path, builds: Path
) -> None:
    source = project(tmp_path / "kernels")
    if known:
        committed(source)
    add(source)
    with pytest.raises(GpuopsError) as refused:
        make(builds, source)
    assert "tiny_kernels/odd" in refused.value.what and why in refused.value.evidence and refused.value.next
    assert list(builds.iterdir()) == []


def test_a_link_within_the_repository_becomes_the_file_that_it_leads_to(tmp_path: Path) -> None:
    home = project(tmp_path / "home" / "kernels").parent
    (home / "LICENSE").write_text("free\n")
    (home / "kernels" / "LICENSE").symlink_to("../LICENSE")
    committed(home)
    sources.copy(home / "kernels", tmp_path / "copy")
    copied = tmp_path / "copy" / "LICENSE"
    assert copied.read_text() == "free\n" and not copied.is_symlink()


def test_a_repository_of_another_user_is_not_built_with_what_it_ignores(
    tmp_path: Path, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = committed(project(tmp_path / "kernels"))
    # Git's own switch for its tests.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    with pytest.raises(GpuopsError) as refused:
        make(builds, made)
    assert "dubious ownership" in refused.value.evidence and "safe.directory" in refused.value.next


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GpuopsError) as refused:
        make(tmp_path / "file", wheel(tmp_path, "mine"))
    assert refused.value.kind == "io_error" and "--dir DIR" in refused.value.next


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gpuops.builds.wheel.unpack", full)
    with pytest.raises(GpuopsError) as refused:
        make(builds, wheel(tmp_path, "mine"))
    assert refused.value.kind == "disk_full" and "free space" in refused.value.next
    assert list(builds.iterdir()) == []


def test_of_two_that_make_the_same_at_once_the_second_finds_it(
    tmp_path: Path, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = wheel(tmp_path, "mine")
    really = Path.rename

    def overtaken(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", really)
        make(builds, first)
        return really(self, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    second = make(builds, first)
    assert not second.new and [path.name for path in builds.iterdir()] == [second.tree.id]
