"""JIT caches as people read about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.report.style import columns
from gpuops.report.words import ago, plural, size

if TYPE_CHECKING:
    from gpuops.builds.caches import Cached

Told = Mapping[str, Any]


def listed(caches: Sequence[Told], host: str, now: float, *, verbose: bool) -> list[str]:
    """A line a cache; its parts and all versions only when ``verbose``."""
    lines = [f"{plural(len(caches), 'cache')} on {host}"]
    rows = [
        [each["key"], each["build"] or "?", size(each["bytes"]), _card(each), _last(each, now), _users(each)] for each in caches
    ]
    for each, line in zip(caches, columns(rows), strict=True):
        lines.append(f"  {line}")
        if verbose:
            versions = ", ".join(f"{name} {version}" for name, version in (each["versions"] or {}).items())
            lines += [f"    versions  {versions}", f"    files     {_parts(each['files'])}"]
    return lines


def saved(file: Cached, out: Path) -> list[str]:
    """What was written, and how to use it."""
    parts = "" if len(file.files) == 1 else f" in {plural(len(file.files), 'part')}"
    caches = file.index["caches"]
    rows = [[each["key"], each["build"], _card(each), plural(len(each["files"]), "file")] for each in caches]
    return [
        f"{out}: {plural(len(caches), 'cache')}, {size(file.bytes)}{parts}, {size(file.unpacked)} unpacked ({file.id})",
        *(f"  {line}" for line in columns(rows)),
        f"  next        gpuops caches load {out}, before the first `gpuops up` on another host",
    ]


def loaded(told: Told, host: str) -> list[str]:
    """A line a cache: put there, or left as it was; and what is to know of them."""
    rows = [
        [f"+ {each['key']}", each["build"], f"{plural(each['entries'], 'file')}, {size(each['bytes'])}"]
        for each in told["loaded"]
    ]
    rows += [[f"= {each['key']}", each["build"], f"left as it is: {each['why']}"] for each in told["there"]]
    return [f"{plural(len(told['loaded']), 'cache')} loaded on {host}", *(f"  {line}" for line in columns(rows)), *told["notes"]]


def carried(told: Told) -> list[str]:
    """The same for caches that came in a bundle: nothing of those that the host had already, but those that do not fit it."""
    came = [
        f"{each['key']} of {each['build']} came with the bundle: {plural(each['entries'], 'file')}" for each in told["loaded"]
    ]
    unfit = [f"{each['key']} of {each['build']} is not loaded: it {each['why']}" for each in told["unfit"]]
    return [f"cache {text}" for text in (*came, *unfit, *(told["notes"] if came else ()))]


def _card(cache: Told) -> str:
    torch, triton = ((cache.get("versions") or {}).get(name) for name in ("torch", "triton"))
    known = [f"{name} {version}" for name, version in (("torch", torch), ("Triton", triton)) if version]
    return ", ".join([str(cache.get("card") or "?"), *known])


def _last(cache: Told, now: float) -> str:
    last = cache["last_start"]
    if last:
        return f"last start {ago(last['at'], now)}: {plural(last['misses'], 'miss', 'misses')}"
    came = cache["came"]
    return f"from {came['from']}, not started with yet" if came else "not started with yet"


def _users(cache: Told) -> str:
    by: dict[str, list[str]] = {}
    for use in cache["used_by"]:
        marks = [word for word, on in (("current", use["current"]), ("known-good", use["known_good"])) if on]
        by.setdefault(use["service"], []).append(f"{use['release']}" + (f" ({', '.join(marks)})" if marks else ""))
    if not by:
        return "put aside: it was damaged" if "." in cache["key"] else "no release uses it"
    return "; ".join(f"{service} {', '.join(releases)}" for service, releases in by.items())


def _parts(files: Mapping[str, int]) -> str:
    return ", ".join(f"{part or 'others'} {count}" for part, count in sorted(files.items())) or "none"
