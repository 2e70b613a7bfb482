"""The `evidence` verb: everything that is kept with releases about how right and how fast they are, for a report."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import ladder, measurements, releases
from .files import read_json
from .paths import Root, Service
from .releases import Release
from .wire import AgentError


def evidence(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """What is known of releases.

    Args (of the request): ``service``, ``releases`` (numbers; null: the current and the known-good one), ``launches`` (only blocks of these starts;
        null: all).
    Returns:
        ``{service, current, known_good, releases: [{release, state, summary, build, runtime, model, engine, fingerprint, gates, ladder, blocks}]}``
    Raises:
        AgentError: there is no such release.
    """
    service = root.service(args["service"])
    wanted = args.get("releases") or [releases.meant(service), releases.known_good(service)]
    launches: Optional[List[str]] = args.get("launches")
    numbers = list(dict.fromkeys(number for number in wanted if number is not None))
    if not numbers:
        raise AgentError(f"service {service.name} has no release", next="gpuops up", kind="no_release")
    return {
        "service": service.name,
        "current": releases.current(service),
        "known_good": releases.known_good(service),
        "releases": [_told(service, _release(service, number), launches) for number in numbers],
    }


def _release(service: Service, number: int) -> Release:
    release = releases.load(service, number)
    if release is None:
        raise AgentError(f"there is no release {number}", next="gpuops history", kind="no_release")
    return release


def _told(service: Service, release: Release, launches: Optional[List[str]]) -> Dict[str, Any]:
    document = release.document
    blocks = measurements.load(service, release.number)
    return {
        "release": release.number,
        "state": releases.state(service, release.number),
        "summary": document.get("summary"),
        "build": document.get("build"),
        "runtime": (document.get("runtime") or {}).get("id"),
        "model": document.get("model"),
        "engine": {key: (document.get("engine") or {}).get(key) for key in ("name", "version")},
        "fingerprint": read_json(release.path / "fingerprint.json"),
        "gates": read_json(release.path / "gates.json"),
        "ladder": ladder.entries(release),
        "blocks": [each for each in blocks if launches is None or each.get("launch") in launches],
    }
