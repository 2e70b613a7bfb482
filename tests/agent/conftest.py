"""Fixtures for tests of the agent: its modules importable as they are on a host, and process labs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "remote"))
sys.path.insert(0, str(Path(__file__).parent))

import installed
from process_lab import Host, pythons
from rollouts import Lab


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the agent by its oldest Python, and among the slow tests by ours; tests marked ``every_python`` by all."""
    if "agent_python" in metafunc.fixturenames:
        oldest, *others = pythons()
        everywhere = getattr(metafunc.function, "every_python", False)
        chosen = [pytest.param(oldest, id=Path(oldest).name)]
        for name in others if everywhere else [sys.executable]:
            chosen.append(pytest.param(name, id=Path(name).resolve().name, marks=() if everywhere else pytest.mark.slow))
        metafunc.parametrize("agent_python", chosen)


@pytest.fixture(scope="session")
def agent_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent as it lies on a host that has been used before."""
    return installed.upload(tmp_path_factory.mktemp("uploaded"))


@pytest.fixture
def host(tmp_path: Path, agent_folder: Path, agent_python: str) -> Iterator[Host]:
    """A service on this machine; nothing that it started may outlive the test."""
    lab = Host(tmp_path, agent_folder, agent_python)
    yield lab
    left = lab.clean_up()
    assert not left, f"left behind after a stop: {left}"


@pytest.fixture
def lab(tmp_path: Path, agent_folder: Path) -> Iterator[Lab]:
    """A service in a ROOT of its own for whole rollouts; nothing that it started may outlive the test."""
    made = Lab(tmp_path, agent_folder)
    yield made
    left = made.clean_up()
    assert not left, f"left behind after a stop: {left}"
