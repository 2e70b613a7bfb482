"""The verbs `cache.list`, `cache.pack`, `cache.get` and `cache.drop`: what caches the host has, and taking them to another one, whose first start
then compiles nothing. A packed file (:mod:`cache_file`) stays until it has been fetched in pieces; :mod:`cache_load` is the other end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List

from . import beats, bundles, cache_file, caches, inventory, releases
from .caches import Identity
from .files import disk_error, read_json
from .paths import Root, Service
from .wire import AgentError, send_file

Json = Dict[str, Any]


def listed(root: Root, args: Json) -> Json:
    """Every cache of the host.

    Returns:
        ``{caches: [{key, build, card, runtime, versions, created, came, reset, entries, bytes, files, last_start, used_by: [{service, release,
        current, known_good}]}]}``
    """
    return beats.during(lambda: _listed(root))


def pack(root: Root, args: Json) -> Json:
    """Pack caches into one file, which stays until ``cache.drop``.

    Args: ``service``; which of them: ``keys`` (beginnings of them), ``releases`` (numbers, of the service), ``everything``, or none of these:
        those of the service's known-good and current release.
    Returns:
        ``{id, bytes, caches: [{key, build, card, entries, bytes}], left_out: [{key, why}]}``
    Raises:
        AgentError: there is no such cache, or none that another host could use.
    """
    return beats.during(lambda: _pack(root, args))


def get(root: Root, args: Json) -> Json:
    """Send a packed file from ``offset`` on, as ``chunk`` events of base64. Returns ``{bytes}``: its size. Raises AgentError."""
    path = _outgoing(root, args["id"])
    try:
        return {"bytes": send_file(path, int(args.get("offset") or 0))}
    except OSError as error:
        raise AgentError(
            "the packed caches cannot be read", evidence=str(error), next="gpuops caches save", kind="caches"
        ) from error


def drop(root: Root, args: Json) -> Json:
    """Remove a packed file. Returns ``{}``."""
    _outgoing(root, args["id"]).unlink(missing_ok=True)
    return {}


def _listed(root: Root) -> Json:
    users = _users(root)
    return {"caches": [_told(folder, users) for folder in _folders(root)]}


def _pack(root: Root, args: Json) -> Json:
    users = _users(root)
    chosen = _chosen(root, args, users)
    sources, left_out = [], []
    for folder in chosen:
        known = read_json(folder / caches.FILE) or {}
        why = _not_portable(folder, known)
        if why:
            left_out.append({"key": folder.name, "why": why})
        else:
            sources.append(_source(root, folder, known, users))
    if not sources:
        raise AgentError(
            "there is no cache to pack",
            evidence="; ".join(f"{each['key']}: {each['why']}" for each in left_out)
            or "no cache is used by the releases that were asked for",
            next="gpuops caches list",
            kind="caches",
        )
    try:
        root.bundles.mkdir(parents=True, exist_ok=True)
        name, path, index = cache_file.write(root.bundles, sources, os.uname().nodename)
    except OSError as error:
        raise disk_error(error, root.bundles) from error
    packed = [{**{key: each[key] for key in ("key", "build", "card")}, **cache_file.size(each)} for each in index["caches"]]
    return {"id": name, "bytes": path.stat().st_size, "caches": packed, "left_out": left_out}


def _chosen(root: Root, args: Json, users: Dict[str, List[Json]]) -> List[Path]:
    """The folders that were asked for. Raises AgentError."""
    folders = _folders(root)
    if args.get("everything"):
        return folders
    if args.get("keys"):
        return [_one(folders, str(word)) for word in args["keys"]]
    service = args.get("service") or ""
    numbers = {int(number) for number in args.get("releases") or ()}
    if numbers:
        missing = [number for number in sorted(numbers) if releases.load(root.service(service), number) is None]
        if missing:
            raise AgentError(f"there is no release {missing[0]} of {service}", next="gpuops history", code=2, kind="no_release")

    def wanted(use: Json) -> bool:
        return use["service"] == service and (use["release"] in numbers if numbers else use["current"] or use["known_good"])

    return [folder for folder in folders if any(wanted(use) for use in users.get(folder.name, ()))]


def _one(folders: List[Path], word: str) -> Path:
    found = [folder for folder in folders if folder.name == word] or [
        folder for folder in folders if folder.name.startswith(word)
    ]
    if len(found) != 1:
        raise AgentError(
            f"{word} names {'several caches' if found else 'no cache'} of the host",
            evidence=", ".join(folder.name for folder in found or folders),
            next="gpuops caches list",
            code=2,
            kind="caches",
        )
    return found[0]


def _not_portable(folder: Path, known: Json) -> str:
    """Why a cache cannot be told by its identity elsewhere; empty when it can."""
    if not known.get("build") or not known.get("card"):
        return "nothing is known of where it belongs"
    if Identity.from_json(known).key != folder.name:
        return "its name is not what its identity gives: it was put aside, or is of an older agent"
    return "" if caches.look(folder).entries else "it is empty"


def _source(root: Root, folder: Path, known: Json, users: Dict[str, List[Json]]) -> cache_file.Source:
    services = sorted({str(use["service"]) for use in users.get(folder.name, ())})
    links = tuple(str(root.service(name).cache_link) for name in services)
    return cache_file.Source(folder, known, links, _rebase_rows(root))


def _rebase_rows(root: Root) -> Dict[str, str]:
    """By part, the files that hold absolute paths, as the engines of the host's releases have them."""
    documents = (release.document for service in inventory.services(root) for release in _releases(service))
    rows = (row for document in documents for row in caches.rows_of(document.get("engine") or {}))
    return {str(row["folder"]): str(row["rebase"]) for row in rows if row.get("rebase")}


def _told(folder: Path, users: Dict[str, List[Json]]) -> Json:
    known = read_json(folder / caches.FILE) or {}
    kept = {
        key: known.get(key)
        for key in ("build", "card", "runtime", "versions", "created", "last_used", "came", "reset", "last_start")
    }
    return {"key": folder.name, **kept, **caches.look(folder).to_json(), "used_by": users.get(folder.name, [])}


def _users(root: Root) -> Dict[str, List[Json]]:
    """By cache, the releases that start with it."""
    found: Dict[str, List[Json]] = {}
    for service in inventory.services(root):
        current, good = releases.current(service), releases.known_good(service)
        for release in _releases(service):
            path = Path(release.document.get("cache") or "")
            if path.parent == root.caches:
                flags = {"current": release.number == current, "known_good": release.number == good}
                found.setdefault(path.name, []).append({"service": service.name, "release": release.number, **flags})
    return found


def _releases(service: Service) -> List[releases.Release]:
    found = [releases.load(service, number) for number in releases.numbers(service)]
    return [each for each in found if each is not None]


def _folders(root: Root) -> List[Path]:
    try:
        return sorted(
            Path(entry.path) for entry in os.scandir(root.caches) if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."
        )
    except OSError:
        return []


def _outgoing(root: Root, name: str) -> Path:
    return cache_file.outgoing(root.bundles, bundles.plain(name))
