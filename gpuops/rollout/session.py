"""One connection to one service's host: everything that a verb of the command line needs to do its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from gpuops.agent.client import Agent
from gpuops.errors import Exit, GpuopsError
from gpuops.playbook.targets import Target
from gpuops.transport import open_transport

TransportKind = Literal["auto", "fabric", "openssh", "local"]


@dataclass(frozen=True)
class Session:
    """A target and its agent. A context manager: leaving it closes the connection."""

    target: Target
    agent: Agent

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc: object) -> None:
        self.agent.transport.close()

    def status(self, *, check: bool = False, timeout_s: float | None = None) -> dict[str, Any]:
        """The agent's status of this service, and of its host. ``timeout_s`` bounds the generation that ``check`` asks for."""
        return self.agent.call("status", service=self.target.service or None, check=check, timeout_s=timeout_s)

    def service(self) -> str:
        """The service's name: the target's, else the only one on the host.

        Raises:
            GpuopsError: the host has none, or several.
        """
        if self.target.service:
            return self.target.service
        names = [entry["service"] for entry in self.status()["services"]]
        if len(names) == 1:
            return str(names[0])
        raise GpuopsError(
            f"{self.target.address.name} has {'several services' if names else 'no service'}",
            evidence=", ".join(names),
            next="name one with --service, or a playbook with -p" if names else "gpuops up PLAYBOOK",
            code=Exit.USAGE,
            kind="service",
        )


def connect(target: Target, note: Callable[[str], None], transport: str | None = None) -> Session:
    """Open the transport of a target and put the agent's client on it.

    Args:
        note: told which transport is used, when it is not the usual one, and why.
        transport: ``fabric`` or ``openssh`` instead of the target's own choice.
    Raises:
        TransportError
    """
    local = target.address.name == "local"
    if local:
        # No shell is there to expand a "~".
        target = replace(target, root=_expanded(target.root), python=_expanded(target.python))
    kind = "local" if local else transport or target.transport
    opened = open_transport(target.address, cast(TransportKind, kind), note)
    return Session(target, Agent(opened, target.root, target.python))


def _expanded(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path
