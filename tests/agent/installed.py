"""The agent as it lies on a host that has been used before: uploaded, unpacked, and compiled by the Python that runs it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from gpuops.agent import pack
from gpuops.agent.client import Agent
from gpuops.transport.local import LocalTransport


def upload(root: Path) -> Path:
    """Upload the agent to ROOT and use it once. Its folder is ready to be linked elsewhere."""
    Agent(LocalTransport(), str(root), sys.executable).call("hello")
    return root / "agent"


def link(agent_folder: Path, root: Path, python: str = sys.executable) -> Path:
    """Put the agent into another ROOT, with its byte-code for ``python``; returns the zipapp. A ROOT costs next to nothing so."""
    _compile(agent_folder, python)
    shutil.copytree(agent_folder, root / "agent", copy_function=_link_or_copy)
    return root / "agent" / pack.name()


@functools.cache
def _compile(agent_folder: Path, python: str) -> None:
    subprocess.run([python, "-m", "compileall", "-q", str(agent_folder)], check=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)
