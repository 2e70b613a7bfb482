"""A stub of SGLang whose worker processes are really spawned, run in a copy of its tree that a test may damage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuops_kernels.plugin import proof
from gpuops_kernels.plugin.proof import Proof

STUBS = Path(__file__).parent / "stubs"
KERNELS = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """A stub server that ended.

    Args:
        launcher: exit status of the launcher.
        codes: exit statuses of the ranks.
        answers: what each rank served; None for one that ended before.
    """

    launcher: int
    codes: list[int]
    answers: list[list[str] | None]
    launcher_hooks: list[str]
    err: str
    proofs: list[Proof]

    @property
    def proof(self) -> Proof:
        """The only rank's."""
        assert len(self.proofs) == 1, self
        return self.proofs[0]


@dataclass
class Stub:
    """The tree, the environment, and a run of the server."""

    tree: Path
    proofs: Path
    environment: dict[str, str] = field(default_factory=dict)

    def edit(self, path: str, old: str, new: str) -> None:
        """Change a source file of the stub engine."""
        file = self.tree / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def run(self, **environment: str) -> Ran:
        """Start the server and wait for its end; variables named ``strict``, ``auto`` and so on go in as they are."""
        base = {name: value for name, value in os.environ.items() if not name.startswith(("GPUOPS", "SGLANG", "PYTHON"))}
        paths = {"PYTHONPATH": f"{self.tree}:{KERNELS}", "STUB_PRISTINE": str(STUBS), "PYTHONDONTWRITEBYTECODE": "1"}
        mine = {"GPUOPS_KERNELS_PROOF": str(self.proofs), "STUB_CAPABILITY": "12.0", **self.environment, **environment}
        # -S: no site-packages, so that the stub's torch, or none at all, is what the plugin finds.
        argv = [sys.executable, "-S", str(self.tree / "stub_server.py")]
        every = {**base, **paths, **{name: value for name, value in mine.items() if value}}
        ended = subprocess.run(argv, env=every, capture_output=True, text=True, timeout=120, check=False)
        said: dict[str, Any] = (
            json.loads(ended.stdout.splitlines()[-1]) if ended.stdout else {"codes": [], "answers": [], "launcher_hooks": []}
        )
        found = [proof.read(path) for path in sorted(self.proofs.glob("*.json"))] if self.proofs.is_dir() else []
        return Ran(ended.returncode, said["codes"], said["answers"], said["launcher_hooks"], ended.stderr, found)


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    tree = tmp_path / "engine"
    shutil.copytree(STUBS, tree, ignore=shutil.ignore_patterns("__pycache__"))
    return Stub(tree, tmp_path / "proofs")
