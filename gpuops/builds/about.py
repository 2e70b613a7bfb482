"""What a build says of itself beside its content: the engines that it is for, what it replaces there, its cards, versions and resources.

None of it is part of the id. It is read from the unpacked wheel: the plugin's table of targets, and the records of the kernels' gate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuops.errors import GpuopsError

PLUGIN_GROUP = "sglang.srt.plugins"

# Reads `<plugin>.targets.ENGINES`, in a process of its own: it is the wheel's code.
_READ_TARGETS = """
import dataclasses, importlib, json, sys
sys.path.insert(0, sys.argv[1])
table = importlib.import_module(sys.argv[2] + ".targets").ENGINES
print(json.dumps([
    {"first": engine.first, "last": engine.last, "families": {
        name: {"on": family.on, "targets": [target.path for target in family.targets]} for name, family in engine.families.items()}}
    for engine in table]))
"""

# Runs `python -m PLUGIN --content` with the unpacked wheel first on the path, in a process of its own.
_READ_CONTENT = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
sys.argv = [sys.argv[2], "--content"]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

_MODULES = ("plugin", "compile")
_BASE = "base"

Json = dict[str, Any]


def of_site(site: Path) -> Json:
    """``{plugin, engines, capabilities, versions, resources}``, each only where the wheel has it.

    ``engines`` is ``{"sglang": [{first, last, families: {NAME: {on, targets: [module:attribute]}}}]}``; ``resources`` is by compute capability
    and then by binary.

    Raises:
        GpuopsError: the wheel's plugin has a table of targets that cannot be read.
    """
    found: Json = {}
    plugin = _plugin(site)
    if plugin:
        found["plugin"] = plugin
        if (site / plugin.replace(".", "/") / "targets.py").is_file():
            found["engines"] = {"sglang": _targets(site, plugin)}
    records = {_capability(path): json.loads(path.read_bytes()) for path in sorted(site.glob("*/gate/resources/cc*.json"))}
    if capabilities := sorted({_capability(path) for path in site.glob("*/configs/cc*.json")} | records.keys()):
        found["capabilities"] = capabilities
    if records:
        found["versions"] = next(iter(records.values()))["versions"]
        found["resources"] = {capability: record["resources"] for capability, record in records.items()}
    return found


def of_project(folder: Path) -> Json:
    """``{engines}`` from ``[tool.gpuops.engines]`` of a source folder's pyproject.toml: ``sglang = [["0.5.13", "0.5.23"]]``. Empty without one.

    Raises:
        GpuopsError: the table is not of this form.
    """
    path = folder / "pyproject.toml"
    table = _toml(path).get("tool", {}).get("gpuops", {}).get("engines")
    if table is None:
        return {}
    try:
        ranges = {engine: [{"first": str(first), "last": str(last)} for first, last in pairs] for engine, pairs in table.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise GpuopsError(
            f"{path}: [tool.gpuops.engines] is not understood",
            evidence=str(error),
            next='write sglang = [["0.5.13", "0.5.23"]]',
            kind="source",
        ) from error
    return {"engines": ranges}


def of_kernels(project: Path, site: Path) -> Json:
    """``{proof: {plugin, content}, compile}`` from ``[tool.gpuops.build]`` of a source folder's pyproject.toml; each only where the table names it.

    ``plugin`` is a module whose ranks write proofs, ``content`` what it says of its own files (``python -m PLUGIN --content``), which every rank
    has to repeat; ``compile`` is the module that compiles the kernels ahead of time.

    Args:
        site: the unpacked wheel.
    Raises:
        GpuopsError: the table is not of this form, or the plugin does not tell its content.
    """
    path = project / "pyproject.toml"
    table = _build_table(path)
    wrong = [key for key, value in table.items() if key not in (*_MODULES, _BASE) or not isinstance(value, str)]
    missing = [
        value for key, value in table.items() if key in _MODULES and isinstance(value, str) and not _is_module(site, value)
    ]
    if wrong or missing:
        raise GpuopsError(
            f"{path}: [tool.gpuops.build] is not understood",
            evidence=f"the wheel has no module {missing[0]}" if missing else f"unknown, or no text: {', '.join(wrong)}",
            next='write plugin = "PACKAGE.plugin" and compile = "PACKAGE.aot"',
            kind="source",
        )
    found: Json = {}
    if plugin := table.get("plugin"):
        found["proof"] = {"plugin": plugin, "content": _content(site, plugin)}
    if compiler := table.get("compile"):
        found["compile"] = compiler
    return found


def base_of(folder: Path) -> Path | None:
    """The folder that ``base`` of ``[tool.gpuops.build]`` names, as seen from a source folder: its sources come first, and the folder's own on top.

    For a build that is another one with a few files changed. None without a base.
    """
    path = folder / "pyproject.toml"
    named = _build_table(path).get(_BASE) if path.is_file() else None
    return folder / named if isinstance(named, str) else None


def _build_table(path: Path) -> Json:
    return dict(_toml(path).get("tool", {}).get("gpuops", {}).get("build") or {})


def _content(site: Path, plugin: str) -> str:
    argv = [sys.executable, "-IB", "-c", _READ_CONTENT, str(site), plugin]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    content = ended.stdout.strip()
    if ended.returncode != 0 or not content or "\n" in content:
        raise GpuopsError(
            f"the plugin {plugin} does not tell its content",
            evidence=(ended.stderr or ended.stdout).strip()[-400:] or "it printed nothing",
            next=f"python -m {plugin} --content prints one line",
            kind="source",
        )
    return content


def _is_module(site: Path, name: str) -> bool:
    stem = site / name.replace(".", "/")
    return stem.with_suffix(".py").is_file() or (stem / "__init__.py").is_file()


def _plugin(site: Path) -> str:
    """The module of the wheel's engine plugin, without the function's name."""
    for path in sorted(site.glob("*.dist-info/entry_points.txt")):
        group = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                group = line.strip("[] ")
            elif group == PLUGIN_GROUP and "=" in line:
                return line.partition("=")[2].strip().partition(":")[0]
    return ""


def _targets(site: Path, plugin: str) -> list[Json]:
    argv = [sys.executable, "-IB", "-c", _READ_TARGETS, str(site), plugin]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    if ended.returncode != 0:
        raise GpuopsError(
            f"the plugin's table of targets cannot be read: {plugin}.targets.ENGINES",
            evidence=ended.stderr.strip()[-400:],
            next=f"python -c 'import {plugin}.targets'",
            kind="source",
        )
    table: list[Json] = json.loads(ended.stdout)
    return table


def _capability(path: Path) -> str:
    """``cc120.json`` is of compute capability 12.0."""
    digits = path.stem[2:]
    return f"{digits[:-1]}.{digits[-1]}"


def _toml(path: Path) -> Json:
    try:
        if sys.version_info >= (3, 11):
            import tomllib as toml
        else:  # pip brings its own, which is the same.
            from pip._vendor import tomli as toml
        return dict(toml.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise GpuopsError(f"{path} is no TOML", evidence=str(error), kind="source") from error
