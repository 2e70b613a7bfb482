"""Compile kernels for a GPU that is not there, through Triton's real launch path.

A stub driver tells Triton which target it compiles for, and every launch becomes a ``warmup``: the wrappers run unchanged on CPU tensors, with the
specialisation of arguments that a real launch would get (without it, pointers lose their alignment and another kernel is measured).
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from .. import configs

_PASSES_FAILED = "PassManager::run failed"


@dataclass(frozen=True)
class Binary:
    """One kernel that was compiled in answer to a launch.

    Args:
        kernel: the name of the Triton function.
        grid: programs along each axis.
        key: everything that Triton specialised on, as text: two launches of one key share a binary.
        cubin: the machine code.
        shared: bytes of shared memory a block takes, static and dynamic.
    """

    kernel: str
    grid: tuple[int, ...]
    key: str
    cubin: bytes
    shared: int


class NotCompiledError(RuntimeError):
    """Triton could not compile a kernel; the message names it."""


class AutotunedError(AssertionError):
    """A launch reached an autotuner: it would tune, and synchronise, in the middle of serving."""


@contextlib.contextmanager
def compiling(capability: configs.Capability, cache: Path | None = None) -> Iterator[list[Binary]]:
    """Within this context every launch compiles for ``capability`` and is noted instead of run.

    Args:
        cache: the compiler's cache, in use and filled; None is a fresh folder: what is measured was compiled now.

    Raises:
        NotCompiledError: from a launch.
    """
    binaries: list[Binary] = []
    original = JITFunction.run

    def run(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        try:
            compiled = _compiled(self.__name__, partial(original, self, *arguments, grid=grid, warmup=True, **options))
        except Exception as error:
            raise NotCompiledError(f"{self.__name__} does not compile: {type(error).__name__}: {error}") from error
        compiled = compiled.result() if hasattr(compiled, "result") else compiled
        size = tuple(int(programs) for programs in (grid(options) if callable(grid) else grid))
        binaries.append(Binary(self.__name__, size, compiled.hash, compiled.asm["cubin"], compiled.metadata.shared))
        return compiled

    with _folder(cache) as folder, _environment("TRITON_CACHE_DIR", str(folder)), no_autotuning():
        before = driver.active if driver._default is not None or driver._active is not None else None
        driver.set_active(_StubDriver(capability))
        JITFunction.run = run
        try:
            with configs.assume(capability):
                yield binaries
        finally:
            JITFunction.run = original
            if before is not None:
                driver.set_active(before)


@dataclass(frozen=True)
class Noted:
    """A launch that was noted and not made: no data existed when its arguments were chosen."""

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]


@contextlib.contextmanager
def noting(capability: configs.Capability) -> Iterator[list[Noted]]:
    """Within this context launches are noted and nothing is compiled or run: for fake tensors, which hold no data."""
    noted: list[Noted] = []
    original = JITFunction.run

    def run(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        size = tuple(int(programs) for programs in (grid(options) if callable(grid) else grid))
        described = tuple(
            (str(each.dtype), tuple(each.shape), tuple(each.stride())) if isinstance(each, torch.Tensor) else each
            for each in arguments
        )
        noted.append(Noted(self.__name__, size, described, tuple(sorted(options.items()))))

    JITFunction.run = run
    try:
        with configs.assume(capability), no_autotuning():
            yield noted
    finally:
        JITFunction.run = original


@contextlib.contextmanager
def no_autotuning() -> Iterator[None]:
    """Within this context a launch that reaches an autotuner fails."""
    original = Autotuner.run

    def run(self: Autotuner, *arguments: Any, **options: Any) -> None:
        raise AutotunedError(f"{self.base_fn.__name__} is autotuned on the launch path")

    Autotuner.run = run
    try:
        yield
    finally:
        Autotuner.run = original


def _compiled(kernel: str, compile_it: Callable[[], Any]) -> Any:
    """What compiles. Where Triton's passes failed it is tried again: that was seen once in thousands of times, with a kernel that then compiled."""
    try:
        return compile_it()
    except RuntimeError as error:
        if _PASSES_FAILED not in str(error):
            raise
        print(f"gpuops-kernels: {kernel}: {error}; compiling it again", file=sys.stderr)
        return compile_it()


class _StubDriver:
    """What Triton's JIT asks of a driver before it compiles; nothing can be launched."""

    def __init__(self, capability: configs.Capability) -> None:
        self._target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        # A kernel keeps its binaries by device number: one for each target, or the second would be given the first one's machine code.
        return self._target.arch

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def is_active(self) -> bool:
        return True


@contextlib.contextmanager
def _folder(cache: Path | None) -> Iterator[Path]:
    if cache is not None:
        yield cache
        return
    with tempfile.TemporaryDirectory(prefix="gpuops-gate-") as fresh:
        yield Path(fresh)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    old = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if old is None:
            del os.environ[name]
        else:
            os.environ[name] = old


def versions() -> dict[str, str]:
    """The versions that the machine code depends on."""
    return {"triton": triton.__version__, "torch": torch.__version__}
