"""Fixtures for tests of builds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def builds(tmp_path: Path) -> Path:
    """An empty folder of builds."""
    folder = tmp_path / "builds"
    folder.mkdir()
    return folder
