"""One sandbox for all tests of the engine, and one server for those that only read.

The sandbox lies in ``.sandbox-tests`` of the checkout and keeps its runtime and model between runs (a clean checkout makes them); its services are
removed at the beginning.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.sandbox import Sandbox, prerequisites
from lab import REPOSITORY, Lab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    prerequisites.ensure(print)
    sandbox = Sandbox(REPOSITORY / ".sandbox-tests")
    sandbox.start()
    scratch = tmp_path_factory.mktemp("engine")
    lab = Lab(sandbox.folder, scratch, scratch / "state")
    if lab.service.exists():
        lab.run("down")
        shutil.rmtree(lab.service)
    try:
        yield lab
        ran = lab.run("down")
        assert lab.servers() == [], ran
    finally:
        sandbox.stop()


@pytest.fixture
def serving(lab: Lab) -> Lab:
    """The lab with ``local.yaml`` serving; it is started only when the test before has left something else."""
    ran = lab.up()
    assert ran.code == 0, ran
    return lab
