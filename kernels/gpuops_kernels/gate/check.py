"""The gate's rules: what every shipped binary has to satisfy, on the users' card and on the one that the tests run on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import configs, registry
from . import machine_code, stub
from .machine_code import Resources

# Shared memory that a block can opt in to, in bytes: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
# (99 KiB on 12.0, 227 KiB on 9.0). Triton compiles beyond it without a word; the launch would fail.
SHARED_LIMIT = {(12, 0): 101_376, (9, 0): 232_448}

# Captured batch sizes that differ in what Triton could specialise on: 1, odd, a multiple of 16.
BATCH_SIZES = (1, 3, 16, 64)

_FOLDER = Path(__file__).parent / "resources"

Report = dict[str, dict[str, int]]
"""Resources by ``family/launch/kernel``, and by ``#n`` after it where a kernel has several binaries."""


@dataclass(frozen=True)
class Finding:
    """A rule that a binary breaks."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class Compiled:
    """What one launch compiled, at all batch sizes: kernel name to its distinct binaries, in the order of their first launch."""

    family: registry.Family
    launch: registry.Launch
    binaries: Mapping[str, tuple[Resources, ...]]


def compile_family(family: registry.Family, capability: configs.Capability) -> list[Compiled]:
    """Compile everything that a family ships, for a compute capability."""
    return [_compile(family, launch, capability) for launch in family.launches]


def findings(compiled: Iterable[Compiled], capability: configs.Capability) -> list[Finding]:
    """Every broken rule, in the order of the launches."""
    return [
        finding
        for each in compiled
        for kernel, binaries in each.binaries.items()
        for finding in _judge(each, kernel, binaries, SHARED_LIMIT[capability])
    ]


def report(compiled: Iterable[Compiled]) -> Report:
    """The resources of every binary, for the committed record."""
    return {
        where(each, kernel, number if len(binaries) > 1 else None): resources.to_json()
        for each in compiled
        for kernel, binaries in each.binaries.items()
        for number, resources in enumerate(binaries)
    }


def where(compiled: Compiled, kernel: str, number: int | None = None) -> str:
    """A binary's name in reports."""
    return f"{compiled.family.name}/{compiled.launch.name}/{kernel}" + ("" if number is None else f"#{number}")


def record_path(capability: configs.Capability) -> Path:
    """The committed record of a compute capability."""
    return _FOLDER / f"cc{capability[0]}{capability[1]}.json"


def read_record(capability: configs.Capability) -> Report:
    """The committed resources; empty before the first ``--write``."""
    path = record_path(capability)
    if not path.exists():
        return {}
    resources: Report = json.loads(path.read_text(encoding="utf-8"))["resources"]
    return resources


def write_record(capability: configs.Capability, resources: Report) -> None:
    """Replace the committed record."""
    path = record_path(capability)
    path.parent.mkdir(exist_ok=True)
    document = {"versions": stub.versions(), "resources": resources}
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def differences(recorded: Report, now: Report) -> list[str]:
    """What changed against the record, one line for each binary: a reviewer has to see a jump of twenty registers."""
    lines = [f"{name}: new" for name in now.keys() - recorded.keys()] + [f"{name}: gone" for name in recorded.keys() - now.keys()]
    for name in now.keys() & recorded.keys():
        changed = [
            f"{key} {recorded[name].get(key)} -> {value}" for key, value in now[name].items() if recorded[name].get(key) != value
        ]
        if changed:
            lines.append(f"{name}: {', '.join(changed)}")
    return sorted(lines)


def _compile(family: registry.Family, launch: registry.Launch, capability: configs.Capability) -> Compiled:
    with stub.compiling(capability) as binaries:
        for batch in BATCH_SIZES:
            launch.call(batch)
    distinct: dict[str, dict[str, stub.Binary]] = {}
    for binary in binaries:
        distinct.setdefault(binary.kernel, {}).setdefault(binary.key, binary)
    return Compiled(
        family,
        launch,
        {
            kernel: tuple(machine_code.read(each.cubin, each.shared) for each in by_key.values())
            for kernel, by_key in distinct.items()
        },
    )


def _judge(compiled: Compiled, kernel: str, binaries: tuple[Resources, ...], shared_limit: int) -> Iterable[Finding]:
    expected = compiled.family.expectations.get(kernel)
    if expected is None:
        yield Finding(where(compiled, kernel), "launched, but the family's expectations do not name it")
        return
    if len(binaries) > expected.binaries:
        yield Finding(
            where(compiled, kernel), f"{len(binaries)} binaries for batch sizes {BATCH_SIZES}, expected {expected.binaries}"
        )
    for number, resources in enumerate(binaries):
        name = where(compiled, kernel, number if len(binaries) > 1 else None)
        if resources.shared > shared_limit:
            yield Finding(name, f"{resources.shared} bytes of shared memory, the limit is {shared_limit}")
        if resources.stack or resources.spills:
            yield Finding(name, f"spills: {resources.stack} bytes of stack, {resources.spills} local loads and stores")
        if expected.mma and not resources.mma:
            yield Finding(name, "no tensor-core instruction")
        if expected.wide_loads and not resources.wide_loads:
            yield Finding(name, "no 128-bit load: alignment was lost")
