"""A throwaway sshd on loopback: a host to try everything on, made of real ssh, that needs no second machine.

:class:`~gpuops.sandbox.sshd.Sandbox` starts and stops it; :mod:`~gpuops.sandbox.prerequisites` installs what it needs.
"""

from __future__ import annotations

from gpuops.sandbox.sshd import ALIAS, Sandbox, SandboxInfo

__all__ = ["ALIAS", "Sandbox", "SandboxInfo"]
