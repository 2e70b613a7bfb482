"""The agent as one zipapp, named by its content.

The archive is reproducible (sorted names, fixed timestamps and modes, no compression), so the same sources have the same name on every laptop, and
a host that has a file of that name has exactly this agent.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuops.errors import GpuopsError

PACKAGE = "gpuops_agent"

_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Zipapp:
    """The packed agent: its bytes and the first 16 hex digits of their sha256."""

    data: bytes
    sha: str

    @property
    def name(self) -> str:
        return f"{self.sha}.pyz"


@cache
def zipapp() -> Zipapp:
    """Pack the agent's sources.

    Raises:
        GpuopsError: the installation lacks them.
    """
    buffer = io.BytesIO()
    # Stored, not deflated: Python reads it a little faster, and ssh compresses if it is asked to.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", (sources() / "zipapp_main.py").read_bytes())
        for path in sorted((sources() / PACKAGE).glob("*.py")):
            _add(archive, f"{PACKAGE}/{path.name}", path.read_bytes())
    data = buffer.getvalue()
    return Zipapp(data, hashlib.sha256(data).hexdigest()[:16])


def sources() -> Path:
    """The folder that holds the agent's sources: inside the installed package, or ``remote`` beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    for folder in (here / "_remote", here.parent / "remote"):
        if (folder / PACKAGE / "__main__.py").exists():
            return folder
    raise GpuopsError(
        "this installation of gpuops has no agent in it", evidence=f"looked beside {here}", next="install gpuops again"
    )


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    archive.writestr(info, data)
