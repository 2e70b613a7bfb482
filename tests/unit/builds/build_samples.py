"""Small projects that build without a network, and builds made of plain files."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

from gpuops.builds.manifest import Tree, hashed, write_manifest

# A build backend of the standard library alone: pip needs no network for it.
BACKEND = """
import os, zipfile
from pathlib import Path

def build_wheel(folder, settings=None, metadata=None):
    tag = Path("TAG").read_text().strip() if Path("TAG").exists() else "py3-none-any"
    info = "tiny_kernels-1.0.dist-info"
    name = f"tiny_kernels-1.0-{tag}.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path in sorted(Path("tiny_kernels").rglob("*")):
            if path.is_file():
                wheel.write(path, path.as_posix())
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: tiny-kernels\\nVersion: 1.0\\nRequires-Python: >=3.9\\n")
        generator = os.environ.get("GENERATOR", "one")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\\nGenerator: {generator}\\nRoot-Is-Purelib: true\\nTag: {tag}\\n")
        wheel.writestr(f"{info}/entry_points.txt", "[sglang.srt.plugins]\\ntiny = tiny_kernels.plugin:register\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""

TARGETS = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Target:
    path: str

@dataclass(frozen=True)
class Family:
    on: bool
    targets: tuple

@dataclass(frozen=True)
class Engine:
    first: str
    last: str
    families: dict

ENGINES = (Engine("0.5.18", "0.5.23", {"act": Family(True, (Target("sglang.srt.layers.activation:SiluAndMul.forward"),))}),)
"""

PATCH = """\
What it is for.

--- a/engine/core.py
+++ b/engine/core.py
@@ -1,3 +1,3 @@
 A = 1
-B = 2
+B = 3
 C = 3
"""


def project(folder: Path, **files: str) -> Path:
    """A source folder of the distribution ``tiny-kernels``; ``files`` are more of its package's modules."""
    package = folder / "tiny_kernels"
    (package / "plugin").mkdir(parents=True)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    (package / "__init__.py").write_text("VERSION = 1\n")
    (package / "plugin" / "__init__.py").write_text("def register() -> None: ...\n")
    (package / "plugin" / "targets.py").write_text(TARGETS)
    (package / "tool.sh").write_text("#!/bin/sh\n")
    (package / "tool.sh").chmod(0o755)
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return folder


def git(folder: Path, *words: str) -> str:
    """Git with an identity of its own, and no configuration of the user's."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main", "-c", "safe.directory=*"]
    return subprocess.run(["git", *identity, "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


def committed(folder: Path) -> Path:
    """The folder as a git repository with everything committed."""
    (folder / ".gitignore").write_text("__pycache__/\nscratch/\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    return folder


def patches(folder: Path, engine: str = "engine-1.0", text: str = PATCH, name: str = "b.patch") -> Path:
    """A folder of patches with one in it."""
    (folder / engine).mkdir(parents=True)
    (folder / engine / name).write_text(text)
    return folder


def build(builds: Path, name: str, about: dict[str, Any] | None = None, **files: str) -> Tree:
    """A build of plain files, as `make` leaves it: ``pkg_mod`` is ``site/pkg/mod.py``."""
    staging = builds / f".{name}"
    for key, text in files.items():
        path = staging / "site" / f"{key.replace('_', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tree = hashed(name, {"site": staging / "site"}, about or {})
    write_manifest(staging, tree)
    staging.rename(builds / tree.id)
    return hashed(name, {"site": builds / tree.id / "site"}, about or {})


def wheel(folder: Path, name: str, tag: str = "py3-none-any", **members: str) -> Path:
    """A wheel file; ``members`` are further files of the archive, ``__`` for a slash."""
    path = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "X = 1\n")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
        for member, text in members.items():
            archive.writestr(member.replace("__", "/"), text)
    return path
