"""A real sshd for the tests of the transports and of the sandbox."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_support import KINDS, SSH_KINDS

from gpuops.sandbox import ALIAS, Sandbox, SandboxInfo, prerequisites
from gpuops.transport import Address, Kind, Transport, open_transport


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ssh)


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    prerequisites.ensure(print)


@pytest.fixture(scope="session")
def sandbox(installed: None) -> Iterator[SandboxInfo]:
    with tempfile.TemporaryDirectory(prefix="gpuops-sshd-") as folder:
        sshd = Sandbox(Path(folder))
        yield sshd.start()
        sshd.stop()


@pytest.fixture(scope="session")
def address(sandbox: SandboxInfo) -> Address:
    return Address(ALIAS, ssh_config=sandbox.ssh_config)


@pytest.fixture(scope="module", params=KINDS)
def transport(request: pytest.FixtureRequest, address: Address) -> Iterator[Transport]:
    """A transport that the tests of a module share; with OpenSSH most calls so go over the master connection."""
    with open_transport(address, request.param) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def new_transport(request: pytest.FixtureRequest, address: Address) -> Iterator[Transport]:
    """A transport of one's own: its first call is the first on its connection."""
    with open_transport(address, request.param) as opened:
        yield opened


@pytest.fixture(params=SSH_KINDS)
def ssh_kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind
