"""What builds cost: ``make bench-builds``.

A real sshd on loopback, the project's own kernels: what crosses the link for a build that differs by one wheel, whether two clean clones of the
project give the same build, and what a swap adds to the engine's own stop and start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, report
from gpuops.agent.client import Agent
from gpuops.builds.make import make
from gpuops.builds.manifest import Tree, hashed
from gpuops.builds.push import push
from gpuops.sandbox import ALIAS, Sandbox, SandboxInfo, prerequisites
from gpuops.transport import Address, open_transport
from gpuops.transport.base import PushStats

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE / "remote"))

from benchmarks import swaps  # noqa: E402  (it needs the agent's modules)

# About the engine's overlay: what a build with one changed kernel wheel leaves unchanged.
UNCHANGED_FILES, UNCHANGED_BYTES = 2000, 24 << 20
WHEEL_BYTES = 2 << 20


def main() -> int:
    prerequisites.ensure(lambda text: print(text, file=sys.stderr))
    sandbox = Sandbox(HERE / ".sandbox-bench-builds")
    info = sandbox.start()
    # What an earlier run left would be linked from.
    shutil.rmtree(info.root / "builds", ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as scratch:
            return report(figures(info, Path(scratch)))
    finally:
        sandbox.stop()


def figures(info: SandboxInfo, scratch: Path) -> Iterator[Figure]:
    """Every figure of this benchmark, as it is measured."""
    yield one_wheel(info, scratch / "push")
    yield from swaps.figures(info, scratch / "swaps")
    yield from clones(scratch / "clones")


def one_wheel(info: SandboxInfo, scratch: Path) -> Figure:
    """Push a build, then one that differs by one wheel: bytes on the link against that wheel's size."""
    site = scratch / "site"
    for number in range(UNCHANGED_FILES):
        path = site / f"engine{number % 40}" / f"m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(UNCHANGED_BYTES // UNCHANGED_FILES))
    _unpacked(site)
    with open_transport(Address(ALIAS, ssh_config=info.ssh_config), "auto") as transport:
        agent = Agent(transport, str(info.root), str(info.python))
        _push(agent, hashed("bench", {"site": site}))
        wheel = _unpacked(site)
        sent = _push(agent, hashed("bench", {"site": site}))
    detail = f"{sent.bytes_sent} bytes by {sent.tool} for a wheel of {wheel} bytes, in a build of {sent.files} files"
    return Figure("push of a build that differs by one wheel", sent.bytes_sent / wheel, 1.2, "x", detail)


def clones(scratch: Path) -> Iterator[Figure]:
    """Make the kernels' build in two clean clones that differ in umask: how many ids there are beyond one."""
    ids = []
    for number, umask in enumerate((0o022, 0o077)):
        clone = scratch / str(number)
        before = os.umask(umask)
        try:
            subprocess.run(["git", "clone", "--quiet", str(HERE), str(clone)], check=True)
            ids.append(make(clone / "builds", clone / "kernels").tree.id)
        finally:
            os.umask(before)
    yield Figure("builds make in two clean clones, further ids", len(set(ids)) - 1, 0, "", " and ".join(ids))


def _unpacked(site: Path) -> int:
    """Put a new wheel's content into the build; returns the wheel's size in bytes."""
    archive = site.parent / "kernels.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        for number in range(40):
            wheel.writestr(f"kernels/m{number}.py", os.urandom(WHEEL_BYTES // 40))
    with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(site)
    return archive.stat().st_size


def _push(agent: Agent, tree: Tree) -> PushStats:
    sent = push(agent, tree)
    assert sent is not None, "the host has it already"
    return sent


if __name__ == "__main__":
    sys.exit(main())
