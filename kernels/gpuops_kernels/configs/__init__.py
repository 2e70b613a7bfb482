"""Launch configurations are data: one JSON file for each compute capability, chosen offline, never tuned at run time.

A file maps a kernel's name and a shape key to block sizes, ``num_warps`` and ``num_stages``. A missing entry is an error with the file's name in
it, raised when the plugin loads (:func:`require`) and not in the middle of a CUDA graph capture.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Capability = tuple[int, int]
"""A CUDA compute capability as (major, minor), for example (12, 0)."""

_FOLDER = Path(__file__).parent

# What tensors on the CPU are compiled for: the interpreter and the gate say so with `assume`.
_assumed: list[Capability] = []


class MissingConfigurationError(LookupError):
    """There is no configuration for a kernel, a shape or a compute capability."""


@dataclass(frozen=True)
class Configuration:
    """How one kernel is launched for one shape.

    Args:
        constants: block sizes and other ``tl.constexpr`` arguments by name.
        num_warps: warps of a program (32 threads each).
        num_stages: depth of the software pipeline of loads.
    """

    constants: Mapping[str, int]
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int]:
        """What goes to a Triton launch: constants, ``num_warps`` and ``num_stages``."""
        return {**self.constants, "num_warps": self.num_warps, "num_stages": self.num_stages}


def lookup(device: torch.device, kernel: str, shape: str) -> Configuration:
    """The configuration of ``kernel`` for ``shape`` on a device.

    Raises:
        MissingConfigurationError
    """
    return of(capability(device), kernel, shape)


def of(capability: Capability, kernel: str, shape: str) -> Configuration:
    """The configuration of ``kernel`` for ``shape`` on a compute capability.

    Raises:
        MissingConfigurationError
    """
    shapes = load(capability).get(kernel, {})
    if shape not in shapes:
        raise MissingConfigurationError(
            f"no configuration for kernel {kernel}, shape {shape}, on compute capability {_dotted(capability)}: "
            f"{_file(capability)} has {', '.join(sorted(shapes)) or 'no entry for this kernel'}; add one there and run `make gate`"
        )
    return shapes[shape]


@functools.cache
def load(capability: Capability) -> Mapping[str, Mapping[str, Configuration]]:
    """Every configuration of a compute capability, by kernel and shape.

    Raises:
        MissingConfigurationError: there is no file for this capability.
    """
    path = _file(capability)
    if not path.exists():
        known = ", ".join(_dotted(each) for each in capabilities())
        raise MissingConfigurationError(
            f"no configurations for compute capability {_dotted(capability)}: {path} does not exist; there are some for {known}"
        )
    entries = json.loads(path.read_text(encoding="utf-8"))
    return {
        kernel: {shape: _configuration(path, kernel, shape, entry) for shape, entry in shapes.items()}
        for kernel, shapes in entries.items()
    }


def require(capability: Capability, keys: Iterable[tuple[str, str]]) -> None:
    """Check that every (kernel, shape) has a configuration.

    Raises:
        MissingConfigurationError
    """
    for kernel, shape in keys:
        of(capability, kernel, shape)


def capabilities() -> list[Capability]:
    """The compute capabilities that have configurations."""
    return sorted(divmod(int(path.stem[2:]), 10) for path in _FOLDER.glob("cc*.json"))


def capability(device: torch.device) -> Capability:
    """The compute capability of a device; for the CPU, what :func:`assume` says."""
    if device.type == "cuda":
        return _device_capability(device.index)
    if not _assumed:
        raise MissingConfigurationError(
            "tensors on the CPU have no compute capability; use configs.assume((12, 0)) in tests and tools"
        )
    return _assumed[-1]


@contextlib.contextmanager
def assume(capability: Capability) -> Iterator[None]:
    """Within this context, launches on CPU tensors take the configurations of ``capability``."""
    _assumed.append(capability)
    try:
        yield
    finally:
        _assumed.pop()


@functools.cache
def _device_capability(index: int | None) -> Capability:
    import torch

    return torch.cuda.get_device_capability(index)


def _file(capability: Capability) -> Path:
    return _FOLDER / f"cc{capability[0]}{capability[1]}.json"


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _configuration(path: Path, kernel: str, shape: str, entry: Mapping[str, int]) -> Configuration:
    constants = {name: value for name, value in entry.items() if name not in ("num_warps", "num_stages")}
    try:
        return Configuration(constants, entry["num_warps"], entry["num_stages"])
    except KeyError as error:
        raise MissingConfigurationError(f"{path}: {kernel}, shape {shape}: {error.args[0]} is missing") from error
