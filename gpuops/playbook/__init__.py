"""The playbook: its models, its loader and its reference.

Importing this package costs nothing: YAML and pydantic are imported when a name is first looked up. Verbs that only need to know
where a service runs use :func:`target`, which does without pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loader import LoadedPlaybook, load
    from .models import Playbook
    from .targets import Target, target

__all__ = ["LoadedPlaybook", "Playbook", "Target", "load", "target"]

_MODULE = {"LoadedPlaybook": "loader", "load": "loader", "Playbook": "models", "Target": "targets", "target": "targets"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE[name]}", __name__), name)
    globals()[name] = value
    return value
