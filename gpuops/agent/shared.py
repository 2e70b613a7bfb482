"""The agent's own modules, for what the controller does in just the same way: one implementation, on the host and here."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from gpuops.agent import pack


def module(name: str) -> ModuleType:
    """A module of the agent's package, ``gpuops_agent.<name>``. Raises GpuopsError when the installation lacks the agent's sources."""
    folder = str(pack.sources())
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(f"{pack.PACKAGE}.{name}")
