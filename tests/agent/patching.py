"""A runtime with an engine in it as an installer leaves it, and builds with patches, as folders on a host."""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path
from typing import Any

from gpuops_agent import builds
from gpuops_agent.paths import Root
from gpuops_agent.runtimes import Runtime

ENGINE = {"name": "engine", "version": "1.0"}

CORE = "A = 1\nB = 2\nC = 3\n" + "".join(f"L{number} = {number}\n" for number in range(20)) + "Z = 26\n"

PATCH = """\
--- a/engine/core.py
+++ b/engine/core.py
@@ -1,3 +1,3 @@
 A = 1
-B = 2
+B = 3
 C = 3
"""

SECOND_HUNK = """\
@@ -22,3 +22,3 @@
 L18 = 18
 L19 = 19
-Z = 26
+Z = 27
"""

NEW_FILE = """\
--- /dev/null
+++ b/engine/added.py
@@ -0,0 +1 @@
+NEW = 1
"""


def runtime(folder: Path, version: str = "1.0") -> Runtime:
    """An environment with the package ``engine``: ``core.py``, ``same.py`` and byte-code, with its RECORD."""
    site = folder / "lib" / "python3.11" / "site-packages"
    package = site / "engine"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import core\n")
    (package / "core.py").write_text(CORE)
    (package / "same.py").write_text("SAME = 1\n")
    (package / "__pycache__" / "core.pyc").write_bytes(b"x")
    info = site / f"engine-{version}.dist-info"
    info.mkdir()
    files = sorted(path for path in package.rglob("*.py"))
    (info / "RECORD").write_text("".join(f"{path.relative_to(site)},sha256={digest(path)},1\n" for path in files))
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    return Runtime(f"path:{folder}", folder, folder / "bin" / "python", {})


def digest(path: Path) -> str:
    """As RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def arrived(root: Root, name: str, files: dict[str, str], about: dict[str, Any] | None = None) -> Path:
    """A build that has been pushed: ``files`` by their path in its folder."""
    incoming = root.builds / f".incoming-{name}"
    (incoming / "site").mkdir(parents=True)
    for path, text in files.items():
        (incoming / path).parent.mkdir(parents=True, exist_ok=True)
        (incoming / path).write_text(text)
    entries = builds.manifest(incoming)
    final = root.builds / f"{name}-{builds.content_id(entries)}"
    builds.write_manifest(incoming, final.name, entries, about or {})
    builds.make_read_only(incoming / "site")
    incoming.rename(final)
    return final
