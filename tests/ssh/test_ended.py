"""A command line that is ended from outside puts away what it has begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ssh_support import until

from gpuops.cli import signals
from gpuops.sandbox import ALIAS, SandboxInfo

GPUOPS = str(Path(sys.executable).with_name("gpuops"))


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_asked_to_end_leaves_neither_an_ssh_nor_a_folder(
    sandbox: SandboxInfo, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "box.yaml").write_text(
        f"service: demo\nhost: {{address: {ALIAS}, ssh_config: {sandbox.ssh_config}, root: {tmp_path / 'root'}, python: {sandbox.python}}}\n"
        f"runtime: {{path: {tmp_path}}}\nmodel: {{path: {tmp_path}}}\nengine: {{name: sglang, version: 0.5.23}}\n"
    )
    waits = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(300)"
    argv = ["exec", "-p", str(tmp_path / "box.yaml"), "--transport", "openssh", "--", sys.executable, "-c", waits]
    with subprocess.Popen([GPUOPS, *argv], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        there = int(command.stdout.readline())
        (ssh,) = [child for child in children(command.pid) if "ssh" in words(child)[0]]
        folder = Path(next(word for word in words(ssh) if word.startswith("/tmp/gpuops-"))).parent
        assert folder.is_dir()
        command.send_signal(number)
        assert command.wait(30) == 128 + number
    assert not folder.exists()
    until(lambda: not Path(f"/proc/{ssh}").exists(), "ssh has ended")
    until(lambda: not Path(f"/proc/{there}").exists(), "the command on the host has ended")


def test_what_was_ignored_stays_ignored() -> None:
    source = "import signal; from gpuops.cli import signals; signals.unwind(); signals.as_ctrl_c(); print(signal.getsignal(signal.SIGHUP))"
    told = subprocess.run(["nohup", sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert told.strip() in ("1", "Handlers.SIG_IGN")


def test_the_second_signal_is_not_taken() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signals.unwind()
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
