"""A build with a patch for the real engine: up with it, see it, and back."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import httpx
import pytest

from lab import GPUOPS, REPOSITORY, Lab, wait_for

PATCHED = "sglang/srt/entrypoints/http_server.py"


@pytest.mark.slow
def test_a_patched_engine_serves_shows_its_patch_and_leaves_the_runtime_alone(serving: Lab, tmp_path: Path) -> None:
    own = next(serving.root.glob(f"runtimes/*/lib/python3*/site-packages/{PATCHED}"))
    before = hashlib.sha256(own.read_bytes()).hexdigest()
    first = serving.status()["release"]
    made = _make(tmp_path)
    ran = serving.up("--set", f"build.tree={made}")
    assert ran.code == 0, ran
    assert ran.json["outcome"] == "promoted"
    port = ran.json["port"]
    overlay = serving.release(ran.json["release"])["build"]["overlay"]
    assert overlay["engine"] == "sglang-0.5.23" and (Path(overlay["site"]) / PATCHED).is_file()
    assert float(_health(port)["X-Health-Seconds"]) > 0
    assert hashlib.sha256(own.read_bytes()).hexdigest() == before
    back = serving.run("restore", str(first), "--json")
    assert back.code == 0, back
    assert "X-Health-Seconds" not in _health(port)


def test_patches_for_another_version_are_refused_and_the_server_stays(serving: Lab, tmp_path: Path) -> None:
    pids = serving.servers()
    made = _make(tmp_path)
    ran = serving.up("--set", f"build.tree={made}", playbook="local-0.5.22.yaml")
    assert ran.code == 5, ran
    assert "has no patches for sglang 0.5.22" in ran.json["error"]["what"]
    assert "it has patches for sglang-0.5.23" in ran.json["error"]["evidence"]
    assert serving.servers() == pids


def _make(folder: Path) -> str:
    argv = [GPUOPS, "builds", "make", "--json", "--patches", str(REPOSITORY / "playbooks/embedded/patches")]
    ended = subprocess.run([*argv, "--name", "quick-health", "--dir", str(folder)], capture_output=True, text=True, check=True)
    return str(json.loads(ended.stdout)["path"])


def _health(port: int) -> httpx.Headers:
    """The headers of the first /health that says 200: while the engine's own warm-up goes on, it says 503, also after answers have come."""

    def answered() -> httpx.Response | None:
        answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=60)
        return answer if answer.status_code == 200 else None

    return wait_for(answered, "/health says 200").headers
