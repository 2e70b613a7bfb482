"""Packing the agent, and putting it on a host by every Python that a host may have."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.agent import pack
from gpuops.agent.bootstrap import program


def python(version: str) -> str:
    """An installed interpreter of this version, or a skip."""
    name = "python" if version.startswith("2") else f"python{version}"
    for found in (shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))):
        if found and subprocess.run([str(found), "-c", ""], capture_output=True).returncode == 0:
            return str(found)
    pytest.skip(f"no Python {version} here")


def bootstrap(interpreter: str, root: str) -> str:
    done = subprocess.run([interpreter, "-"], input=program(root), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_the_same_sources_are_the_same_archive() -> None:
    name, archive = pack.name(), pack.archive()
    pack.name.cache_clear()
    assert (pack.name(), pack.archive()) == (name, archive)
    assert re.fullmatch(r"[0-9a-f]{16}\.pyz", name)


@pytest.mark.parametrize("version", ["2.7", "3.6"])
@pytest.mark.failure_mode("no-python")
def test_a_python_that_is_too_old_says_so_and_touches_nothing(version: str, tmp_path: Path) -> None:
    answer = bootstrap(python(version), str(tmp_path / "röot"))
    assert answer.startswith(f"too-old {version}.")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_the_agent_is_put_on_the_host_and_answers_there(version: str, tmp_path: Path) -> None:
    interpreter = python(version)
    root = tmp_path / "röot with 'quotes'"
    path = root / "agent" / pack.name()
    assert bootstrap(interpreter, str(root)) == f"installed {path}"
    assert path.read_bytes() == pack.archive()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    request = json.dumps({"protocol": 1, "args": {}}).encode() + b"\n"
    done = subprocess.run([interpreter, "-IS", str(path), "hello"], input=request, capture_output=True)
    hello = json.loads(done.stdout)["result"]
    assert (hello["protocol"], hello["agent"], hello["root"]) == (1, pack.name().removesuffix(".pyz"), str(root))
    assert hello["python"].startswith(version)


@pytest.mark.failure_mode("root-not-writable")
def test_a_root_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert bootstrap(sys.executable, str(tmp_path / "file" / "root")).startswith("failed [Errno 20]")


def test_a_request_of_another_protocol_or_verb_is_refused_in_words(tmp_path: Path) -> None:
    path = Path(bootstrap(sys.executable, str(tmp_path)).partition(" ")[2])
    assert path.name == pack.name()
    for verb, request, kind in (
        ("hello", b'{"protocol": 99, "args": {}}\n', "protocol"),
        ("hello", b"not json\n", "usage"),
        ("dance", b'{"protocol": 1, "args": {}}\n', "usage"),
    ):
        done = subprocess.run([sys.executable, "-IS", str(path), verb], input=request, capture_output=True)
        error = json.loads(done.stdout)["error"]
        assert (error["kind"], done.returncode) == (kind, error["code"])
