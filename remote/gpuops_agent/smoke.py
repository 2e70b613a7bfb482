"""The `smoke` verb: is the server that runs now right? A generation first, then the probes, one at a time, or the rungs of the ladder."""

from __future__ import annotations

import time
from typing import Any, Dict, List

from . import asking, beats, ladder, liveness, probes, releases
from .paths import Root, Service
from .records import ServerRecord, server_alive
from .server import Server, of_release
from .wire import AgentError, emit


def smoke(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Put the release's probes, or those of the request, to the running server; with ``level`` the rungs of the ladder up to it.

    The ladder is that of the request (``ladder``), else of the release's playbook, else ``default_ladder``; ``load`` are the engine's words.

    Returns:
        ``{verdict, passed, release, check, results}``, with ``level`` also ``{rungs, launches}``; verdict is ``right``, ``wrong`` (it serves, but
        its answers are wrong) or ``down``.
    """
    service = root.service(args["service"])
    record = server_alive(service)
    release = releases.load(service, record.release if record else None)
    if record is None or release is None:
        raise AgentError(
            f"service {service.name} runs no server",
            evidence="no live process is recorded",
            next="gpuops status",
            kind="not_running",
        )
    server = of_release(service, release)
    deadlines = release.document["deadlines"]
    timeout = args.get("timeout_s") or deadlines["generate_s"]
    check = beats.during(lambda: liveness.check(server, record, service.server_log(release.number), timeout))
    emit("check", **check.to_json())
    if check.state != liveness.SERVING:
        return {"verdict": "down", "passed": False, "release": release.number, "check": check.to_json(), "results": []}
    if args.get("level"):
        return {
            **_climb(service, server, record, release, args),
            "release": release.number,
            "check": check.to_json(),
            "results": [],
        }
    results: List[Dict[str, Any]] = []
    for probe in args.get("probes") or release.document["probes"]:
        results.append(_put(server, probe, deadlines["probe_s"]))
        emit("probe", **results[-1])
    passed = not probes.failed(results)
    return {
        "verdict": "right" if passed else "wrong",
        "passed": passed,
        "release": release.number,
        "check": check.to_json(),
        "results": results,
    }


def _climb(
    service: Service, server: Server, record: ServerRecord, release: releases.Release, args: Dict[str, Any]
) -> Dict[str, Any]:
    own = args.get("ladder") or (release.document.get("playbook") or {}).get("ladder") or {}
    # A release from before a rung existed says nothing of it.
    sections = {**args["default_ladder"], **own}
    asked = asking.Asked(
        service=service,
        server=server,
        record=record,
        release=release,
        words=args["load"],
        probes=args.get("probes") or release.document["probes"],
        timeout=release.document["deadlines"]["probe_s"],
    )
    with beats.alongside():
        climbed = ladder.climb(asked, sections, int(args["level"]))
    return {**climbed, "passed": climbed["verdict"] == asking.RIGHT}


def _put(server: Server, probe: Dict[str, Any], timeout: float) -> Dict[str, Any]:
    began = time.monotonic()
    result = beats.during(lambda: probes.run(server, probe, timeout))
    return {**result, "seconds": round(time.monotonic() - began, 3)}
