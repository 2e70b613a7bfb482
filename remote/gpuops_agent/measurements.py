"""Measurements on disk: one JSON line a block, beside the release that was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import files, releases
from .paths import Service

NAME = "measurements.jsonl"

# What makes two measurements comparable: the same question, put by the same client.
_KEYS = ("cell", "client", "path")


def path(service: Service, release: int) -> Path:
    return service.release(release) / NAME


def append(service: Service, release: int, block: Dict[str, Any]) -> None:
    """Keep a block, valid or not. Raises AgentError when the disk does not take it."""
    files.append_line(
        path(service, release), json.dumps(block, separators=(",", ":"), ensure_ascii=False).encode("utf-8") + b"\n"
    )


def load(service: Service, release: int) -> List[Dict[str, Any]]:
    """Every block of a release, the oldest first; a line that is no record (cut by a crash) is left out."""
    try:
        lines = path(service, release).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "cell" in value and "valid" in value:
            found.append(value)
    return found


def launches_of_known_good(service: Service, block: Dict[str, Any]) -> List[List[Dict[str, Any]]]:
    """The valid blocks of the known-good release at a block's cell, by the same client: one list a start of its server, the oldest first."""
    good = releases.known_good(service)
    launches: Dict[Any, List[Dict[str, Any]]] = {}
    for each in load(service, good) if good is not None else ():
        if each["valid"] and _same(each, block) and each.get("launch") != block.get("launch"):
            launches.setdefault(each.get("launch"), []).append(each)
    return list(launches.values())


def reference(service: Service, release: int, block: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """What a block is held against: the latest valid one of the known-good release at the same cell, else None.

    For the known-good release itself that is its own, from another start of the server where there is one: what a start changes by chance is noise
    that a comparison with a candidate has too.
    """
    good = releases.known_good(service)
    if good is None:
        return None
    same = [each for each in load(service, good) if each["valid"] and _same(each, block)]
    earlier = [each for each in same if good != release or each["at"] < block["at"]]
    others = [each for each in earlier if each.get("launch") != block.get("launch")]
    chosen = others or earlier
    return chosen[-1] if chosen else None


def _same(one: Dict[str, Any], other: Dict[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in _KEYS)
