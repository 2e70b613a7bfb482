"""The journal: one durable line for every change of state; links and state files are views of it."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator

from .files import append_line
from .paths import Service
from .proc import boot_id, boottime
from .wire import event, line


def write(service: Service, name: str, /, **fields: Any) -> Dict[str, Any]:
    """Append one entry and wait for the disk.

    ``t`` is the wall clock (seconds), ``boot`` CLOCK_BOOTTIME (seconds, never jumps) with ``boot_id`` to tell machines' lives apart.
    """
    entry = event(name, boot=round(boottime(), 3), boot_id=boot_id(), **fields)
    append_line(service.journal, line(entry))
    return entry


def entries(service: Service) -> Iterator[Dict[str, Any]]:
    """The readable entries, oldest first. A line that was cut by a crash is skipped."""
    try:
        raw = service.journal.read_bytes()
    except OSError:
        return
    for text in raw.splitlines():
        try:
            entry = json.loads(text)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry
