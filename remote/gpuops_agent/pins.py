"""Pinned releases: ``releases/<n>/pin.json`` keeps a release, and all that it uses, from being pruned."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, Optional

from . import journal, releases
from .files import read_json, sync_folder, write_json
from .paths import Root, Service
from .wire import AgentError


def pin(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The verb `pin {service, release, by, reason?}`: pinning again replaces the reason. Raises AgentError when there is no such release."""
    service, number = _asked(root, args)
    told = {"by": args.get("by"), "reason": args.get("reason"), "at": round(time.time(), 3)}
    journal.write(service, "pinned", release=number, by=told["by"], reason=told["reason"])
    write_json(_file(service, number), told)
    return {"release": number, "pinned": told}


def unpin(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The verb `unpin {service, release, by}`: ``was`` is what it was pinned with. Raises AgentError when there is no such release."""
    service, number = _asked(root, args)
    was = pinned(service, number)
    if was is not None:
        journal.write(service, "unpinned", release=number, by=args.get("by"))
        for path in (_file(service, number), _aside(service, number)):
            path.unlink(missing_ok=True)
        sync_folder(service.release(number))
    return {"release": number, "was": was}


def pinned(service: Service, number: int) -> Optional[Dict[str, Any]]:
    """``{by, reason, at}`` of a pinned release, else None. A pin that cannot be read holds all the same."""
    told = read_json(_file(service, number))
    if told is None and _aside(service, number).exists():
        return {"by": None, "reason": "its pin.json is unreadable", "at": None}
    return told


def _asked(root: Root, args: Dict[str, Any]) -> "tuple[Service, int]":
    service, number = root.service(args["service"]), int(args["release"])
    if number not in releases.numbers(service):
        known = ", ".join(map(str, releases.numbers(service)[-10:]))
        raise AgentError(
            f"service {service.name} has no release {number}",
            evidence=f"the newest are {known}" if known else "it has none at all",
            next="gpuops history",
            kind="no_release",
        )
    return service, number


def _file(service: Service, number: int) -> Path:
    return service.release(number) / "pin.json"


def _aside(service: Service, number: int) -> Path:
    # Where files.read_json puts what it cannot read.
    return service.release(number) / "pin.json.unreadable"
