"""Where everything lies under ROOT (``docs/architecture.md``, "On the host")."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from .wire import AgentError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")


@dataclass(frozen=True)
class Root:
    """The agent's folder on the host."""

    path: Path

    @property
    def agents(self) -> Path:
        return self.path / "agent"

    @property
    def runtimes(self) -> Path:
        return self.path / "runtimes"

    @property
    def builds(self) -> Path:
        return self.path / "builds"

    @property
    def overlays(self) -> Path:
        return self.path / "overlays"

    @property
    def bundles(self) -> Path:
        return self.path / "bundles"

    @property
    def caches(self) -> Path:
        return self.path / "caches"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

    @property
    def locks(self) -> Path:
        return self.path / "locks"

    @property
    def services(self) -> Path:
        return self.path / "services"

    def service(self, name: str) -> "Service":
        """The paths of one service. Raises AgentError for a name that is no plain folder name."""
        if not _NAME.match(name):
            raise AgentError(f"{name!r} is not a service name", evidence="lower-case letters, digits, '.', '_' and '-'", code=2)
        return Service(self, name)


@dataclass(frozen=True)
class Service:
    """The folders and files of one service."""

    root: Root
    name: str

    @property
    def path(self) -> Path:
        return self.root.services / self.name

    @property
    def releases(self) -> Path:
        return self.path / "releases"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def operations(self) -> Path:
        return self.path / "operations"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def current(self) -> Path:
        return self.path / "current"

    @property
    def good(self) -> Path:
        return self.path / "good"

    @property
    def cache_link(self) -> Path:
        return self.path / "cache"

    @property
    def port_file(self) -> Path:
        return self.path / "port.json"

    @property
    def lock(self) -> Path:
        return self.root.locks / f"service-{self.name}.lock"

    @property
    def lock_owner(self) -> Path:
        return self.root.locks / f"service-{self.name}.json"

    @property
    def person_lock(self) -> Path:
        return self.root.locks / f"service-{self.name}.person.json"

    @property
    def supervisor_lock(self) -> Path:
        return self.run / "supervisor.lock"

    @property
    def supervisor_log(self) -> Path:
        return self.run / "supervisor.log"

    @property
    def server_file(self) -> Path:
        return self.run / "server.json"

    @property
    def exit_file(self) -> Path:
        return self.run / "exit.json"

    @property
    def processes_file(self) -> Path:
        return self.run / "processes.json"

    @property
    def reserve_file(self) -> Path:
        return self.run / "reserve"

    @property
    def comparison_file(self) -> Path:
        return self.run / "comparison.json"

    @property
    def comparison_lock(self) -> Path:
        return self.root.locks / f"comparison-{self.name}.lock"

    def release(self, number: int) -> Path:
        return self.releases / str(number)

    def server_log(self, number: int) -> Path:
        return self.release(number) / "server.log"

    def operation(self, op: str) -> Path:
        return self.operations / op

    @property
    def cancelled(self) -> Path:
        """Orders that were cancelled before they came; no operations."""
        return self.path / "cancelled"

    def forbidden(self, op: str) -> Path:
        return self.cancelled / f"{op}.json"


def own_zipapp() -> Path:
    """The zipapp that this process runs from."""
    return Path(sys.argv[0]).resolve()


def own_root() -> Root:
    """ROOT is two folders above the zipapp."""
    return Root(own_zipapp().parent.parent)
