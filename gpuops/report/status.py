"""What runs on a host, as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.report.style import Paint, fields
from gpuops.report.words import ago, duration, how_it_ended, plural, size, summary

Told = Mapping[str, Any]

_STATES = {
    "running": "green",
    "rollout": "yellow",
    "degraded": "yellow",
    "died": "red",
    "stopped": "dim",
    "absent": "dim",
}
_MANY_PROCESSES = 6
_LONGEST_TITLE = 60


def lines(status: Told, host: str, now: float, paint: Paint) -> list[str]:
    """One block a service, or one line that says there is none. ``now`` in seconds since the epoch."""
    if not status["services"]:
        free = size(status["host"]["disk_free"])
        return [f"{host}: no service ({free} free in {status['host']['root']}); gpuops up PLAYBOOK starts one"]
    told: list[str] = []
    for service in status["services"]:
        told += [*([""] if told else []), *_service(service, host, now, paint)]
    return told


def _service(service: Told, host: str, now: float, paint: Paint) -> list[str]:
    state = paint.styled(_STATES.get(service["state"], "bold"), service["state"])
    pairs = [
        *_person_lock(service, now),
        *_operation(service, now),
        *_release(service),
        *_server(service),
        *_kernels(service, paint),
        *_cache(service, now),
        *_end(service, now),
        *_check(service, paint),
        *_foreign(service, paint),
        *_last(service),
    ]
    return [f"{paint.bold(service['service'])} on {host}: {state}", *fields(pairs)]


def _person_lock(service: Told, now: float) -> list[tuple[str, str]]:
    held = service.get("person_lock")
    if held is None:
        return []
    return [("locked", f"by {held['by']}, {ago(held['at'], now)}: {held['reason']}; gpuops unlock removes it")]


def _operation(service: Told, now: float) -> list[tuple[str, str]]:
    operation = service["operation"]
    if operation is None:
        return []
    begun = ago(operation.get("at"), now)
    return [("rollout", f"{operation['kind']} {operation['op']} by {operation['by']}, begun {begun}; gpuops attach follows it")]


def _release(service: Told) -> list[tuple[str, str]]:
    number, good = service["release"], service["known_good"]
    known_good = "none known-good" if good is None else "known-good" if good == number else f"known-good is {good}"
    if number is None:
        return [] if good is None else [("release", f"none; {known_good}")]
    state = service["release_state"] or {}
    named = state.get("state", "unknown")
    why = f"\n{state['reason']}" if state.get("reason") else ""
    return [("release", f"{number} ({named}), {known_good}{why}"), ("content", summary(service["summary"]))]


def _server(service: Told) -> list[tuple[str, str]]:
    server = service["server"]
    if server is None:
        return []
    listening = "" if server["listening"] else " (not listening)"
    watched = "supervised" if server["supervised"] else "NOT supervised: nobody will record its end"
    other = "" if server["release"] == service["release"] else f", release {server['release']}"
    told = [
        ("server", f"pid {server['pid']}, port {server['port']}{listening}, up {duration(server['uptime_s'])}, {watched}{other}")
    ]
    if service.get("gpus"):
        told.append(("gpus", ", ".join(service["gpus"])))
    if server["processes"]:
        told.append(("processes", _processes(server["processes"])))
    return told + _lost(service, server["lost"])


def _lost(service: Told, ranks: list[Told]) -> list[tuple[str, str]]:
    """The ranks that were lost, in the agent's words; an older one has none."""
    if service.get("ranks_lost"):
        return [("lost", service["ranks_lost"])]
    return [("lost rank", f"{rank['title']} (pid {rank['pid']}) {how_it_ended(rank)}") for rank in ranks]


def _kernels(service: Told, paint: Paint) -> list[tuple[str, str]]:
    found = service.get("proof")
    if found is None:
        return []
    text = f"{found['build']}: {found['text']}"
    return [("kernels", text if found["passed"] else paint.red(text))]


def _cache(service: Told, now: float) -> list[tuple[str, str]]:
    cache = service.get("cache")
    if cache is None:
        return []
    name = cache["path"].rpartition("/")[2]
    if cache["entries"] is None:
        held = "not used yet"
    elif cache["entries"] == 0:
        held = "empty: nothing was compiled"
    else:
        warm = "warm: the last start added nothing" if cache["misses"] == 0 else f"the last start added {cache['misses']}"
        held = f"{plural(cache['entries'], 'entry', 'entries')}, {size(cache['bytes'])}, {warm}"
    seed = cache["seeded_from"]
    origin = f"; seeded from that of {seed['build']} ({plural(seed['files'], 'file')})" if seed else ""
    fresh = f"; fresh since {ago(cache['created'], now)}: the old one was damaged" if cache.get("reset") else ""
    return [("cache", f"{name}: {held}{origin}{fresh}")]


def _processes(processes: list[Told]) -> str:
    named = [f"{_short(process['title'])} ({process['pid']})" for process in processes[:_MANY_PROCESSES]]
    more = len(processes) - len(named)
    return f"{len(processes)}: {', '.join(named)}" + (f" and {more} more" if more else "")


def _short(title: str) -> str:
    program, _, arguments = title.partition(" ")
    # What tells processes apart is the program and its first words, not the folder it lies in.
    title = f"{program.rpartition('/')[2]} {arguments}".rstrip() if "/" in program else title
    return title if len(title) <= _LONGEST_TITLE else f"{title[:_LONGEST_TITLE]}..."


def _end(service: Told, now: float) -> list[tuple[str, str]]:
    ended = service["exit"]
    if ended is None or service["state"] != "died":
        return [("ended", "nobody recorded how")] if service["state"] == "died" else []
    told = [("ended", f"pid {ended['pid']} of release {ended['release']} {how_it_ended(ended)}, {ago(ended['at'], now)}")]
    rank = ended.get("last_lost_rank")
    if rank and service.get("ranks_lost"):
        told.append(("lost", f"{service['ranks_lost']}, before it"))
    elif rank:
        told.append(("lost rank", f"{rank['title']} (pid {rank['pid']}) {how_it_ended(rank)}, before it"))
    return told


def _check(service: Told, paint: Paint) -> list[tuple[str, str]]:
    check = service.get("check")
    if check is None:
        return []
    state = paint.green(check["state"]) if check["state"] == "serving" else paint.red(check["state"])
    return [("check", f"{state}: {check['evidence']}")]


def _foreign(service: Told, paint: Paint) -> list[tuple[str, str]]:
    if not service.get("foreign"):
        return []
    return [("port", paint.red(f"{service['port']} is taken by a process that is not ours: {service['foreign']}"))]


def _last(service: Told) -> list[tuple[str, str]]:
    last = service["last_operation"]
    if last is None:
        return []
    failed = f" release {last['failed']} failed:" if last.get("failed") is not None else ""
    name = f" {last['class']}:" if last.get("class") else ""
    reason = f":{failed}{name} {last['reason']}" if last.get("reason") else ""
    took = f" in {duration(last['seconds'])}" if "seconds" in last else ""
    evidence = f"\n{last['evidence']}" if last.get("evidence") else ""
    which = f" (release {last['release']})" if last.get("release") is not None else ""
    return [("last", f"{last['kind'] or 'operation'}: {last['outcome']}{which}{took}{reason}{evidence}")]
