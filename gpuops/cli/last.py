"""The playbook that `up` used last in each folder, so that `gpuops status` there needs no options."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The most folders that are remembered; the oldest go first.
FOLDERS = 100

# What of --set says where a service runs. The rest stays out: it changes nothing of where, and may hold what nobody should find in a file.
_PLACES = ("service", "host")


@dataclass(frozen=True)
class Used:
    """A playbook (absolute path) with the options that changed where its service runs."""

    playbook: str
    host: str | None = None
    overrides: tuple[str, ...] = ()


def remember(folder: Path, playbook: Path, host: str | None, overrides: Sequence[str], service: str | None = None) -> None:
    """Note what was used in a folder. A file that cannot be written is no reason to fail: it is only a convenience."""
    places = [text for text in overrides if text.partition("=")[0].split(".")[0] in _PLACES]
    if service is not None:
        places.append(f"service={service}")
    known = _read()
    known.pop(str(folder), None)
    known[str(folder)] = {"playbook": str(playbook.absolute()), "host": host, "overrides": places}
    kept = dict(list(known.items())[-FOLDERS:])
    path = state_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        return


def recall(folder: Path) -> Used | None:
    """What was used last in a folder, if its playbook is still there."""
    entry: Any = _read().get(str(folder))
    try:
        used = Used(entry["playbook"], entry["host"], tuple(entry["overrides"]))
    except (KeyError, TypeError):
        return None
    return used if Path(used.playbook).is_file() else None


def state_file(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_STATE_HOME/gpuops/last.json`` (XDG Base Directory Specification, 0.8)."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "gpuops" / "last.json"


def _read() -> dict[str, Any]:
    try:
        known = json.loads(state_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
