"""``python -m gpuops_kernels.aot``: fill a Triton cache for a card ahead of time, and say later whether anything was missing in it.

    python -m gpuops_kernels.aot --capability 12.0 --cache DIR     compile every launch that the plugin's families make on this card into DIR
    python -m gpuops_kernels.aot --check --cache DIR               on the card itself: launch all of it for real, count what DIR did not have

No device is touched by the first, so it runs while another server has the card. The wrappers of each family run unchanged, on CPU tensors, through
Triton's own launch path (:mod:`.gate.stub`): argument types, alignment of pointers, constants and launch options are those of a real launch.

What the key of a binary is made of (``get_cache_key``; triton 3.6.0 and 3.8.0), and so what has to be equal in the server:

* Triton itself: its version and the contents of its compiler, language, backends and ``libtriton.so``. Hence the runtime's own Python.
* The kernel: its text, the line where it begins, the globals that it reads, and the same of what it calls. Not its path: a build may be moved. On
  3.6.0 also what was asked for before it (:mod:`.keys` takes that out).
* Types, alignment and constants of the arguments; ``num_warps``, ``num_stages``, ``launch_pdl`` and the other options; the target (``sm_120``, warps
  of 32 threads), which here is given and there is read from the card.
* What ``ptxas --version`` says: ``ptxas-blackwell`` from capability 10.0 on, ``ptxas`` below, Triton's own unless ``TRITON_PTXAS_PATH`` or
  ``TRITON_PTXAS_BLACKWELL_PATH`` names another one.
* Environment: ``TRITON_DEBUG``, ``TRITON_DEFAULT_FP_FUSION``, ``TRITON_OVERRIDE_ARCH``, ``TRITON_INSTRUMENTATION_MODE``, ``PTXAS_OPTIONS``, and what
  ``libtriton.get_cache_invalidating_env_vars`` lists (``DISABLE_PTXAS_OPT``, ``TRITON_DISABLE_LINE_INFO``, ``NVPTX_ENABLE_DUMP`` and the like).
  Run this with the server's environment; the switches ``GPUOPS_KERNELS_*`` also decide which families are compiled.

Not in the key: the driver's version, the device's number, the process. Beside binaries a first launch compiles C: ``cuda_utils.so``, and on 3.6.0 one
``__triton_launcher.so`` for each signature. These are made here too, where ``libcuda`` and a C compiler are found; the last line says so.

Left out: what torch.compile makes of a model (its cache is another one), and cards of the same capability with another number of multiprocessors than
the RTX PRO 6000 (188) and the H200 (132): it chooses between two binaries of mHC for up to 64 rows.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import registry
from .configs import Capability
from .plugin import plan, settings, targets

CPU = "cpu"
"""The capability of a machine without a card: there is nothing to compile."""


@dataclass(frozen=True)
class Filled:
    """What filling a cache came to.

    Args:
        kernels: distinct binaries that the launches use.
        compiled: how many of them the cache did not have.
        launchers: the C parts were made too; False where there is no libcuda or no C compiler.
    """

    kernels: int
    compiled: int
    launchers: bool


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: done, one JSON line is the last of stdout; 2: a kernel does not compile, or the arguments or the environment are wrong."""
    parser = argparse.ArgumentParser(prog="python -m gpuops_kernels.aot", description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--capability", type=_capability, metavar="12.0|9.0|cpu", help="the card's compute capability")
    what.add_argument(
        "--check", action="store_true", help="launch everything on this machine's card and count what the cache did not have"
    )
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR", help="the TRITON_CACHE_DIR of the server")
    parser.add_argument(
        "--family",
        choices=registry.FAMILIES,
        action="append",
        help="this one (may be repeated) instead of those that the plugin puts in place",
    )
    options = parser.parse_args(arguments)
    try:
        told = _check(options) if options.check else _fill(options)
    except (CannotError, settings.SettingsError) as error:
        print(f"gpuops-kernels: {error}", file=sys.stderr)
        return 2
    print(json.dumps(told))
    return 0


class CannotError(RuntimeError):
    """The cache cannot be filled or checked; the message says why."""


def placed(capability: Capability) -> tuple[str, ...]:
    """The families that the plugin puts in place on a card, with this environment and the installed SGLang; all of them when none is installed."""
    version = _version("sglang")
    if not version:
        return registry.FAMILIES
    wanted = settings.read(os.environ)
    choices = plan.choose(wanted, targets.engine(version), plan.Machine(capability))
    return tuple(name for name in registry.FAMILIES if wanted.mode != "off" and choices[name].targets)


def fill(capability: Capability, cache: Path, families: tuple[str, ...]) -> Filled:
    """Compile every launch of some families into a cache, without a device.

    Raises:
        CannotError: a kernel does not compile; names it and the launch.
    """
    from triton.runtime import driver

    from .gate import check, stub

    with stub.compiling(capability, cache) as binaries, _compilations() as seen:
        for family in families:
            for launch in registry.family(family).launches:
                try:
                    for batch in check.BATCH_SIZES:
                        launch.call(batch)
                except Exception as error:
                    raise CannotError(f"{family}/{launch.name} for compute capability {_dotted(capability)}: {error}") from error
        launchers = bool(seen) and _make_launchers(driver.active, seen)
    return Filled(len({each.key for each in binaries}), sum(not each.cached for each in seen), launchers)


def missing(cache: Path, families: tuple[str, ...]) -> list[str]:
    """Launch everything on the present card: the entries that the cache did not have, as ``FOLDER/FILE`` of one file each."""
    import torch

    from .gate import check

    os.environ["TRITON_CACHE_DIR"] = str(cache)
    before = {path.parent for path in _files(cache)}
    with torch.device("cuda", torch.cuda.current_device()), _zeroed():
        for family in families:
            for launch in registry.family(family).launches:
                for batch in check.BATCH_SIZES:
                    launch.call(batch)
                    torch.cuda.synchronize()
    new = {path.parent: str(path.relative_to(cache)) for path in _files(cache) if path.parent not in before}
    return sorted(new.values())


def _fill(options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    capability: Capability | None = None if options.capability == CPU else options.capability
    names = () if capability is None else tuple(options.family or placed(capability))
    options.cache.mkdir(parents=True, exist_ok=True)
    done = fill(capability, options.cache.resolve(), names) if capability and names else Filled(0, 0, False)
    return {
        "capability": _dotted(capability) if capability else CPU,
        "triton": _version("triton"),
        "torch": _version("torch"),
        "families": list(names),
        "kernels": done.kernels,
        "compiled": done.compiled,
        "cached": done.kernels - done.compiled,
        "launchers": done.launchers,
        "seconds": round(time.monotonic() - began, 1),
    }


def _check(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        raise CannotError("there is no CUDA device here: --check launches the kernels on the card that the cache is for")
    capability = torch.cuda.get_device_capability()
    names = tuple(options.family or placed(capability))
    entries = missing(options.cache.resolve(), names)
    return {"capability": _dotted(capability), "families": list(names), "misses": len(entries), "entries": entries}


@dataclass(frozen=True)
class _Compilation:
    """What Triton told of one binary: its source, its metadata, and whether the cache had it."""

    source: Any
    metadata: dict[str, Any]
    cached: bool


@contextlib.contextmanager
def _compilations() -> Iterator[list[_Compilation]]:
    from triton import knobs

    seen: list[_Compilation] = []

    def listen(*, src: Any, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
        seen.append(_Compilation(src, metadata, cache_hit))

    before = knobs.compilation.listener
    knobs.compilation.listener = listen
    try:
        yield seen
    finally:
        knobs.compilation.listener = before


def _make_launchers(stub: Any, seen: list[_Compilation]) -> bool:
    """Make the C modules of a first launch. They look a device up at their first call, and not when they are made or loaded."""
    from triton.backends.nvidia import driver

    try:
        stub.utils = driver.CudaUtils()
        for each in seen:
            driver.CudaLauncher(each.source, SimpleNamespace(**each.metadata))
    except (
        Exception
    ) as error:  # no libcuda (an assertion), no compiler, a compiler that fails: the first launch then makes them, or says why
        print(f"gpuops-kernels: the launchers are left to the first launch: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True


@contextlib.contextmanager
def _zeroed() -> Iterator[None]:
    """Within this context new tensors hold zeros: the launches leave them empty, and on a card an index is followed."""
    import torch
    from torch.overrides import TorchFunctionMode

    zeroed = {torch.empty: torch.zeros, torch.empty_like: torch.zeros_like, torch.Tensor.new_empty: torch.Tensor.new_zeros}

    class Zeroed(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return zeroed.get(function, function)(*args, **(kwargs or {}))

    with Zeroed():
        yield


def _files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()] if cache.is_dir() else []


def _capability(word: str) -> Capability | str:
    if word == CPU:
        return CPU
    major, _, minor = word.partition(".")
    return int(major), int(minor)


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
