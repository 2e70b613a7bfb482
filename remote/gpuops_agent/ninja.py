"""Ninja's builds in a cache that began as a copy: they name their own folder, whole, and are made again under its new name.

tvm-ffi 0.1.11 (``tvm_ffi/cpp/extension.py``) writes a source's path into ``build.ninja``, links resolved; FlashInfer 0.6.12 (``jit/cpp_ext.py``) that
of everything it makes. A build with another path is another command for ninja, and the server would compile it again while nobody serves. No card is
needed for it: done before the old server stops, the new one finds that there is nothing to do.
"""

from __future__ import annotations

import os
import re
import shutil
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Optional

from . import warm
from .files import write_bytes
from .proc import boottime
from .wire import AgentError

if TYPE_CHECKING:
    from .prepare import Work

FILE = "build.ninja"

# Modules of one source side by side; those of several one after another. The server that runs beside them comes first.
_SMALL = 'printf "%s\\0" "$@" | nice -n 10 xargs -0 -n 1 -P "$JOBS" "$NINJA" -j 1 -C'
_LARGE = 'for each; do nice -n 10 "$NINJA" -j "$JOBS" -C "$each" || failed=1; done; exit "${failed:-0}"'

# Memory that a compiler may take: what nvcc takes for the largest of FlashInfer's sources.
_COMPILER_BYTES = 4 << 30

_OBJECT = re.compile(rb"^build [^:\n]*\.o:", re.MULTILINE)


def renamed(parts: List[Path], cache: Path) -> List[Path]:
    """Folders whose build names another of the caches; there it names this one afterwards.

    Args:
        parts: where to look: folders of a cache, with a folder a module at any depth.
        cache: the one that ``parts`` are of; the others lie beside it.
    Raises:
        AgentError: the disk did not take it. OSError: a build cannot be read.
    """
    other = re.compile(re.escape(os.fsencode(cache.resolve().parent)) + rb"/[0-9a-f]{12}(?=/)")
    here = os.fsencode(cache.resolve())
    found = []
    for file in sorted(file for part in parts for file in part.rglob(FILE)):
        text = file.read_bytes()
        mended = other.sub(lambda _: here, text)
        if mended != text:
            write_bytes(file, mended)
            found.append(file.parent)
    return found


def rebuild(folders: List[Path], python: Path, environment: Dict[str, str], work: "Work") -> None:
    """Build what :func:`renamed` has found. What fails is left to the server, and said.

    Args:
        python: the runtime's; its own ninja comes first.
        environment: the server's, for its compilers.
    Raises:
        wire.Cancelled
    """
    # Not at the top: it imports what imports this.
    from . import compiling, tool

    if not folders:
        return
    began = boottime()
    modules = f"{len(folders)} compiled module{'' if len(folders) == 1 else 's'}"
    program = _ninja(python, environment)
    if program is None:
        work.emit(
            "note",
            text=f"{modules} of the cache made for another folder, and there is no ninja here: the server compiles anew",
        )
        return
    work.emit("phase", phase="seed", progress=None, detail=f"{modules}, for the new folder")
    told = {**compiling.seen(environment), "NINJA": program, "JOBS": str(_jobs(environment, work))}
    large = [folder for folder in folders if len(_OBJECT.findall((folder / FILE).read_bytes())) > 1]
    small = [folder for folder in folders if folder not in large]
    failed = None
    for script, chosen in ((_SMALL, small), (_LARGE, large)):
        argv = ["/bin/sh", "-c", script, "sh", *map(str, chosen)]
        try:
            if chosen:
                tool.run(
                    argv,
                    what="building the cached modules",
                    log=work.log,
                    cancelled=work.cancelled,
                    deadline=work.deadline,
                    env=told,
                )
        except AgentError as error:
            failed = error
    if failed is None:
        work.emit("note", text=f"{modules} of the cache built for the new folder in {boottime() - began:.0f} s")
    else:
        work.emit("note", text=f"{failed}: {failed.evidence}; the server compiles what is missing itself")


def _jobs(environment: Dict[str, str], work: "Work") -> int:
    """Compilers at a time: all that prepare together have no more than there are cores and memory for, or than the engine's own builds may have
    (MAX_JOBS, as PyTorch and FlashInfer read it)."""
    said = environment.get("MAX_JOBS", "")
    most = int(said) if said.isdecimal() and int(said) else inf
    together = min(most, warm.room().bytes // _COMPILER_BYTES)
    return max(1, int(min(work.cores, together // work.at_once)))


def _ninja(python: Path, environment: Dict[str, str]) -> Optional[str]:
    beside = str(python.parent)
    return shutil.which("ninja", path=os.pathsep.join([beside, environment.get("PATH") or os.environ.get("PATH") or os.defpath]))
