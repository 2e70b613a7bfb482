"""What lies in a host's ROOT, as facts for :mod:`retention`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import FrozenSet, Iterable, List, Optional, Set, Tuple

from . import locks, pins, releases
from .files import read_json
from .paths import Root, Service
from .proc import cmdline, pids
from .recorder import outcome
from .records import server_alive, supervisor_alive, supervisor_identity
from .retention import AGENT, BUILD, BUNDLE, CACHE, MODEL, OVERLAY, RUNTIME, Key, ReleaseFacts, ServiceFacts, Thing

# A build is pushed before its order is given; one this young, in seconds, may be about to be used.
YOUNG_S = 3600.0

# After a path, these go on with another name.
_NAME_GOES_ON = r"(?![A-Za-z0-9._-])"


def services(root: Root) -> List[Service]:
    """The services of the host, by name."""
    try:
        names = sorted(name for name in os.listdir(root.services) if not name.startswith("."))
    except OSError:
        return []
    return [root.service(name) for name in names]


def things(root: Root, present_agent: str, now: float) -> Tuple[Thing, ...]:
    """Everything that releases share. ``present_agent`` is the name of the agent that asks; ``now`` the wall clock."""
    return (
        *(Thing(RUNTIME, folder.name, (folder,)) for folder in _folders(root.runtimes)),
        *(_build(root, folder, now) for folder in _folders(root.builds) if folder.name != "recipes"),
        *(Thing(OVERLAY, folder.name, (folder,), _young(folder / "overlay.json", now)) for folder in _folders(root.overlays)),
        *_cut(BUILD, root.builds, now),
        *_cut(OVERLAY, root.overlays, now),
        *_bundles(root, now),
        *(_model(folder) for folder in _folders(root.models)),
        *(Thing(CACHE, folder.name, (folder,), _just_loaded(folder, now)) for folder in _folders(root.caches)),
        *_agents(root, present_agent),
    )


def facts(service: Service, shared: Iterable[Thing]) -> ServiceFacts:
    """What is known of a service."""
    record = server_alive(service)
    return ServiceFacts(
        name=service.name,
        releases=tuple(_release(service, number, shared) for number in releases.numbers(service)),
        current=releases.current(service),
        good=releases.known_good(service),
        running=record.release if record else None,
        busy=_busy(service),
        finished=_finished(service),
    )


def recipes(root: Root, build: str) -> List[Path]:
    """The stamps that lead to a build."""
    stamps = sorted((root.builds / "recipes").glob("*.json"))
    return [stamp for stamp in stamps if (read_json(stamp) or {}).get("id") == build]


def _release(service: Service, number: int, shared: Iterable[Thing]) -> ReleaseFacts:
    release = releases.load(service, number)
    return ReleaseFacts(
        number=number,
        path=service.release(number),
        state=str(releases.state(service, number)["state"]),
        pinned=pins.pinned(service, number) is not None,
        uses=_uses(json.dumps(release.document, ensure_ascii=False), shared) if release else None,
    )


def _uses(document: str, shared: Iterable[Thing]) -> FrozenSet[Key]:
    """The things whose path stands anywhere in a release's document: flags and variables may name them too."""
    paths = ((thing.key, str(path)) for thing in shared for path in thing.paths)
    return frozenset(key for key, path in paths if path in document and re.search(re.escape(path) + _NAME_GOES_ON, document))


def _busy(service: Service) -> bool:
    holder = locks.owner(service)
    return holder is not None and holder.get("op") is not None


def _finished(service: Service) -> Tuple[Path, ...]:
    ended = [folder for folder in _folders(service.operations) if outcome(service, folder.name) is not None]
    return tuple(sorted(ended, key=lambda folder: (folder / "outcome.json").stat().st_mtime, reverse=True))


def _folders(parent: Path) -> List[Path]:
    """The folders in ``parent``, by name; no links, and nothing that is hidden (incoming, or on its way out)."""
    try:
        found = [Path(entry.path) for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(folder for folder in found if not folder.name.startswith("."))


def _build(root: Root, folder: Path, now: float) -> Thing:
    return Thing(BUILD, folder.name, (folder, *recipes(root, folder.name)), _young(folder / "manifest.json", now))


def _cut(kind: str, parent: Path, now: float) -> List[Thing]:
    """What has begun to arrive, or to be made, in a folder, and was not ended. The file that was written last tells whether somebody is at it."""
    found = []
    for folder in sorted(parent.glob(".incoming-*")):
        written = [Path(path, name) for path, _, files in os.walk(folder) for name in files]
        young = next((why for each in (folder, *written) if (why := _young(each, now))), "")
        found.append(Thing(kind, folder.name, (folder,), young))
    return found


def _bundles(root: Root, now: float) -> List[Thing]:
    """Whole bundles, what has arrived of others, and packed caches that nobody fetched. What is made from a bundle does not need it any more."""
    whole = [Thing(BUNDLE, folder.name, (folder,), _young(folder / "index.json", now)) for folder in _folders(root.bundles)]
    streams = sorted([*root.bundles.glob(".incoming-*.tar"), *root.bundles.glob(".outgoing-*.tar")])
    return whole + [Thing(BUNDLE, stream.name, (stream,), _young(stream, now)) for stream in streams]


def _just_loaded(folder: Path, now: float) -> str:
    """Why a cache stays that has come from another host and waits for its first start; empty for all others."""
    known = read_json(folder / "cache.json") or {}
    return _young(folder / "cache.json", now) if known.get("came") and not known.get("last_used") else ""


def _young(file: Path, now: float) -> str:
    """Why something stays that has just come, by the file that was written last; empty when it is older."""
    try:
        # The time of change: that of the files' content came with them from the laptop.
        young = now - file.stat().st_ctime < YOUNG_S
    except OSError:
        young = False
    return "it came less than an hour ago: an order may be about to use it" if young else ""


def _model(folder: Path) -> Thing:
    made = (folder / "model.json").exists()
    return Thing(MODEL, folder.name, (folder,), "" if made else "gpuops did not make it, or not to its end: it has no model.json")


def _agents(root: Root, present: str) -> List[Thing]:
    names = {path.stem for path in root.agents.glob("*.pyz")} | {folder.name for folder in _folders(root.agents)}
    alive = _living_agents(root)
    found = []
    for name in sorted(names):
        paths = tuple(path for path in (root.agents / f"{name}.pyz", root.agents / name) if path.exists())
        needed = "the present agent" if name == present else ""
        if not needed and (alive is None or f"{name}.pyz" in alive):
            needed = "a process runs it" if alive is not None else "a supervisor lives that we may not look at"
        found.append(Thing(AGENT, name, paths, needed))
    return found


def _living_agents(root: Root) -> Optional[Set[str]]:
    """The names of the archives that processes run; None when one of them cannot be seen (another container, hidden processes)."""
    for service in services(root):
        identity = supervisor_identity(service)
        if supervisor_alive(service) and (identity is None or not cmdline(identity.pid)):
            return None
    return {os.path.basename(word) for pid in pids() for word in cmdline(pid) if word.endswith(".pyz")}
