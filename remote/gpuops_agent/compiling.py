"""What of a build can be tried before the old server stops, by the runtime's own Python: its byte-code, its imports, and its kernels' compilation.

None of them needs a card: the processes get none to see (``CUDA_VISIBLE_DEVICES`` is empty), so that a mistake cannot disturb the server that runs
on it. Kernels go into the release's cache through the compiler's own path (``about.compile`` in the build's manifest: a module that is run with
``--capability X.Y --cache DIR`` and prints one JSON line last), so that the first real launch finds them there.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import gpus, tool
from .builds import Build
from .proc import boottime
from .wire import HOST_UNFIT, AgentError

if TYPE_CHECKING:
    from .prepare import Work

# An import that takes longer hangs: importing the engine with torch takes half a minute on a slow disk.
IMPORTS_S = 300.0

NO_CARD = "cpu"

# Not the folder that the agent happens to be in: only what a server sees. The module comes first in the error, so that the last line names it.
_IMPORT = """
import importlib, sys
sys.path[:] = [path for path in sys.path if path]
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        sys.exit(f"error: import {name}: {type(error).__name__}: {error}")
"""


def byte_code(build: Build, python: Path, environment: Dict[str, str], work: "Work") -> None:
    """Compile what the build brings, and the engine's package where patches have changed it, to byte-code beside the sources.

    Else the first server that starts with the build would, while nobody serves: for SGLang's package 10 s. It is no content of a build
    (``builds.counts``). What is no Python is left out; where nothing can be written, that is said. Raises wire.Cancelled.
    """
    work.emit("phase", phase="import", progress=None, detail="byte-code")
    closed = [str(site) for site in _sites(build) if not os.access(site, os.W_OK)]
    if closed:
        work.emit(
            "note", text=f"{', '.join(closed)} cannot be written: without byte-code there, each start compiles its modules anew"
        )
    argv = ["nice", "-n", "10", str(python), "-m", "compileall", "-qq", "-j", str(work.cores), *map(str, _sites(build))]
    until = min(work.deadline, boottime() + IMPORTS_S)
    with suppress(AgentError):
        tool.run(
            argv, what="compiling to byte-code", log=work.log, cancelled=work.cancelled, deadline=until, env=seen(environment)
        )


def imports(build: Build, python: Path, environment: Dict[str, str], work: "Work") -> None:
    """Import what the build puts in front of the runtime's packages.

    Raises:
        AgentError: an import fails, or does not end (``imports``, exit code 5). wire.Cancelled
    """
    names = modules(build)
    if not names:
        return
    work.emit("phase", phase="import", progress=None, detail=", ".join(names))
    limited = replace(work, deadline=min(work.deadline, boottime() + IMPORTS_S))
    argv = [str(python), "-c", _IMPORT, *names]
    _run(argv, f"importing the build {build.id}", "imports", environment, limited)
    work.emit("imported", build=build.id, modules=names)


def kernels(build: Build, python: Path, environment: Dict[str, str], cache: Path, capabilities: List[str], work: "Work") -> None:
    """Compile the build's kernels into a Triton cache, for each compute capability.

    Args:
        environment: the server's, whole: compilers put some of it into the names of what they cache.
        cache: the folder of ``TRITON_CACHE_DIR``.
    Raises:
        AgentError: a kernel does not compile, or the compiler does not tell what it did (``compile``, exit code 5). wire.Cancelled
    """
    module = build.about.get("compile")
    if not module:
        return
    cache.mkdir(parents=True, exist_ok=True)
    for number, capability in enumerate(capabilities):
        began = boottime()
        work.emit("phase", phase="compile", progress=number / len(capabilities), detail=f"kernels for {_card(capability)}")
        argv = [str(python), "-m", module, "--capability", capability, "--cache", str(cache)]
        lines = _run(argv, f"compiling the kernels of {build.id} for {_card(capability)}", "compile", environment, work)
        told = _last_json(lines)
        if told is None:
            raise _refused(
                f"{module} does not say what it compiled for {_card(capability)}",
                " | ".join(lines[-2:]) or "it printed nothing",
                "a module for about.compile prints one JSON line last",
                "compile",
            )
        counts = {key: int(told.get(key) or 0) for key in ("kernels", "compiled", "cached")}
        work.emit("compiled", build=build.id, capability=capability, **counts, seconds=round(boottime() - began, 3))


def modules(build: Build) -> List[str]:
    """What a build brings that can be imported: its plugin, else its packages, and the package that its patches have changed."""
    packages = sorted({path.parent.name for site in _sites(build) for path in site.glob("*/__init__.py")})
    plugin = (build.about.get("proof") or {}).get("plugin") or build.about.get("plugin")
    return [*packages, *([plugin] if plugin and plugin not in packages else [])]


def _sites(build: Build) -> List[Path]:
    return [build.site, *([build.overlay.site] if build.overlay else [])]


def capabilities(chosen: List[str]) -> List[str]:
    """The compute capabilities of the service's cards, each once: ``9.0``; :data:`NO_CARD` where there are none.

    Args:
        chosen: ids of the cards that the release claims; none: all, and so are words that are neither an index nor a UUID.
    """
    found = gpus.capabilities()
    named = [each for each in found if each.index in chosen or each.uuid in chosen]
    return sorted({each.capability for each in named or found}) or [NO_CARD]


def seen(environment: Dict[str, str]) -> Dict[str, str]:
    """A server's environment for a program that prepares: without what is a secret, and without cards."""
    return {**{name: text for name, text in environment.items() if "@{secret:" not in text}, "CUDA_VISIBLE_DEVICES": ""}


def _run(argv: List[str], what: str, kind: str, environment: Dict[str, str], work: "Work") -> List[str]:
    try:
        return tool.run(argv, what=what, log=work.log, cancelled=work.cancelled, deadline=work.deadline, env=seen(environment))
    except AgentError as error:
        if error.kind not in ("tool", "deadline"):
            raise
        how = "failed" if error.kind == "tool" else "did not end in time"
        raise _refused(
            f"{what} {how}", error.evidence, f"see {work.log} on the host, mend the build and make it again", kind
        ) from error


def _last_json(lines: List[str]) -> Optional[Dict[str, Any]]:
    for text in reversed(lines):
        try:
            told = json.loads(text)
        except ValueError:
            continue
        if isinstance(told, dict):
            return told
    return None


def _card(capability: str) -> str:
    return "no card" if capability == NO_CARD else f"compute capability {capability}"


def _refused(what: str, evidence: str, next: str, kind: str) -> AgentError:
    return AgentError(what, evidence=evidence, next=f"{next}; the running server was not touched", code=HOST_UNFIT, kind=kind)
