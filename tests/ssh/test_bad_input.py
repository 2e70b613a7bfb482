"""Bad input, met the way a user meets it: one clear error in three parts, its exit code, and nothing left half done."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuops.sandbox import ALIAS, Sandbox, SandboxInfo

GPUOPS = str(Path(sys.executable).with_name("gpuops"))

PLAYBOOK = """\
service: demo
host: {{address: {alias}, ssh_config: {config}, root: {root}, python: {python}}}
runtime: {{path: {runtime}}}
model: {{path: {model}}}
engine: {{name: sglang, version: 0.5.23}}
server: {{port: auto}}
"""


@dataclass(frozen=True)
class Desk:
    """A folder with a playbook that is right, so that each test makes one thing wrong."""

    folder: Path
    info: SandboxInfo
    root: Path

    @property
    def playbook(self) -> Path:
        return self.folder / "box.yaml"

    def write(self, **values: object) -> None:
        known = {
            "alias": ALIAS,
            "config": self.info.ssh_config,
            "root": self.root,
            "python": self.info.python,
            "runtime": self.folder / "venv",
            "model": self.folder / "model",
        }
        self.playbook.write_text(PLAYBOOK.format(**{**known, **values}))

    def up(self, *words: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "NO_COLOR": "1"}
        argv = [GPUOPS, "up", str(self.playbook), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=env, stdin=subprocess.DEVNULL)

    def staged(self) -> list[str]:
        """Releases on the host."""
        folder = self.root / "services" / "demo" / "releases"
        return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.fixture
def desk(sandbox: SandboxInfo, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, sandbox, tmp_path / "root")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    weights(tmp_path / "model", missing=0)
    desk.write()
    yield desk
    assert desk.staged() == [], "nothing is left half done"


def weights(folder: Path, *, missing: int) -> None:
    """A model of one tensor; ``missing`` bytes are cut from its end."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"\0" * 16
    (folder / "model.safetensors").write_bytes(data[: len(data) - missing])


def expect(ran: "subprocess.CompletedProcess[str]", code: int, *texts: str) -> None:
    assert ran.returncode == code, ran
    assert ran.stdout == ""
    lines = ran.stderr.splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1, ran.stderr
    assert any(line.startswith("  next: ") for line in lines), ran.stderr
    for text in texts:
        assert text in ran.stderr, (text, ran.stderr)


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("server: {prot: 1}", ["box.yaml:7", "server.prot", "did you mean 'port'?"]),
        ("server: {port: many}", ["box.yaml:7", "server.port", "auto"]),
        ("deadlines: {start_s: soon}", ["box.yaml:7", "deadlines.start_s"]),
        ("build: {tree: nowhere}", ["box.yaml:7", "build.tree", "nowhere"]),
        ("probes: [{name: a, ask: b, expect: {regex: '('}}]", ["box.yaml:7", "regex"]),
        ("server: {flags: {port: 1}}", ["port", "server.port"]),
        ("server: {env: {KEY: '${NOT_LISTED}'}}", ["box.yaml:7", "NOT_LISTED", "env"]),
    ],
    ids=["unknown key", "wrong type", "wrong unit", "missing folder", "bad regex", "owned flag", "unlisted variable"],
)
def test_an_invalid_playbook_names_file_line_and_key(desk: Desk, line: str, texts: list[str]) -> None:
    text = desk.playbook.read_text()
    if line.startswith("server:"):
        text = text.replace("server: {port: auto}\n", "")
        desk.playbook.write_text(text + "\n" + line + "\n")
    else:
        desk.playbook.write_text(text + line + "\n")
    expect(desk.up(), 3, *texts)
    assert not desk.root.exists(), "the host was not asked"


def test_a_playbook_that_does_not_exist(desk: Desk) -> None:
    desk.playbook.unlink()
    expect(desk.up(), 3, "box.yaml")


def test_an_unreachable_host(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    desk.write(alias=f"root@127.0.0.1:{port}")
    expect(desk.up(), 4, "refused")


def test_a_host_that_has_no_name(desk: Desk) -> None:
    desk.write(alias="no-such-host.invalid")
    expect(desk.up(), 4, "no-such-host.invalid")


def test_a_refused_key(desk: Desk) -> None:
    key = desk.folder / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    config = desk.folder / "ssh_config"
    config.write_text(desk.info.ssh_config.read_text().replace(str(desk.info.folder / "client_key"), str(key)))
    desk.write(config=config)
    expect(desk.up(), 4, "key")


def test_a_changed_host_key(desk: Desk) -> None:
    key = desk.folder / "other_host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    known = desk.folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{desk.info.port} {key.with_suffix('.pub').read_text()}")
    config = desk.folder / "ssh_config"
    config.write_text(desk.info.ssh_config.read_text().replace(str(desk.info.folder / "known_hosts"), str(known)))
    desk.write(config=config)
    expect(desk.up(), 4, "host key", "SHA256:")


def test_no_python_on_the_host(desk: Desk) -> None:
    desk.write(python="/usr/bin/no-such-python")
    expect(desk.up(), 5, "/usr/bin/no-such-python")


def test_a_python_that_is_too_old(desk: Desk) -> None:
    """A Python that does not know -I, as 2.7; what real old Pythons make of the program is tested with the bootstrap."""
    old = desk.folder / "python2.7"
    old.write_text(
        '#!/bin/sh\ncat > /dev/null\n[ "$1" = - ] && echo too-old 2.7.18 && exit 0\necho "Unknown option: -I" >&2\nexit 2\n'
    )
    old.chmod(0o755)
    desk.write(python=old)
    expect(desk.up(), 5, "too old", "3.9")


def test_an_incomplete_model(desk: Desk) -> None:
    weights(desk.folder / "model", missing=3)
    expect(desk.up(), 5, "model.safetensors has the wrong size", "by its header")


def test_a_model_that_is_not_there(desk: Desk) -> None:
    desk.write(model="/no/such/model")
    expect(desk.up(), 5, "/no/such/model", "config.json")


def test_a_runtime_that_is_not_there(desk: Desk) -> None:
    desk.write(runtime="/no/such/venv")
    expect(desk.up(), 5, "/no/such/venv")


@pytest.mark.failure_mode("disk-full-before")
def test_a_full_disk(desk: Desk) -> None:
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = desk.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    try:
        desk.write(root=disk / "root")
        expect(desk.up(), 5, "disk")
        releases = disk / "root" / "services" / "demo" / "releases"
        assert not releases.exists() or os.listdir(releases) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.failure_mode("root-not-writable")
def test_a_root_that_cannot_be_written(desk: Desk) -> None:
    desk.write(root="/proc/gpuops")
    expect(desk.up(), 5, "/proc/gpuops")


def test_a_sandbox_that_does_not_run(desk: Desk, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "sandbox")
    sandbox.start()
    sandbox.stop()
    desk.playbook.write_text(desk.playbook.read_text().replace("host: {", f"host: {{sandbox: {tmp_path}/sandbox}} # {{"))
    expect(desk.up(), 4, "refused", "gpuops sandbox start")


def test_a_home_with_a_space_is_no_obstacle_for_this_machine_as_a_host(tmp_path: Path) -> None:
    home = tmp_path / "ho me"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "state")}
    argv = [GPUOPS, "status", "--host", "local", "--json"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120, env=env, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["host"]["root"] == str(home / ".gpuops")
