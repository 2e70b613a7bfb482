"""Doing something to a module right after it was imported, before anyone else sees it.

A finder at the head of ``sys.meta_path`` lets the usual finders find the module and wraps ``exec_module`` of what they found. Patches are then in
place before the importer continues, and nothing is imported earlier than the engine wants it.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Action = Callable[[ModuleType], None]


def after(module: str, action: Action) -> None:
    """Call ``action`` with the module: now if it is loaded, else right after its import."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        action(loaded)
        return
    _finder().actions.setdefault(module, []).append(action)


class _Finder:
    """Finds nothing itself; see the module's docstring."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}
        self._asked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Asked again while it asks the others: there is a second finder of this kind, of another package, which asks everybody too.
        if name not in self.actions or name in self._asked:
            return None
        self._asked.add(name)
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._asked.discard(name)
        if spec is None or spec.loader is None:
            return spec
        self._extend(spec)
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _extend(self, spec: importlib.machinery.ModuleSpec) -> None:
        execute = spec.loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in self.actions.pop(spec.name, ()):
                action(module)

        # On the loader object and not in a class of ours: what asks the loader for its type or its source still gets the real one.
        spec.loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


def _finder() -> _Finder:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    return finder
