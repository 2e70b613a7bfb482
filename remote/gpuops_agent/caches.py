"""JIT caches: ``caches/<key>/``, one for each build on one card under one set of compilers, beside the builds, which never change.

A server sees its cache by one path, ``services/<name>/cache``, a link to the folder: tools write absolute paths into what they cache (Triton's
groups, ninja's files), and a copy must not lead back to where it came from; :mod:`.ninja` sees to those that resolve links. A new build's cache
begins as a real copy of those parts of the known-good release's that are the same for both, so that another kernel does not mean that the engine is
compiled again.

``cache.json`` says what a cache belongs to, where it came from, and what the last start added to it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .files import disk_error, read_json, switch_link, sync_folder, write_json
from .paths import Root, Service
from .wire import Cancelled, Emit

FILE = "cache.json"
BYTE_CODE = "pycache"
"""The folder of Python's byte-code in a cache, of releases that were ordered when it went there: neither copied nor counted."""

# A copy leaves at least so much of the disk free: a start that fills the disk is worse than one that compiles.
SPARE_BYTES = 256 << 20

# No copy takes so long, in seconds: one that old was cut.
CUT_S = 86400.0

# Without these in its name no cache is safe, whatever else an engine has: another compiler writes other code.
_ALWAYS = ("torch", "triton")

_PASSING = ("*.lock", "lock", "tmp.*", "*.tmp", ".ninja_lock")

Rows = List[Dict[str, Any]]
"""The engine's caches, as the order has them: ``{folder, packages, rebase?, ninja?}``."""


@dataclass(frozen=True)
class Identity:
    """What a cache belongs to.

    Args:
        build: the build's id, or ``stock``.
        card: the cards' model, or ``cpu``.
        runtime: the environment's id; it stands in for versions where none is known.
        versions: of the packages that the caches depend on, by normalised name; patched packages with a hash of their patches.
        apart: what keeps it from all others of the same kind; usually empty.
    """

    build: str
    card: str
    runtime: str
    versions: Dict[str, str] = field(default_factory=dict)
    apart: str = ""

    @property
    def key(self) -> str:
        """12 hex digits."""
        versions = [f"{name}={version}" for name, version in sorted(self.versions.items())] or [self.runtime]
        apart = [f"apart={self.apart}"] if self.apart else []
        return hashlib.sha256("\n".join([self.build, self.card, *versions, *apart]).encode()).hexdigest()[:12]

    @classmethod
    def from_json(cls, known: Dict[str, Any]) -> "Identity":
        """As ``cache.json`` has it. Raises KeyError without build or card."""
        return cls(
            known["build"], known["card"], known.get("runtime") or "", known.get("versions") or {}, known.get("apart") or ""
        )

    def to_json(self) -> Dict[str, Any]:
        said = {"build": self.build, "card": self.card, "runtime": self.runtime, "versions": dict(self.versions)}
        return {**said, "apart": self.apart} if self.apart else said


@dataclass(frozen=True)
class Content:
    """What a cache holds: files by part (the engine's folders), and bytes. What passes (locks, temporary files, byte-code) does not count."""

    files: Dict[str, int]
    bytes: int
    built: Dict[Tuple[str, str], int] = field(default_factory=dict)
    """When each shared object was written, by its part and path, in ns: a build tool writes one anew under its old name."""

    @property
    def entries(self) -> int:
        return sum(self.files.values())

    def misses_since(self, before: "Content") -> Dict[str, int]:
        """How many files each part has gained, and how many shared objects were built anew: what was not there when it was asked for."""
        gained = {part: count - before.files.get(part, 0) for part, count in self.files.items()}
        for (part, path), at in self.built.items():
            if before.built.get((part, path), at) != at:
                gained[part] += 1
        return {part: count for part, count in gained.items() if count > 0}

    def to_json(self) -> Dict[str, Any]:
        return {"entries": self.entries, "bytes": self.bytes, "files": self.files}


def identity(build: Optional[Any], runtime: Any, card: str, engine: Dict[str, Any]) -> Identity:
    """Of a build (None: stock) over a runtime.

    Args:
        build, runtime: :class:`builds.Build` and :class:`runtimes.Runtime`.
        engine: the order's; its ``caches`` name the packages that count.
    """
    installed = {normal(name): str(version) for name, version in (runtime.fingerprint.get("distributions") or {}).items()}
    if build is not None:
        installed.update(_distributions(build.site))
    wanted = {normal(name) for name in _ALWAYS}.union(normal(name) for row in rows_of(engine) for name in row["packages"])
    versions = {name: installed[name] for name in sorted(wanted) if name in installed}
    name = normal(engine["name"])
    if build is not None and build.overlay is not None and name in versions:
        versions[name] += f" patched {_patched(build.overlay.site)}"
    return Identity(build.id if build else "stock", card, runtime.id, versions)


def folder(root: Root, wanted: Identity) -> Path:
    """Where the cache lies, whether or not it is there."""
    return root.caches / wanted.key


def ensure(
    root: Root, wanted: Identity, engine: Dict[str, Any], good: Optional[Path], emit: Emit, cancelled: Callable[[], bool]
) -> Path:
    """The cache, made when it is missing: seeded from another one, ``good``, where there is one, else empty.

    Raises:
        AgentError: the disk did not take it. wire.Cancelled
    """
    final = folder(root, wanted)
    if final.is_dir():
        if read_json(final / FILE) is None:
            write_json(final / FILE, _record(wanted, None))
        return final
    root.caches.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    incoming = root.caches / f".incoming-{wanted.key}-{os.urandom(4).hex()}"
    incoming.mkdir()
    try:
        seeded = _seed(incoming, final, wanted, rows_of(engine), good, emit, cancelled)
        write_json(incoming / FILE, _record(wanted, seeded))
        with contextlib.suppress(FileExistsError):
            # Another service's order may have made it meanwhile: then that one is taken.
            put(incoming, final)
        sync_folder(root.caches)
    except OSError as error:
        raise disk_error(error, incoming) from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return final


def point(service: Service, cache: Path) -> None:
    """Let the service's server see this cache; one that is gone is made anew, empty. Raises AgentError (disk)."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, cache) from error
    switch_link(service.cache_link, cache)


def look(cache: Path) -> Content:
    """Count what a cache holds. One that is not there is empty."""
    files: Dict[str, int] = {}
    built: Dict[Tuple[str, str], int] = {}
    size = 0
    for path, part in counted(cache):
        with contextlib.suppress(OSError):
            seen = path.lstat()
            size += seen.st_size
            files[part] = files.get(part, 0) + 1
            if path.suffix == ".so":
                built[part, str(path)] = seen.st_mtime_ns
    return Content(files, size, built)


def started(cache: Path, release: int, before: Content, after: Content) -> Dict[str, Any]:
    """Note what a start did to its cache; returns the event's fields."""
    misses = after.misses_since(before)
    told = {"before": before.to_json(), "after": after.to_json(), "misses": sum(misses.values()), "missed": misses}
    known = read_json(cache / FILE) or {}
    last = {"release": release, "at": round(time.time(), 3), **told}
    write_json(cache / FILE, {**known, "last_used": last["at"], "last_start": last})
    return {"release": release, "cache": str(cache), **told}


def reset(cache: Path, op: str, because: str) -> Path:
    """Put a damaged cache aside and leave an empty one in its place; returns where the old one is.

    Raises:
        OSError
    """
    known = read_json(cache / FILE) or {}
    aside = cache.with_name(f"{cache.name}.poisoned-{op}")
    number = 1
    while aside.exists():
        number += 1
        aside = cache.with_name(f"{cache.name}.poisoned-{op}-{number}")
    os.replace(cache, aside)
    cache.mkdir()
    kept = {key: known[key] for key in ("version", "build", "card", "runtime", "versions") if key in known}
    fresh = {"created": round(time.time(), 3), "seeded_from": None, "reset": {"op": op, "because": because, "kept": str(aside)}}
    write_json(cache / FILE, {**kept, **fresh})
    return aside


def describe(cache: Optional[str]) -> Optional[Dict[str, Any]]:
    """What ``status`` shows, without a walk through the folder: size and entries are those of the last start. None without a cache."""
    if not cache or not Path(cache).is_dir():
        return None
    known = read_json(Path(cache) / FILE) or {}
    last = known.get("last_start") or {}
    return {
        "path": cache,
        "build": known.get("build"),
        "card": known.get("card"),
        "created": known.get("created"),
        "last_used": known.get("last_used"),
        "seeded_from": known.get("seeded_from"),
        "reset": known.get("reset"),
        "entries": (last.get("after") or {}).get("entries"),
        "bytes": (last.get("after") or {}).get("bytes"),
        "misses": last.get("misses"),
        "missed": last.get("missed"),
    }


def counted(cache: Path) -> Iterator[Tuple[Path, str]]:
    """The files of a cache that count, each with the part that it is of: all but what passes (locks, temporary files, byte-code)."""
    for parent, names, files in os.walk(cache):
        top = parent == str(cache)
        if top:
            names[:] = [name for name in names if name != BYTE_CODE]
        part = "" if top else Path(parent).relative_to(cache).parts[0]
        for name in files:
            if (top and name == FILE) or any(fnmatch.fnmatchcase(name, pattern) for pattern in _PASSING):
                continue
            yield Path(parent) / name, part


def put(incoming: Path, final: Path) -> None:
    """Rename a cache into its place. Raises FileExistsError when there is one, OSError."""
    try:
        os.rename(incoming, final)
    except OSError:
        if not final.is_dir():
            raise
        raise FileExistsError(str(final)) from None


def normal(name: str) -> str:
    """A distribution's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def rows_of(engine: Dict[str, Any]) -> Rows:
    """The engine's caches; none for orders of controllers that did not tell them."""
    return list(engine.get("caches") or ())


def _record(wanted: Identity, seeded: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    return {"version": 1, **wanted.to_json(), "created": round(time.time(), 3), "seeded_from": seeded, "last_used": None}


def _sweep(root: Root) -> None:
    """Remove copies that were cut by a crash."""
    for folder in root.caches.glob(".incoming-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > CUT_S:
                shutil.rmtree(folder, ignore_errors=True)


def _seed(
    incoming: Path,
    final: Path,
    wanted: Identity,
    rows: Rows,
    good: Optional[Path],
    emit: Emit,
    cancelled: Callable[[], bool],
) -> Optional[Dict[str, Any]]:
    """Copy what is the same for both from another cache; what was copied, or None."""
    known = read_json(good / FILE) if good is not None and good.is_dir() else None
    if good is None or known is None or known.get("card") != wanted.card:
        return None
    parts = [row for row in rows if (good / row["folder"]).is_dir() and _same(row, known, wanted)]
    held = [look(good / row["folder"]) for row in parts]
    size, free = sum(each.bytes for each in held), shutil.disk_usage(incoming).free
    if not any(each.entries for each in held):
        return None
    if size + SPARE_BYTES > free:
        emit("note", text=f"the new cache begins empty: {size >> 20} MB to copy, {free >> 20} MB of disk free")
        return None
    emit("phase", phase="seed", progress=None, detail=f"{size / 1e6:.0f} MB from the cache of {known.get('build')}")
    count = 0
    for row in parts:
        count += _copy(good / row["folder"], incoming / row["folder"], row.get("rebase"), (str(good), str(final)), cancelled)
    seeded = {
        "from": good.name,
        "build": known.get("build"),
        "parts": [row["folder"] for row in parts],
        "files": count,
        "bytes": size,
    }
    emit("seeded", cache=str(final), **seeded)
    return seeded


def _same(row: Dict[str, Any], known: Dict[str, Any], wanted: Identity) -> bool:
    """Whether a part of two caches was, and will be, written by the same versions."""
    names = [normal(name) for name in row["packages"]]
    theirs = {name: known["versions"][name] for name in names if name in (known.get("versions") or {})}
    ours = {name: wanted.versions[name] for name in names if name in wanted.versions}
    # Where nothing is known of its packages, the same environment is all that shows that they are the same.
    return theirs == ours and bool(ours or not names or known.get("runtime") == wanted.runtime)


def _copy(source: Path, target: Path, rebase: Optional[str], paths: Tuple[str, str], cancelled: Callable[[], bool]) -> int:
    """Copy a part, times included; what a living server changes meanwhile is left out. Returns the number of files."""
    copied: List[Tuple[Path, Path, Tuple[int, int]]] = []
    for path, _ in counted(source):
        if cancelled():
            raise Cancelled()
        there = target / path.relative_to(source)
        with contextlib.suppress(FileNotFoundError):
            before = _stamp(path)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, there, follow_symlinks=False)
            copied.append((path, there, before))
    left_out = 0
    for path, there, before in copied:
        if _stamp(path) != before:
            left_out += 1
            there.unlink()
        elif rebase and fnmatch.fnmatch(path.name, rebase):
            there.write_bytes(there.read_bytes().replace(os.fsencode(paths[0]), os.fsencode(paths[1])))
    return len(copied) - left_out


def _stamp(path: Path) -> Tuple[int, int]:
    try:
        seen = path.lstat()
    except FileNotFoundError:
        return (-1, -1)
    return (seen.st_size, seen.st_mtime_ns)


def _distributions(site: Path) -> Dict[str, str]:
    found = {}
    for info in site.glob("*.dist-info"):
        name, _, version = info.name[: -len(".dist-info")].rpartition("-")
        found[normal(name)] = version
    return found


def _patched(site: Path) -> str:
    """12 hex digits over the patched files of an overlay."""
    files = (read_json(site.parent / "overlay.json") or {}).get("files") or {}
    return hashlib.sha256("\n".join(f"{path}={sha}" for path, sha in sorted(files.items())).encode()).hexdigest()[:12]
