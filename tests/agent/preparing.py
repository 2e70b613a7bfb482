"""What tests of preparation need: tiny wheels, an index of them, and the agent's `Work`, in this process."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent.paths import Root
from gpuops_agent.prepare import Work
from gpuops_agent.proc import boottime


class Bench:
    """A ROOT, and pip that sees only the wheels in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = Root(folder / "root")
        self.root.path.mkdir(parents=True, exist_ok=True)
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.events: list[dict[str, Any]] = []
        self.cancel = threading.Event()
        self.log = folder / "prepare.log"
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(self.wheels))
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")

    def work(self, seconds: float = 120.0) -> Work:
        return Work(self._hear, self.log, self.cancel.is_set, boottime() + seconds)

    def phases(self) -> list[str]:
        return [event["phase"] for event in self.events if event["event"] == "phase"]

    def wheel(self, name: str, version: str = "1.0", **files: bytes | str) -> Path:
        """A wheel of ``name`` whose package holds ``files`` (``data_bin`` is the file ``data.bin``)."""
        path = self.wheels / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name}/__init__.py", f"VERSION = {version!r}\n")
            for file, content in files.items():
                archive.writestr(f"{name}/{file.replace('_', '.')}", content)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return path

    def _hear(self, name: str, /, **fields: Any) -> None:
        self.events.append({"event": name, **fields})


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
