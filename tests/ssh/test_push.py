"""Pushing a tree: the other side is equal afterwards, whichever tool did it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_support import SSH_KINDS

from gpuops.errors import GpuopsError
from gpuops.sandbox import ALIAS, Sandbox, SandboxInfo
from gpuops.transport import Address, Kind, Transport, open_transport

BIG = 300_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "source: with a colon"
    (root / "pkg" / "empty").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("a = 1\n")
    (root / "pkg" / "big.bin").write_bytes(os.urandom(BIG))
    (root / "pkg" / ("long" * 40)).write_text("a name longer than a tar header holds")
    (root / "ünï code.txt").write_text("odd name")
    (root / "empty.txt").touch()
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "private").write_text("secret")
    (root / "private").chmod(0o600)
    (root / "link").symlink_to("pkg/a.py")
    (root / "dangling").symlink_to("/nowhere/at/all")
    (root / "folder-link").symlink_to("pkg")
    os.utime(root / "pkg" / "a.py", (1_600_000_000, 1_600_000_000))
    return root


FILES_IN_TREE = 10


def picture(root: Path) -> dict[str, object]:
    """Everything a push promises to keep: names, kinds, modes, contents, link targets, and the time of files."""
    seen: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            seen[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            seen[name] = ("folder", mode)
        else:
            seen[name] = ("file", mode, int(path.stat().st_mtime), path.read_bytes())
    return seen


def test_a_push_makes_an_equal_tree(transport: Transport, tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "target"
    stats = transport.push(tree, str(target))
    assert picture(target) == picture(tree)
    assert (stats.tool, stats.files) == ("rsync", FILES_IN_TREE)
    assert stats.bytes_sent >= BIG


def test_a_second_push_of_the_same_tree_sends_no_file_data(transport: Transport, tree: Path, tmp_path: Path) -> None:
    transport.push(tree, str(tmp_path / "target"))
    assert transport.push(tree, str(tmp_path / "target")).bytes_sent == 0


def test_a_push_removes_what_the_source_does_not_have(transport: Transport, tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "old").mkdir(parents=True)
    (target / "old" / "file").touch()
    transport.push(tree, str(target))
    assert picture(target) == picture(tree)


def test_files_equal_to_those_of_link_dest_share_their_inode(transport: Transport, tree: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    transport.push(tree, str(first))
    (tree / "run.sh").write_text("#!/bin/sh\nchanged\n")
    stats = transport.push(tree, str(second), link_dest=str(first))
    assert (second / "pkg" / "big.bin").stat().st_ino == (first / "pkg" / "big.bin").stat().st_ino
    assert (second / "run.sh").stat().st_ino != (first / "run.sh").stat().st_ino
    assert 0 < stats.bytes_sent < 1000
    assert picture(second) == picture(tree)


@pytest.mark.parametrize("kind", SSH_KINDS)
def test_a_push_goes_through_a_proxy_command_with_quotes_in_it(
    sandbox: SandboxInfo, kind: Kind, tree: Path, tmp_path: Path
) -> None:
    command = f"""sh -c 'exec ssh -F "{sandbox.ssh_config}" -W %h:%p {ALIAS}'"""
    address = Address(ALIAS, ssh_config=sandbox.ssh_config, options={"ProxyCommand": command})
    with open_transport(address, kind) as transport:
        assert transport.push(tree, str(tmp_path / "target")).tool == "rsync"
    assert picture(tmp_path / "target") == picture(tree)


@pytest.mark.parametrize("destination", ["relative", "/", "/tmp", "/tmp/../etc/x"])
def test_a_destination_that_cannot_be_meant_is_refused(transport: Transport, tree: Path, destination: str) -> None:
    with pytest.raises(ValueError):
        transport.push(tree, destination)


def test_a_destination_that_a_login_shell_would_read_is_refused_where_there_is_one(
    transport: Transport, tree: Path, tmp_path: Path
) -> None:
    destination = tmp_path / "a b" / "target"
    if transport.name == "local":
        transport.push(tree, str(destination))
        assert picture(destination) == picture(tree)
        return
    with pytest.raises(GpuopsError, match="login shell"):
        transport.push(tree, str(destination))
    assert not destination.parent.exists()


def test_a_folder_that_cannot_be_made_is_an_error_with_evidence(transport: Transport, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GpuopsError) as caught:
        transport.push(tree, str(tmp_path / "file" / "target"))
    assert "Not a directory" in caught.value.evidence


@pytest.fixture(scope="session")
def tools_without_rsync(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bin")
    for name in ("sh", "mkdir", "rm", "tar", "ssh", "ssh-keygen", "true"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return str(folder)


def test_without_rsync_here_a_tar_stream_makes_the_tree_equal(
    transport: Transport, tree: Path, tmp_path: Path, tools_without_rsync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    (target / "old").mkdir(parents=True)
    monkeypatch.setenv("PATH", tools_without_rsync)
    stats = transport.push(tree, str(target))
    assert picture(target) == picture(tree)
    assert (stats.tool, stats.files) == ("tar", FILES_IN_TREE)
    assert stats.bytes_sent >= BIG


@pytest.fixture(scope="module")
def host_without_rsync(tmp_path_factory: pytest.TempPathFactory, tools_without_rsync: str) -> Iterator[Address]:
    sshd = Sandbox(tmp_path_factory.mktemp("sshd"), path=tools_without_rsync)
    yield Address(ALIAS, ssh_config=sshd.start().ssh_config)
    sshd.stop()


@pytest.mark.parametrize("kind", SSH_KINDS)
def test_without_rsync_on_the_host_a_tar_stream_makes_the_tree_equal(
    host_without_rsync: Address, kind: Kind, tree: Path, tmp_path: Path
) -> None:
    with open_transport(host_without_rsync, kind) as transport:
        stats = transport.push(tree, str(tmp_path / "target"))
    assert picture(tmp_path / "target") == picture(tree)
    assert stats.tool == "tar"
