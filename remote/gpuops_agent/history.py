"""The `history` verb: the releases of a service with their states, and its operations with their outcomes."""

from __future__ import annotations

from typing import Any, Dict, List

from . import pins, releases
from .files import read_json
from .paths import Root, Service
from .recorder import outcome


def history(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Newest first, at most ``limit`` of each."""
    service = root.service(args["service"])
    limit = int(args.get("limit") or 20)
    current = releases.meant(service)
    return {
        "service": service.name,
        "current": releases.current(service),
        "known_good": releases.known_good(service),
        "releases": [
            _release(service, number, number == current) for number in sorted(releases.numbers(service), reverse=True)[:limit]
        ],
        "operations": _operations(service)[:limit],
    }


def _release(service: Service, number: int, current: bool) -> Dict[str, Any]:
    """A release; the current one with its playbook, against which a plan compares."""
    release = releases.load(service, number)
    document = release.document if release else {}
    gates = read_json(service.release(number) / "gates.json")
    return {
        "release": number,
        **releases.state(service, number),
        "pinned": pins.pinned(service, number),
        "spec": document.get("spec"),
        "base": document.get("base"),
        "swap": bool(document.get("swap")),
        "by": document.get("by"),
        "port": document.get("port"),
        "build": (document.get("build") or {}).get("id"),
        "runtime": (document.get("runtime") or {}).get("id"),
        "model": document.get("model"),
        "engine": {key: document.get("engine", {}).get(key) for key in ("name", "version")},
        "summary": document.get("summary"),
        "argv": document.get("argv"),
        "probes": gates.get("probes") if gates else None,
        **({"playbook": document.get("playbook")} if current else {}),
    }


def _operations(service: Service) -> List[Dict[str, Any]]:
    try:
        folders = [folder for folder in service.operations.iterdir() if folder.is_dir()]
    except OSError:
        return []
    told = []
    for folder in folders:
        order = read_json(folder / "order.json") or {}
        began = (folder / "order.json").stat().st_mtime if order else 0.0
        ended = outcome(service, folder.name) or {"outcome": "running or cut"}
        # An outcome has a `kind` of its own, that of the failure; here it is the order's.
        told.append({**ended, "op": folder.name, "at": round(began, 3), "kind": order.get("kind"), "by": order.get("by")})
    return sorted(told, key=lambda entry: entry["at"], reverse=True)
