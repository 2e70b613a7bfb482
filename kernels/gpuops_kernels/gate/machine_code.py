"""What a cubin uses and does: registers, stack, spills, tensor-core instructions, wide loads; read with the CUDA tools that Triton carries."""

from __future__ import annotations

import collections
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from triton import knobs

# cuobjdump -res-usage: " REG:210 STACK:0 SHARED:1024 LOCAL:0 ...". Spills show as STACK, never as LOCAL.
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
# nvdisasm -c: "        /*0a40*/    @P0 LDG.E.128.CONSTANT R4, ..."
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)

_MMA = ("HMMA", "QMMA", "OMMA", "IMMA", "HGMMA", "QGMMA")


@dataclass(frozen=True)
class Resources:
    """Figures of one binary.

    Args:
        shared: bytes of shared memory a block, static and dynamic.
        registers: 32-bit registers a thread.
        stack: bytes of stack a thread; above 0 means spilled registers.
        spills: LDL and STL instructions.
        mma: tensor-core instructions.
        wide_loads: 128-bit loads from global memory, into registers or shared memory.
        instructions: all instructions.
    """

    shared: int
    registers: int
    stack: int
    spills: int
    mma: int
    wide_loads: int
    instructions: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def read(cubin: bytes, shared: int) -> Resources:
    """Read one binary. ``shared`` comes from Triton: dynamic shared memory is not written in the cubin.

    Raises:
        RuntimeError: the tools' output was not understood.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _tool(knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
        code = _tool(knobs.nvidia.nvdisasm.path, "-c", file.name)
    found = _USAGE.search(usage)
    names = _INSTRUCTION.findall(code)
    if found is None or not names:
        raise RuntimeError(f"cuobjdump and nvdisasm said nothing that is understood: {usage[-300:]!r}, {code[:300]!r}")
    counts = collections.Counter(names)
    return Resources(
        shared=shared,
        registers=int(found[1]),
        stack=int(found[2]),
        spills=_count(counts, lambda name: name.startswith(("LDL", "STL"))),
        mma=_count(counts, lambda name: name.split(".")[0] in _MMA),
        wide_loads=_count(counts, lambda name: name.startswith(("LDG.", "LDGSTS.")) and "128" in name.split(".")),
        instructions=len(names),
    )


def _count(counts: collections.Counter[str], wanted: Callable[[str], bool]) -> int:
    return sum(number for name, number in counts.items() if wanted(name))


def _tool(path: str, *arguments: str) -> str:
    ran = subprocess.run([str(Path(path)), *arguments], capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(f"{path} failed with status {ran.returncode}: {ran.stderr.strip()[-300:]}")
    return ran.stdout
