"""Playbooks written to a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from playbook_samples import FULL, MINIMAL, Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file below the test's folder and gives its path."""

    def write_file(text: str = MINIMAL, name: str = "playbook.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def full(write: Write) -> Path:
    """A playbook that uses every section, with its files."""
    for name in ("files/env.lock", "files/shim.py", "files/convert.py", "ssh_config"):
        write(f"text of {name}\n", name)
    return write(FULL)
