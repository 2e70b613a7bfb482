"""Builds and bundles over real links: the payload of a verb, and `--link-dest` between the builds of a host."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpuops.agent.client import Agent
from gpuops.builds import bundle, caches, carry
from gpuops.builds.bundle import Contents
from gpuops.builds.carry import open_bundle
from gpuops.builds.download import HostPlatform
from gpuops.builds.manifest import read_tree
from gpuops.builds.push import push
from gpuops.transport import Transport

PREPARE = {"runtime": {"kind": "path", "path": "/opt/venv"}, "model": {"kind": "path", "path": "/m"}, "build": None}


def test_a_bundle_arrives_whole_over_every_transport(transport: Transport, tmp_path: Path) -> None:
    """More than one piece, so more than any buffer on the way."""
    tree = tmp_path / "mine"
    tree.mkdir()
    (tree / "large.bin").write_bytes(os.urandom(carry.PIECE + 1000))
    bundle.write(tmp_path / "box.tar", Contents(PREPARE, (read_tree(tree),), HostPlatform((3, 11), "x86_64", (2, 28))))
    agent = Agent(transport, str(tmp_path / "root"), sys.executable)
    seen: list[int] = []
    assert carry.send(agent, open_bundle(tmp_path / "box.tar"), lambda done, total: seen.append(done))
    assert len(seen) == 2
    (build,) = agent.call("build.list")["builds"]
    assert agent.call("build.verify", id=build["id"])["wrong"] == []


def test_a_build_that_differs_by_one_file_costs_that_file(transport: Transport, tmp_path: Path) -> None:
    tree = tmp_path / "mine"
    tree.mkdir()
    (tree / "large.bin").write_bytes(os.urandom(1 << 20))
    (tree / "kernel.py").write_text("A = 1\n")
    agent = Agent(transport, str(tmp_path / "root"), sys.executable)
    push(agent, read_tree(tree))
    (tree / "kernel.py").write_text("A = 2\n")
    sent = push(agent, read_tree(tree))
    assert sent is not None and (sent.tool, sent.bytes_sent) == ("rsync", 6)


def test_a_cache_comes_home_and_goes_out_again_over_every_transport(transport: Transport, tmp_path: Path) -> None:
    agent = Agent(transport, str(tmp_path / "root"), sys.executable)
    other = Agent(transport, str(tmp_path / "other"), sys.executable)
    # The key of this identity, as gpuops_agent.caches makes it.
    cache = tmp_path / "root" / "caches" / "059b620af98d"
    (cache / "triton").mkdir(parents=True)
    (cache / "triton" / "kernel").write_bytes(os.urandom(1 << 20))
    (cache / "cache.json").write_text(
        json.dumps({"build": "stock", "card": "cpu", "runtime": "rt", "versions": {"torch": "2.11.0"}})
    )
    here: Any = nullcontext(SimpleNamespace(agent=agent))
    saved = caches.save(lambda: here, tmp_path / "box", {"everything": True}, part_bytes=400_000)
    assert len(saved.file.files) == 3
    assert [each["key"] for each in caches.load(other, caches.open_caches(tmp_path / "box"), {})["loaded"]] == [cache.name]
    there = tmp_path / "other" / "caches" / cache.name / "triton" / "kernel"
    assert there.read_bytes() == (cache / "triton" / "kernel").read_bytes()
