"""The `status` verb: what runs on this host, by its own evidence."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from . import caches, claims, locks, proofs, recovery, releases
from .files import read_json
from .host import facts
from .net import listeners
from .paths import Root, Service
from .proc import boottime
from .recorder import outcome
from .records import ServerRecord, lost_ranks, read_exit, run_processes, server_alive, supervisor_alive

# `status --check` asks for a generation and waits this long for it, in seconds, unless told otherwise.
CHECK_S = 30.0


def status(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Host facts and one entry a service. Without ``check`` nothing is asked of the server itself: it is quick and disturbs nobody."""
    wanted = args.get("service")
    names = [wanted] if wanted else _names(root)
    check_s = (args.get("timeout_s") or CHECK_S) if args.get("check") else None
    held = claims.claims(root)
    return {"host": facts(root), "services": [_service(root.service(name), check_s, held) for name in names]}


def _names(root: Root) -> List[str]:
    try:
        return sorted(name for name in os.listdir(root.services) if not name.startswith("."))
    except OSError:
        return []


def _service(service: Service, check_s: Optional[float], held: List[Dict[str, Any]]) -> Dict[str, Any]:
    current = releases.load(service, releases.current(service))
    record = server_alive(service)
    holder = locks.owner(service)
    told: Dict[str, Any] = {
        "service": service.name,
        "state": _state(service, record, holder),
        "release": current.number if current else None,
        "release_state": releases.state(service, current.number) if current else None,
        "known_good": releases.known_good(service),
        "summary": current.document["summary"] if current else None,
        "server": _server(service, record) if record else None,
        "exit": _exit(service) if record is None else None,
        "ranks_lost": recovery.died(service) or None,
        "cache": caches.describe(current.document.get("cache")) if current else None,
        "proof": _proof(current, record) if current and record and record.release == current.number else None,
        "gpus": [claim["id"] for claim in held if claim["kind"] == "gpu" and claim["service"] == service.name],
        "person_lock": locks.person(service),
        "operation": _operation(holder),
        "last_operation": _last_operation(service),
    }
    if current is not None:
        told["port"] = current.document["port"]
        told["foreign"] = None if record else _foreign(current.document["port"])
    if record is not None and current is not None and record.release == current.number and check_s is not None:
        told["check"] = _check(service, current, record, check_s)
    return told


def _proof(release: releases.Release, record: ServerRecord) -> Optional[Dict[str, Any]]:
    """What the living ranks prove of the build's kernels, judged now."""
    verdict = proofs.check(release, record)
    return None if verdict is None else {"build": release.document["build"]["id"], **verdict.to_json()}


def _check(service: Service, release: releases.Release, record: ServerRecord, timeout: float) -> Dict[str, Any]:
    # Imported here: HTTP costs a third of a plain status.
    from . import beats, liveness
    from .server import of_release

    server, log = of_release(service, release), service.server_log(release.number)
    return beats.during(lambda: liveness.check(server, record, log, timeout)).to_json()


def _state(service: Service, record: Optional[ServerRecord], holder: Optional[Dict[str, Any]]) -> str:
    """``rollout`` while one is playing; else ``running``, ``degraded`` (a rank is lost), ``died``, ``stopped``, or ``absent``."""
    if holder is not None:
        return "rollout"
    if record is not None:
        return "degraded" if lost_ranks(service) else "running"
    if not service.path.is_dir():
        return "absent"
    return "stopped" if releases.current(service) is None else "died"


def _server(service: Service, record: ServerRecord) -> Dict[str, Any]:
    ours = {record.pid, *(identity.pid for identity, _ in run_processes(service))}
    listening = any(listener.pid in ours for listener in listeners(record.port, likely=ours))
    return {
        "pid": record.pid,
        "release": record.release,
        "port": record.port,
        "listening": listening,
        "supervised": supervisor_alive(service),
        "uptime_s": round(boottime() - record.started_boot, 1),
        "processes": [{"pid": identity.pid, "title": title} for identity, title in run_processes(service)],
        "lost": [rank.to_json() for rank in lost_ranks(service)],
    }


def _exit(service: Service) -> Optional[Dict[str, Any]]:
    ended = read_exit(service)
    return ended.to_json() if ended else None


def _foreign(port: int) -> Optional[str]:
    found = listeners(port)
    return found[0].who if found else None


def _operation(holder: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    return {key: holder.get(key) for key in ("op", "kind", "by", "at", "reason")} if holder else None


def _last_operation(service: Service) -> Optional[Dict[str, Any]]:
    try:
        ended = [folder for folder in service.operations.iterdir() if (folder / "outcome.json").exists()]
    except OSError:
        return None
    if not ended:
        return None
    latest = max(ended, key=lambda folder: (folder / "outcome.json").stat().st_mtime)
    told = outcome(service, latest.name) or {}
    order = read_json(latest / "order.json") or {}
    keep = ("op", "outcome", "code", "release", "failed", "reason", "evidence", "class", "seconds")
    return {**{key: told[key] for key in keep if key in told}, "kind": order.get("kind")}
