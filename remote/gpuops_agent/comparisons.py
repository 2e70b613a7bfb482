"""Records of A/B comparisons: one JSON file each, whole or not at all, beside the releases; and the noise of this host, which equals show.

The records lie with the service, and not on the laptop that began them: whoever comes next can go on with a comparison that was cut, and the
performance gate finds the noise where it needs it. What they mean is the controller's business (``gpuops/measure/ab.py``); here they are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from . import ab_lease, releases
from .ab_lease import Lease
from .files import disk_error, read_json, write_json
from .paths import Root, Service
from .prepare import card
from .releases import Release
from .wire import REFUSED, AgentError

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


@dataclass(frozen=True)
class Noise:
    """How much equal launches differ by chance: the standard deviation of a pair's log ratio, over so many pairs, and who showed it."""

    sd: float
    pairs: int
    comparison: str


def save(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The `ab.save` verb: keep a comparison's record in place of its former one. What the host knows of the stack is added to it.

    The record's ``token`` says whose turn it is: with ``take`` the comparison is the writer's from now on, and whoever played it before is refused.
    ``take`` with ``lease_s`` also begins the lease, under which the comparison's launches serve; a record with ``back`` ends it: the host is home.

    Raises:
        AgentError: it has no usable id; another process goes on with the comparison, or the host has ended it (kind ``taken``, code 13); the disk
            does not take it.
    """
    service, record = root.service(args["service"]), args["record"]
    path = _path(service, record["id"])
    with ab_lease.alone(service):
        return _save(service, path, record, args)


def _save(service: Service, path: Path, record: Dict[str, Any], args: Dict[str, Any]) -> Dict[str, Any]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, path) from error
    former = read_json(path)
    if former is not None and former.get("token") != record["token"] and not args.get("take"):
        raise AgentError(
            f"another process goes on with comparison {record['id']}" if former.get("token") else str(former.get("reason")),
            evidence=f"the record was taken over by {former.get('by')}"
            if former.get("token")
            else "the host has ended the comparison",
            next=f"gpuops report --ab {record['id']}",
            code=REFUSED,
            kind=ab_lease.TAKEN,
        )
    home = releases.load(service, record.get("home"))
    write_json(path, {**record, "stack": stack(home) if home else None})
    if args.get("take") and args.get("lease_s"):
        ab_lease.grant(service, record["id"], record["token"], float(args["lease_s"]))
    elif record.get("back") is not None:
        ab_lease.drop(service)
    return {"id": record["id"]}


def close(service: Service, lease: Lease, reason: str, back: Optional[Dict[str, Any]]) -> None:
    """End a comparison from here: its record is free for whoever goes on with it, and its controller is refused. Raises AgentError (full disk)."""
    with ab_lease.alone(service):
        now = ab_lease.held(service)
        if now is None or now.token != lease.token:
            # Somebody goes on with it already.
            return
        try:
            record = read_json(_path(service, lease.comparison)) if lease.comparison else None
            if record is not None and record.get("token") == lease.token:
                write_json(
                    _path(service, lease.comparison),
                    {**record, "state": "interrupted", "reason": reason, "back": back, "token": ""},
                )
        finally:
            ab_lease.drop(service)


def load(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The `ab.load` verb: the record of ``id``, or of the comparison that began last.

    Raises:
        AgentError: there is no such record; the known ones are listed.
    """
    service, wanted = root.service(args["service"]), args.get("id")
    known = records(service)
    found = [record for record in known if wanted is None or record["id"] == wanted]
    if found:
        return found[-1]
    which = f"no comparison {wanted}" if wanted else "no comparison"
    raise AgentError(
        f"service {service.name} has {which}",
        evidence=f"comparisons: {', '.join(each['id'] for each in known[-5:])}" if known else "none was ever begun",
        next="gpuops ab A B",
        kind="no_comparison",
    )


def listed(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The `ab.list` verb: the service's comparisons in few words, the newest last; ``done`` counts launches."""
    keep = ("id", "by", "began", "a", "b", "equal", "margin", "pairs", "state", "noise")
    told = [
        {**{key: record.get(key) for key in keep}, "done": len(record["launches"])}
        for record in records(root.service(args["service"]))
    ]
    return {"comparisons": told}


def records(service: Service) -> List[Dict[str, Any]]:
    """Every readable record, in the order in which the comparisons began."""
    found = [read_json(path) for path in sorted(_folder(service).glob("*.json"))]
    return sorted((each for each in found if each is not None and "began" in each), key=lambda each: float(each["began"]))


def noise(service: Service, release: Release, block: Mapping[str, Any]) -> Optional[Noise]:
    """What the latest comparison of equals on this stack has shown for a block's cell and client; None without one."""
    here = stack(release)
    for record in reversed(records(service)):
        if record.get("stack") != here:
            continue
        for each in record.get("noise") or ():
            if each["cell"] == block["cell"] and each["client"] == block["client"]:
                return Noise(each["sd"], each["pairs"], record["id"])
    return None


def stack(release: Release) -> Dict[str, Any]:
    """What noise belongs to besides the cell: the card, and everything under the build."""
    document = release.document
    engine, model = document.get("engine") or {}, document.get("model") or {}
    return {
        "card": card(),
        "engine": [engine.get("name"), engine.get("version")],
        "runtime": (document.get("runtime") or {}).get("id"),
        "model": model.get("identity") or model.get("path"),
    }


def _folder(service: Service) -> Path:
    return service.path / "ab"


def _path(service: Service, name: Any) -> Path:
    if not isinstance(name, str) or not _ID.match(name):
        raise AgentError(f"{name!r} is not a comparison's id", code=2, kind="usage")
    return _folder(service) / f"{name}.json"
