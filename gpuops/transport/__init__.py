"""Reaching a host: :func:`open_transport` picks the implementation; :mod:`gpuops.transport.base` says what they all promise.

Importing this package is cheap: the implementations are imported when one is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gpuops.transport.base import Address, Completed, PushStats, RemoteStream, Transport, plain_command

__all__ = ["Address", "Completed", "Kind", "PushStats", "RemoteStream", "Transport", "open_transport", "plain_command"]

Kind = Literal["auto", "fabric", "openssh", "local"]


def open_transport(address: Address, kind: Kind = "auto", note: Callable[[str], None] = lambda text: None) -> Transport:
    """The transport for a host; the connection itself is made by its first command.

    Args:
        kind: ``auto`` is local for the name ``local``, else Fabric, else OpenSSH where the ssh configuration needs it.
        note: is told when ``auto`` does not take Fabric, and why.

    Raises:
        GpuopsError: the address is malformed. TransportError: ssh is missing or refuses its configuration.
    """
    if kind == "local" or (kind == "auto" and address.name == "local"):
        from gpuops.transport.local import LocalTransport

        return LocalTransport()

    from gpuops.transport.resolve import resolve

    target = resolve(address)
    if kind == "auto" and target.needs_openssh:
        note(f"using the ssh program for {address.name}: {target.needs_openssh}")
    if kind == "openssh" or (kind == "auto" and target.needs_openssh):
        from gpuops.transport.openssh import OpenSshTransport

        return OpenSshTransport(target)

    from gpuops.transport.fabric_ssh import FabricTransport

    return FabricTransport(target)
