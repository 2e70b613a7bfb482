"""One function of the engine and ours in its place: put there, looked for in every module, counted, and taken out again."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from . import sources
from .targets import Target

Function = Callable[..., Any]


class ReplacementError(RuntimeError):
    """A target cannot be replaced, or is not replaced any more; the message says why."""


@dataclass
class Calls:
    """How often a replacement was called from Python; replays of a CUDA graph are not calls.

    Args:
        first: called at the first call of either kind.
        count: calls that ours served.
        passed_on: calls that ours left to the engine's own function.
    """

    first: Callable[[], None]
    count: int = 0
    passed_on: int = 0

    def serve(self) -> None:
        """Count a call that ours has served; touches no device."""
        self.count += 1
        if self.count == 1:
            self.first()

    def pass_on(self) -> None:
        """Count a call that the engine's own function serves; touches no device."""
        self.passed_on += 1
        if self.passed_on == 1:
            self.first()

    def forget(self) -> None:
        """Begin at zero again."""
        self.count = self.passed_on = 0


class Replacement:
    """A target's state in this process."""

    def __init__(self, target: Target, first_call: Callable[[], None]) -> None:
        self.target = target
        self.calls = Calls(first_call)
        self.error: str | None = None
        self._given_up = False
        self._bound: dict[str, int] = {}
        self._stock: Function | None = None
        self._ours: Function | None = None

    def put_in(self, module: ModuleType) -> None:
        """Replace the target in the module that defines it and wherever it was copied to; an error is kept for :meth:`verify`."""
        if self._given_up:
            return
        try:
            self._put_in(module)
        except Exception as error:  # also what importing our kernels raises: it must not end the engine's import
            self.error = f"{type(error).__name__}: {error}" if not isinstance(error, ReplacementError) else str(error)

    def bind(self, heads: int | None) -> None:
        """Give ours the rank's number of attention heads, if it takes that and it is known."""
        if self.target.heads and heads is not None:
            self._bound["heads"] = heads

    def verify(self) -> list[str]:
        """Every binding of ours, as ``module:attribute``; imports the target's module if nobody has yet.

        Raises:
            ReplacementError: the target is missing, has changed, or is stock somewhere.
        """
        try:
            importlib.import_module(self.target.module)
        except Exception as error:
            raise ReplacementError(f"{self.target.module} cannot be imported: {type(error).__name__}: {error}") from error
        if self.error is not None:
            raise ReplacementError(self.error)
        if self._ours is None or _resolve(sys.modules[self.target.module], self.target.attribute) is not self._ours:
            raise ReplacementError(f"{self.target.path} is not ours: something put another function there")
        stock = _bindings(self._stock)
        if stock:
            raise ReplacementError(f"SGLang's own {self.target.path} is still bound at {', '.join(stock)}")
        return sorted({self.target.path, *_bindings(self._ours)})

    def take_out(self) -> None:
        """Give the engine its own function back, wherever ours is, and leave it alone from now on."""
        self._given_up = True
        if self._ours is None or self._stock is None:
            return
        _rebind(self._ours, self._stock)
        _assign(sys.modules[self.target.module], self.target.attribute, self._stock)
        self._ours = None

    def _put_in(self, module: ModuleType) -> None:
        stock = _resolve(module, self.target.attribute)
        self._check(module, stock)
        name, _, attribute = self.target.replacement.partition(":")
        function = _resolve(importlib.import_module(name), attribute)
        if self.target.around:
            function = functools.partial(function, _passed_on(stock, self.calls))
        ours = _counted(function, self.calls, self._bound)
        _assign(module, self.target.attribute, ours)
        _rebind(stock, ours)
        self._stock, self._ours = stock, ours

    def _check(self, module: ModuleType, stock: Function) -> None:
        if getattr(stock, "__module__", None) != module.__name__ or hasattr(stock, "__wrapped__"):
            raise ReplacementError(
                f"{self.target.path} is not SGLang's own any more: {stock!r} of {getattr(stock, '__module__', '?')} is there"
            )
        try:
            found = sources.fingerprint(Path(str(module.__file__)), self.target.attribute)
        except sources.NotFoundError as error:
            raise ReplacementError(str(error)) from error
        if found not in self.target.fingerprints:
            raise ReplacementError(
                f"{self.target.path} has changed: its source has the fingerprint {found}, known are {', '.join(self.target.fingerprints)}"
            )


def _counted(function: Function, calls: Calls, bound: dict[str, int]) -> Function:
    from torch.compiler import is_compiling

    def call(*args: Any, **kwargs: Any) -> Any:
        # A constant for Dynamo, which therefore sees nothing but this call: a counter would be a guard, and a recompilation for each value.
        if is_compiling():
            return function(*args, **bound, **kwargs)
        passed_on = calls.passed_on
        result = function(*args, **bound, **kwargs)
        if calls.passed_on == passed_on:
            calls.serve()
        return result

    return functools.update_wrapper(call, function)


def _passed_on(stock: Function, calls: Calls) -> Function:
    """The engine's own function for ours to hand a call to, which is then not counted as one that ours served."""
    from torch.compiler import is_compiling

    @functools.wraps(stock)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            calls.pass_on()
        return stock(*args, **kwargs)

    return call


def _resolve(module: ModuleType, attribute: str) -> Function:
    found: Any = module
    for name in attribute.split("."):
        # vars and not getattr: an inherited method is another class's.
        if name not in vars(found):
            raise ReplacementError(f"{module.__name__} has no {attribute} in this version")
        found = vars(found)[name]
    if not callable(found):
        raise ReplacementError(f"{module.__name__}:{attribute} is not a function")
    function: Function = found
    return function


def _assign(module: ModuleType, attribute: str, function: Function) -> None:
    holder: Any = module
    *path, name = attribute.split(".")
    for each in path:
        holder = vars(holder)[each]
    setattr(holder, name, function)


def _bindings(function: Function | None) -> list[str]:
    """Every ``module:attribute`` at the top level of a loaded module that is this very object."""
    return [f"{module.__name__}:{name}" for module, name in _holders(function)]


def _rebind(old: Function, new: Function) -> None:
    for module, name in _holders(old):
        setattr(module, name, new)


def _holders(function: Function | None) -> list[tuple[ModuleType, str]]:
    modules = [
        module
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and not module.__name__.startswith(__package__)
    ]
    return [(module, name) for module in modules for name, value in list(vars(module).items()) if value is function]
