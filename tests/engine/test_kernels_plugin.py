"""The kernel pack on a machine without a card, in the real SGLang: it loads, says that nothing applies, and stays out of the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import PATIENCE_S, REPOSITORY, Lab

QUESTION = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pack installed from its sources, metadata and entry point included."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, str(REPOSITORY / "kernels")], check=True, timeout=PATIENCE_S)
    return folder


@pytest.mark.slow
def test_without_a_card_the_plugin_proves_that_nothing_applies_and_the_server_answers(
    serving: Lab, wheel: Path, tmp_path: Path
) -> None:
    proofs = tmp_path / "proofs"
    # The playbook asks for the one family that is for such a machine.
    switches = {"GPUOPS_KERNELS_SWIGLU": "", "GPUOPS_KERNELS_PROOF": str(proofs)}
    with _server(serving, tmp_path, PYTHONPATH=str(wheel), **switches) as url:
        assert _ask(url)["output_ids"]
    (proof,) = [json.loads(path.read_text()) for path in proofs.glob("*.json")]
    assert proof["rank"] == {"pp": 0, "tp": 0}
    assert {family["reason"] for family in proof["families"].values()} == {"no CUDA device: nothing applies"}


@pytest.mark.slow
def test_without_a_card_a_family_that_is_insisted_on_ends_the_start(serving: Lab, wheel: Path, tmp_path: Path) -> None:
    switches = {"GPUOPS_KERNELS": "strict", "GPUOPS_KERNELS_MHC": "1"}
    with (
        pytest.raises(RuntimeError, match=r"refusing to serve.*mhc: it is switched on, but no CUDA device"),
        _server(serving, tmp_path, PYTHONPATH=str(wheel), **switches),
    ):
        pass


@contextmanager
def _server(lab: Lab, folder: Path, **environment: str) -> Iterator[str]:
    """The release that serves, once more beside it on another port, with more environment.

    Raises:
        RuntimeError: it ended while it was starting; the message is its log.
    """
    release = json.loads((lab.service / "current" / "release.json").read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    argv = [port if word == str(release["port"]) else word for word in release["argv"]]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, env={**release["env"], **environment}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(" ".join(log.read_text(errors="replace").splitlines()))
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(log.read_text(errors="replace")[-2000:])


def _ask(url: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/generate", json.dumps(QUESTION).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
