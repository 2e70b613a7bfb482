"""The throwaway sshd: starts once, keeps its port, and never touches a process that is not its own."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_support import until

from gpuops.errors import Exit, GpuopsError
from gpuops.sandbox import ALIAS, Sandbox, SandboxInfo, prerequisites


@pytest.fixture
def folder(installed: None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpuops-sshd-") as name:
        path = Path(name) / "folder"
        yield path
        Sandbox(path).stop()


def ask(info: SandboxInfo, *command: str) -> str:
    argv = ["ssh", "-F", str(info.ssh_config), "-o", "BatchMode=yes", ALIAS, *command]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_sandbox_answers_and_sees_our_python(folder: Path) -> None:
    info = Sandbox(folder).start()
    assert ask(info, "command -v python3") == str(info.python.parent / "python3")
    record = json.loads((folder / "sandbox.json").read_text())
    assert record["python"] == str(info.python)
    assert Path(record["python"]).is_file()
    assert record["root"] == str(folder / "root")


@pytest.mark.parametrize("name", ["a folder", "a#b", "a$b", "a%b", 'a"b'])
def test_a_folder_that_no_root_of_a_host_may_be_in_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(GpuopsError, match="a sandbox cannot be in") as refused:
        Sandbox(tmp_path / name / "box").start()
    assert (refused.value.code, refused.value.next) == (Exit.HOST_UNFIT, "gpuops sandbox start --dir /a/plain/path")
    assert list(tmp_path.iterdir()) == []


def test_the_private_files_are_private(folder: Path) -> None:
    Sandbox(folder).start()
    assert (folder.stat().st_mode & 0o777, (folder / "client_key").stat().st_mode & 0o777) == (0o700, 0o600)


def test_starting_twice_changes_nothing(folder: Path) -> None:
    first = Sandbox(folder).start()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name not in ("sshd.log", "lock")}
    assert Sandbox(folder).start() == first
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name not in ("sshd.log", "lock")} == before


def test_stop_ends_it_and_is_harmless_when_repeated(folder: Path) -> None:
    info = Sandbox(folder).start()
    assert Sandbox(folder).stop()
    assert not listens(info.port)
    assert Sandbox(folder).status() is None
    assert not Sandbox(folder).stop()


def test_the_port_and_the_keys_are_remembered(folder: Path) -> None:
    first = Sandbox(folder).start()
    key = (folder / "host_key.pub").read_text()
    Sandbox(folder).stop()
    second = Sandbox(folder).start()
    assert (second.port, (folder / "host_key.pub").read_text()) == (first.port, key)
    assert second.pid != first.pid


def test_a_remembered_port_that_somebody_else_took_is_given_up_and_the_files_follow(folder: Path) -> None:
    first = Sandbox(folder).start()
    Sandbox(folder).stop()
    with socket.create_server(("127.0.0.1", first.port)):
        second = Sandbox(folder).start()
        assert second.port != first.port
        assert ask(second, "echo", "here") == "here"
    assert f"[127.0.0.1]:{second.port} " in (folder / "known_hosts").read_text()


def test_a_stale_record_of_a_foreign_process_is_neither_believed_nor_signalled(folder: Path) -> None:
    Sandbox(folder).start()
    Sandbox(folder).stop()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        record = json.loads((folder / "sandbox.json").read_text())
        (folder / "sandbox.json").write_text(json.dumps({**record, "pid": stranger.pid}))
        (folder / "sshd.pid").write_text(f"{stranger.pid}\n")
        assert Sandbox(folder).status() is None
        assert not Sandbox(folder).stop()
        assert stranger.poll() is None
        info = Sandbox(folder).start()
        assert info.pid != stranger.pid
        stranger.communicate(b"\n")
        assert stranger.returncode == 0


def test_the_sshd_of_another_sandbox_is_not_taken_for_ours(folder: Path) -> None:
    other = folder.parent / "other"
    theirs = Sandbox(other).start()
    try:
        Sandbox(folder).start()
        Sandbox(folder).stop()
        (folder / "sandbox.json").write_text((other / "sandbox.json").read_text())
        assert Sandbox(folder).status() is None
        assert not Sandbox(folder).stop()
        assert Sandbox(other).status() == theirs
    finally:
        Sandbox(other).stop()


def test_two_sandboxes_live_side_by_side(folder: Path) -> None:
    other = folder.parent / "other"
    try:
        one, two = Sandbox(folder).start(), Sandbox(other).start()
        assert one.port != two.port
        assert Sandbox(folder).stop()
        assert ask(two, "echo", "alive") == "alive"
    finally:
        Sandbox(other).stop()


def test_a_garbled_record_is_no_reason_to_fail(folder: Path) -> None:
    Sandbox(folder).start()
    Sandbox(folder).stop()
    (folder / "sandbox.json").write_text("{")
    assert ask(Sandbox(folder).start(), "echo", "here") == "here"


@pytest.mark.parametrize("change", [{"pid": "x"}, {"pid": None}, {"port": "22"}, {"port": 99999999}, {"port": True, "pid": -1}])
def test_a_record_with_a_damaged_value_is_no_reason_to_fail(folder: Path, change: dict[str, object]) -> None:
    Sandbox(folder).start()
    Sandbox(folder).stop()
    record = json.loads((folder / "sandbox.json").read_text())
    (folder / "sandbox.json").write_text(json.dumps({**record, **change}))
    assert Sandbox(folder).status() is None
    assert ask(Sandbox(folder).start(), "echo", "here") == "here"


@pytest.mark.parametrize("half", ["host_key", "client_key.pub"])
def test_half_a_pair_of_keys_is_made_again(folder: Path, half: str) -> None:
    Sandbox(folder).start()
    Sandbox(folder).stop()
    (folder / half).write_text("")
    assert ask(Sandbox(folder).start(), "echo", "here") == "here"


def refused(folder: Path) -> GpuopsError:
    with pytest.raises(GpuopsError, match="does not start") as error:
        Sandbox(folder).start()
    assert (error.value.code, str(folder) in error.value.what) == (Exit.HOST_UNFIT, True)
    return error.value


def test_a_folder_that_is_none_is_said(tmp_path: Path, installed: None) -> None:
    (tmp_path / "file").touch()
    assert "File exists" in refused(tmp_path / "file").evidence
    assert "Not a directory" in refused(tmp_path / "file" / "box").evidence
    assert refused(Path("/proc/x")).next == "gpuops sandbox start --dir another/folder"


def test_what_ssh_keygen_says_is_the_evidence(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "ssh-keygen"
    program.write_text("#!/bin/sh\necho 'Saving key failed: No space left on device' >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    told = refused(folder)
    assert (told.evidence, told.kind) == ("Saving key failed: No space left on device", "disk_full")
    assert told.next == f"df -h {folder.parent}"


def test_an_sshd_of_ours_that_nobody_recorded_is_replaced(folder: Path) -> None:
    first = Sandbox(folder).start()
    (folder / "sandbox.json").unlink()  # as after a crash between starting it and writing that down
    second = Sandbox(folder).start()
    assert second.pid != first.pid
    assert not listens(first.port) or second.port == first.port


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs")
def test_an_installation_that_runs_already_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lock, looked = tmp_path / "lock", threading.Event()
    monkeypatch.setattr(prerequisites, "_LOCK", lock)
    monkeypatch.setattr(prerequisites, "missing_packages", lambda: looked.set() or [])
    second = threading.Thread(target=prerequisites.ensure)
    with lock.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second.start()
        inode = f":{lock.stat().st_ino} "
        waiting = lambda: any("->" in row and inode in row for row in Path("/proc/locks").read_text().splitlines())  # noqa: E731
        until(waiting, "the second installation waits for the first")
        assert not looked.is_set()
    second.join()
    assert looked.is_set()


def test_without_root_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(prerequisites, "SSHD", Path("/nowhere/sshd"))
    with pytest.raises(GpuopsError) as caught:
        prerequisites.ensure()
    assert caught.value.code == Exit.HOST_UNFIT
    assert caught.value.next == "sudo apt-get install --no-install-recommends -y openssh-server"
