"""Every launch that this package ships: what the gate compiles, what the plugin warms up, and what nothing may launch beyond.

A family's folder holds ``kernel.py`` (Triton), ``op.py`` (the wrappers that an engine calls), ``reference.py`` (plain torch in float64),
``cases.py`` (inputs in the engine's layouts, with bytes and operations counted from them) and ``bench.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

FAMILIES = ("mla_decode", "indexer", "mhc", "glue")
"""Families of Triton kernels: compiled by the gate, measured by the benchmark."""

CPU_FAMILIES = ("swiglu",)
"""Families of plain torch, for an engine on a machine without a card: nothing to compile, nothing to measure."""

PLACED = FAMILIES + CPU_FAMILIES
"""What the plugin can put in place."""


@dataclass(frozen=True)
class Expectation:
    """What the machine code of one kernel has to show.

    Args:
        mma: tensor-core instructions (HMMA or QMMA).
        wide_loads: 128-bit global loads (LDG.E.128 or LDGSTS.E.BYPASS.128): their absence is lost alignment.
        binaries: how many specialisations a family's launches may compile it into, one for each configuration in use.
    """

    mma: bool = False
    wide_loads: bool = False
    binaries: int = 1


@dataclass(frozen=True)
class Launch:
    """One way in which an engine calls a family.

    Args:
        name: what is launched, for example ``decode/heads8-page64``.
        call: calls the wrapper with freshly made tensors of a batch size; on the CPU, without data that matters.
    """

    name: str
    call: Callable[[int], None]


@dataclass(frozen=True)
class Family:
    """What a family's ``launches.py`` says of it.

    Args:
        name: the folder's name.
        keys: every (kernel, shape) that needs a configuration.
        launches: what the gate compiles, at several batch sizes.
        expectations: by kernel name (the Triton function's), for every kernel that the launches reach.
    """

    name: str
    keys: tuple[tuple[str, str], ...]
    launches: tuple[Launch, ...]
    expectations: Mapping[str, Expectation] = field(default_factory=dict)


def family(name: str) -> Family:
    """A family by name; imports its kernels, and so torch and triton."""
    module = importlib.import_module(f"gpuops_kernels.{name}.launches")
    found: Family = module.FAMILY
    return found


def families() -> list[Family]:
    """All families, in the order of a decode step."""
    return [family(name) for name in FAMILIES]
