"""What an order would do to a host in its present state: pure, so a dry run is exactly what `up` would decide.

Source of the idea: field-by-field diffs before anything is touched, as people know them from infrastructure tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuops.rollout.outage import Outage, expected


@dataclass(frozen=True)
class Change:
    """One difference between the running release and the wanted one."""

    key: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class Plan:
    """The steps of a rollout, and why.

    Args:
        action: ``nothing``, ``start`` (nothing runs) or ``replace`` (stop, start, gate, promote or restore).
        release: the release that runs now, and its state.
        fallback: the release that would come back when the new one fails; None when there is none.
        outage: how long the service would be without a server, by its own history; None when nothing is replaced.
    """

    action: str
    service: str
    release: int | None
    fallback: int | None
    changes: tuple[Change, ...]
    steps: tuple[str, ...]
    warnings: tuple[str, ...] = field(default=())
    outage: Outage | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "action": self.action,
            "service": self.service,
            "release": self.release,
            "fallback": self.fallback,
            "changes": [vars(change) for change in self.changes],
            "steps": list(self.steps),
            "warnings": list(self.warnings),
            "outage": self.outage.to_json() if self.outage else None,
        }


def plan(order: Mapping[str, Any], status: Mapping[str, Any], history: Mapping[str, Any]) -> Plan:
    """Compare an order with the service's ``status`` entry and ``history`` (the agent's answers)."""
    current = _release(history, status["release"])
    running = status["server"] is not None
    good = status["known_good"]
    same = current is not None and current["spec"] == order["spec"]
    found = () if same or current is None else tuple(changes(current, order))
    warnings = tuple(_warnings(order, status, history))
    if same and running and current is not None and current["state"] == "good" and good == current["release"]:
        steps: tuple[str, ...] = ("ask one probe: the wanted release is running", "change nothing")
        return Plan("nothing", order["service"], status["release"], good, (), steps, warnings)
    steps = tuple(_steps(order, status, history, running))
    action, outage = ("replace", expected(history)) if running else ("start", None)
    return Plan(action, order["service"], status["release"], good, found, steps, warnings, outage)


def changes(current: Mapping[str, Any], order: Mapping[str, Any]) -> list[Change]:
    """What an order would change of a release, as the agent's ``history`` tells it."""
    # The order's own lists are tuples until it is sent.
    old, new = current["summary"] or {}, json.loads(json.dumps(order["candidate"]["summary"]))
    flags_old, flags_new = old.get("flags", {}), new["flags"]
    found = [
        Change(key, _text(old.get(key)), _text(new[key])) for key in ("engine", "model", "build") if old.get(key) != new[key]
    ]
    for flag in sorted(flags_old.keys() | flags_new.keys()):
        if flags_old.get(flag) != flags_new.get(flag):
            found.append(Change(f"server.flags.{flag}", _text(flags_old.get(flag)), _text(flags_new.get(flag))))
    runtime = order["prepare"]["runtime"]
    wanted = runtime.get("id") or f"path:{runtime['path']}"
    if current["runtime"] != wanted:
        found.append(Change("runtime", current["runtime"], wanted))
    return [*found, *_other_changes(current.get("playbook"), order["candidate"].get("playbook"))]


def _other_changes(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> list[Change]:
    """What the playbooks say differently of the server besides its flags; none where the release's is not known."""
    if not old or not new:
        return []
    before, after = _said(old), _said(new)
    return [
        Change(key, _text(before.get(key)), _text(after.get(key)))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _said(playbook: Mapping[str, Any]) -> dict[str, Any]:
    server = playbook.get("server") or {}
    env = {f"server.env.{name}": value for name, value in (server.get("env") or {}).items()}
    return {
        **{f"server.{key}": server.get(key) for key in ("port", "bind", "served_model_name")},
        **env,
        "gpus": playbook.get("gpus"),
    }


def _steps(order: Mapping[str, Any], status: Mapping[str, Any], history: Mapping[str, Any], running: bool) -> list[str]:
    prepare = order["prepare"]
    known = {entry["runtime"] for entry in history["releases"]}
    runtime = prepare["runtime"]
    steps = []
    if runtime["kind"] == "path":
        steps.append(f"use the runtime {runtime['path']} as it is")
    elif runtime["id"] in known:
        steps.append(f"runtime {runtime['id']} is in place")
    else:
        size = runtime.get("download_bytes")
        steps.append(f"make the runtime {runtime['id']}" + (f" (about {size / 1e6:.0f} MB to download)" if size else ""))
    if prepare["build"]:
        steps.append(
            f"build {prepare['build'].get('name') or prepare['build']['id']} in place, imported by the runtime, its kernels compiled"
        )
    steps.append(f"model {prepare['model'].get('id') or prepare['model']['path']} in place and complete")
    good = _good_again(order, history)
    steps.append(f"start release {good} again: it is good and has this content" if good else "stage a new release")
    if running:
        steps.append(f"stop release {status['release']} (pid {status['server']['pid']}), with proof")
    steps.append("start, and wait for: process, port, identity, generation")
    count = len(order["probes"])
    steps.append(f"put {count} probe{'' if count == 1 else 's'}")
    if order.get("ladder"):
        steps.append(f"put it to rungs 1 to {order['ladder']['level']} of the ladder")
    if order.get("performance"):
        gate, cells = order["performance"]["gate"], [cell["name"] for cell in order["performance"]["cells"]]
        steps.append(f"measure {', '.join(cells)} against the known-good release ({gate})")
    steps.append(
        "promote; there is nothing to restore"
        if status["known_good"] is None
        else f"promote; or restore release {status['known_good']}"
    )
    return steps


def _good_again(order: Mapping[str, Any], history: Mapping[str, Any]) -> int | None:
    for entry in history["releases"]:
        if entry["spec"] == order["spec"] and entry["state"] == "good":
            number: int = entry["release"]
            return number
    return None


def _warnings(order: Mapping[str, Any], status: Mapping[str, Any], history: Mapping[str, Any]) -> list[str]:
    warnings = []
    if status["operation"]:
        warnings.append(f"a rollout is running: {status['operation']['kind']} {status['operation']['op']}")
    if status.get("foreign"):
        warnings.append(f"the port is taken by a foreign process: {status['foreign']}")
    if not order["probes"]:
        warnings.append("the playbook has no probes: wrong answers will not be noticed")
    back = _back_from_a_swap(order, status, history)
    if back:
        warnings.append(back)
    bad = [entry["release"] for entry in history["releases"] if entry["spec"] == order["spec"] and entry["state"] == "bad"]
    if bad:
        warnings.append(f"release {bad[0]} had the same content and is bad; this would be a new attempt")
    return warnings


def _back_from_a_swap(order: Mapping[str, Any], status: Mapping[str, Any], history: Mapping[str, Any]) -> str:
    """What to know when the running build came by a swap, and this order brings the playbook's own; empty when not."""
    current = _release(history, status["release"])
    if current is None or not current.get("swap") or order.get("swap") or current["spec"] == order["spec"]:
        return ""
    build = order["candidate"]["summary"]["build"] or "no build"
    return f"release {current['release']} runs the build {current['build']}, put in by gpuops swap: this goes back to the playbook's, {build}"


def _release(history: Mapping[str, Any], number: int | None) -> Mapping[str, Any] | None:
    return next((entry for entry in history["releases"] if entry["release"] == number), None)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
