"""Whether a build fits a runtime and an engine, asked before anything is stopped: tags, versions, and the functions that its plugin replaces."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .runtimes import Runtime
from .wire import HOST_UNFIT, AgentError

# PEP 600: the older names of manylinux, as glibc versions.
_OLD_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}

# Operator, major, minor, micro (digits or "*").
_CLAUSE = re.compile(r"(~=|===?|!=|<=?|>=?)\s*v?(\d+)(?:\.(\d+))?(?:\.(\d+|\*))?")

_ASK = (
    "import json, platform as p, sys;"
    " print(json.dumps({'python': sys.version_info[:2], 'machine': p.machine(), 'libc': p.libc_ver()[1]}))"
)


@dataclass(frozen=True)
class Platform:
    """What wheels must fit: the interpreter's version, the machine, and its glibc (None: another C library)."""

    python: Tuple[int, int]
    machine: str
    glibc: Optional[Tuple[int, int]]

    def __str__(self) -> str:
        libc = "no glibc" if self.glibc is None else f"glibc {self.glibc[0]}.{self.glibc[1]}"
        return f"Python {self.python[0]}.{self.python[1]} on {self.machine}, {libc}"


def check(build: str, site: Path, about: Dict[str, Any], runtime: Runtime, engine: Dict[str, Any]) -> None:
    """Raises AgentError (exit code 5) when the build is for another Python, platform or engine version, or replaces what the engine does not have."""
    _wheel(build, about.get("wheel") or {}, runtime)
    ranges = (about.get("engines") or {}).get(engine["name"])
    if ranges is None:
        return
    mine = next((each for each in ranges if within(engine["version"], each["first"], each["last"])), None)
    if mine is None:
        raise _unfit(
            f"the build {build} is not made for {engine['name']} {engine['version']}",
            f"it is made for {', '.join(_range(each) for each in ranges)}",
            "choose a build for this engine version: gpuops builds list",
            "engine_version",
        )
    missing = [path for path in _targets(mine) if not _defined(path, [site, *packages(runtime.path)])]
    if missing:
        raise _unfit(
            f"the build {build} replaces what {engine['name']} {engine['version']} does not have",
            f"missing: {', '.join(missing[:3])}",
            f"see python -m {about.get('plugin') or 'its plugin'} for what it expects, or choose another build: gpuops builds list",
            "kernel_target",
        )


def platform_of(python: Path) -> Platform:
    """Ask an interpreter. Raises AgentError when it cannot be run."""
    try:
        asked = subprocess.run(
            [str(python), "-IS", "-c", _ASK], capture_output=True, check=True, timeout=60, stdin=subprocess.DEVNULL
        )
        told = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _unfit(
            f"the runtime's {python} cannot be run", str(error), "set runtime.path to a virtual environment", "runtime"
        ) from error
    libc = re.match(r"(\d+)\.(\d+)", told["libc"])
    return Platform((told["python"][0], told["python"][1]), told["machine"], (int(libc[1]), int(libc[2])) if libc else None)


def fits(tag: str, there: Platform) -> bool:
    """Whether a wheel of this tag (``cp311-cp311-manylinux_2_28_x86_64``, sets compressed with dots: PEP 425) can be installed."""
    pythons, abis, platforms = (part.split(".") for part in tag.split("-"))
    return (
        any(_python_fits(python, abi, there.python) for python in pythons for abi in abis)
        and any(_abi_fits(abi, there.python) for abi in abis)
        and any(_platform_fits(platform, there) for platform in platforms)
    )


def within(version: str, first: str, last: str) -> bool:
    """Whether a version lies in a range, both ends included; post releases come after, candidates before their release (PEP 440)."""
    return version_key(first) <= version_key(version) <= version_key(last)


def version_key(version: str) -> Tuple[Tuple[int, ...], int, int]:
    """What versions are compared by: the release, then pre (-1), final (0) or post (1) with its number."""
    match = re.match(r"v?(\d+(?:\.\d+)*)(?:[.-]?(post|rc|a|b|dev)\.?(\d*))?", version)
    if match is None:
        return ((), 0, 0)
    release = [int(part) for part in match[1].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    kind = 0 if not match[2] else 1 if match[2] == "post" else -1
    return (tuple(release), kind, int(match[3] or 0))


def python_allowed(specifier: str, python: Tuple[int, int]) -> bool:
    """Whether some release of this minor version satisfies a ``Requires-Python`` (PEP 440); empty: every one does."""
    clauses = _CLAUSE.findall(specifier)
    return all(_clause_allows(operator, major, minor, micro, python) for operator, major, minor, micro in clauses)


def packages(runtime: Path) -> List[Path]:
    """The site-packages of an environment."""
    return sorted(runtime.glob("lib/python3*/site-packages"))


def _wheel(build: str, wheel: Dict[str, Any], runtime: Runtime) -> None:
    tags = wheel.get("tags") or []
    needs = wheel.get("requires_python") or ""
    if not needs and all(tag == "py3-none-any" for tag in tags):
        return
    there = platform_of(runtime.python)
    if tags and not any(fits(tag, there) for tag in tags):
        what = f"the build {build} holds a wheel for another platform or Python: {', '.join(tags)}"
    elif not python_allowed(needs, there.python):
        what = f"the build {build} needs Python {needs}"
    else:
        return
    raise _unfit(
        what, f"the runtime has {there}", "build the wheel for the host, then gpuops builds make --from FILE.whl", "wheel"
    )


def _clause_allows(operator: str, major: str, minor: str, micro: str, python: Tuple[int, int]) -> bool:
    wanted = (int(major), int(minor)) if minor else (int(major),)
    mine = python[: len(wanted)]
    if operator == "!=":
        return mine != wanted or micro != "*"
    if operator in ("==", "===") or (operator == "~=" and micro):
        return mine == wanted
    if operator == "~=":
        return mine >= wanted and python[0] == wanted[0]
    if operator in (">=", ">"):
        return mine >= wanted
    # `<3.11.4` lets 3.11.3 in, `<3.11` nothing of 3.11.
    return mine < wanted or (mine == wanted and (operator == "<=" or micro not in ("", "0")))


def _python_fits(python: str, abi: str, there: Tuple[int, int]) -> bool:
    match = re.match(r"(py|cp)(\d)(\d*)\Z", python)
    if match is None or int(match[2]) != there[0]:
        return False
    if not match[3]:
        return match[1] == "py"
    older = int(match[3]) <= there[1]
    return older if match[1] == "py" or abi == "abi3" else int(match[3]) == there[1]


def _abi_fits(abi: str, there: Tuple[int, int]) -> bool:
    return abi in ("none", "abi3", f"cp{there[0]}{there[1]}")


def _platform_fits(platform: str, there: Platform) -> bool:
    if platform in ("any", f"linux_{there.machine}"):
        return True
    match = re.match(r"(manylinux\d*)(?:_(\d+)_(\d+))?_(.+)\Z", platform)
    if match is None or match[4] != there.machine or there.glibc is None:
        return False
    needed = (int(match[2]), int(match[3])) if match[2] else _OLD_MANYLINUX.get(match[1])
    return needed is not None and needed <= there.glibc


def _targets(engine: Dict[str, Any]) -> Iterable[str]:
    """``module:attribute`` of everything that the plugin replaces by default."""
    for family in (engine.get("families") or {}).values():
        if family["on"]:
            yield from family["targets"]


def _defined(target: str, sites: List[Path]) -> bool:
    """Whether the sources define it. What this Python cannot parse counts as defined: only the engine's own can tell."""
    module, _, attribute = target.partition(":")
    stem = module.replace(".", "/")
    file = next((path for site in sites for path in (site / f"{stem}.py", site / stem / "__init__.py") if path.is_file()), None)
    if file is None:
        return False
    try:
        node: Any = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return True
    for name in attribute.split("."):
        node = next((child for child in ast.walk(node) if getattr(child, "name", None) == name), None)
        if node is None:
            return False
    return True


def _range(each: Dict[str, Any]) -> str:
    return each["first"] if each["first"] == each["last"] else f"{each['first']} to {each['last']}"


def _unfit(what: str, evidence: str, next: str, kind: str) -> AgentError:
    return AgentError(what, evidence=evidence, next=f"{next}; the running server was not touched", code=HOST_UNFIT, kind=kind)
