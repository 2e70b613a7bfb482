"""The agent as one zipapp, named by its content.

The name is a hash over the sources, and the archive is reproducible (sorted names, fixed timestamps and modes, no compression): the same sources give
the same file of the same name on every laptop, and a host that has a file of that name has exactly this agent. The archive is only built when a host
lacks it; a status needs no more than the name.
"""

from __future__ import annotations

import hashlib
import io
from functools import cache
from pathlib import Path

from gpuops.errors import GpuopsError

PACKAGE = "gpuops_agent"

_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def name() -> str:
    """The zipapp's file name: 16 hex digits over the names and contents of its members.

    Raises:
        GpuopsError: the installation lacks the agent's sources.
    """
    digest = hashlib.sha256()
    for member, path in _members():
        data = path.read_bytes()
        digest.update(f"{member}\0{len(data)}\0".encode())
        digest.update(data)
    return f"{digest.hexdigest()[:16]}.pyz"


def archive() -> bytes:
    """The zipapp itself. Raises GpuopsError as :func:`name`."""
    import zipfile

    buffer = io.BytesIO()
    # Stored, not deflated: Python reads it a little faster, and ssh compresses if it is asked to.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for member, path in _members():
            info = zipfile.ZipInfo(member, _EPOCH)
            info.external_attr = 0o644 << 16
            file.writestr(info, path.read_bytes())
    return buffer.getvalue()


def sources() -> Path:
    """The folder that holds the agent's sources: inside the installed package, or ``remote`` beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    for folder in (here / "_remote", here.parent / "remote"):
        if (folder / PACKAGE / "__main__.py").exists():
            return folder
    raise GpuopsError(
        "this installation of gpuops has no agent in it", evidence=f"looked beside {here}", next="install gpuops again"
    )


def _members() -> list[tuple[str, Path]]:
    """(name in the archive, source file), in the archive's order."""
    folder = sources()
    modules = sorted((folder / PACKAGE).glob("*.py"))
    return [("__main__.py", folder / "zipapp_main.py"), *((f"{PACKAGE}/{path.name}", path) for path in modules)]
