"""The verb `cache.load`: caches of another host, each under the key that its identity gives, which does not depend on the host.

On its way a packed file (:mod:`cache_file`) travels as a bundle does (``bundle.have``, ``bundle.put``), or lies in one. Nothing else of the host has
to be there yet: neither the service nor its runtime.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from . import beats, bundles, cache_file, caches, inventory, prepare, runtime_versions
from .caches import Identity
from .files import disk_error, sync_folder, write_json
from .paths import Root
from .records import server_alive
from .wire import HOST_UNFIT, AgentError

Json = Dict[str, Any]


def load(root: Root, args: Json) -> Json:
    """Put the caches of a file that has arrived into their places; one that is there already stays as it is.

    Args: ``id``; ``bundle``: the bundle that it lies in, else it came by ``bundle.put``; ``runtime``: the order's, when it is known what these
        caches are for; ``service``: likewise; ``strict``: refuse a cache that does not fit, else leave it out.
    Returns:
        ``{loaded: [{key, build, entries, bytes}], there: [{key, build, why}], unfit: [{key, build, why}], notes: [TEXT]}``: put, left as they
        were, and (unless ``strict``) left out
    Raises:
        AgentError: the file is cut or altered; a cache is of another card, torch or Triton; no disk (all code 5). Nothing was put then.
    """
    return beats.during(lambda: _load(root, args))


def _load(root: Root, args: Json) -> Json:
    name, bundle = bundles.plain(args["id"]), args.get("bundle")
    if bundle:
        return _load_file(root, root.bundles / bundles.plain(bundle) / "caches" / f"{name}.tar", name, args)
    path = bundles.arriving(root, name)
    try:
        return _load_file(root, path, name, args)
    finally:
        # What came has done its work, or is of no use: the next call sends it anew.
        path.unlink(missing_ok=True)


def _load_file(root: Root, path: Path, name: str, args: Json) -> Json:
    try:
        index = cache_file.read(path, name)
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        raise _damaged(error) from error
    card, versions = prepare.card(), runtime_versions.foreseen(root, args.get("runtime"))
    judged = [(each, _misfit(each, card, versions)) for each in index["caches"]]
    unfit = [{"key": each["key"], "build": each["build"], "why": why} for each, why in judged if why]
    if args.get("strict") and unfit:
        raise _refused(unfit, index)
    loaded, there = _put_all(root, path, [each for each, why in judged if not why], index, name)
    put = {each["key"] for each in loaded}
    notes = _notes(root, args.get("service"), [each for each, _ in judged if each["key"] in put], versions)
    return {"loaded": loaded, "there": there, "unfit": unfit, "notes": notes}


def _put_all(root: Root, path: Path, fit: List[Json], index: Json, name: str) -> Tuple[List[Json], List[Json]]:
    """What was loaded, and what was there already. All are unpacked and checked before the first is put."""
    loaded: List[Json] = []
    there: List[Json] = []
    ready: List[Tuple[Json, Path, Path]] = []
    root.caches.mkdir(parents=True, exist_ok=True)
    try:
        for each in fit:
            final = caches.folder(root, Identity.from_json(each))
            why = _in_the_way(root, final)
            if why:
                there.append({"key": final.name, "build": each["build"], "why": why})
                continue
            incoming = root.caches / f".incoming-{final.name}-{os.urandom(4).hex()}"
            incoming.mkdir()
            ready.append((each, incoming, final))
            cache_file.extract(path, each, incoming, final)
            write_json(incoming / caches.FILE, _record(each, index["host"], name))
        for each, incoming, final in ready:
            _replace(incoming, final)
            loaded.append({"key": final.name, "build": each["build"], **cache_file.size(each)})
        sync_folder(root.caches)
    except (ValueError, KeyError, EOFError, tarfile.TarError) as error:
        raise _damaged(error) from error
    except OSError as error:
        raise disk_error(error, root.caches) from error
    finally:
        for _, incoming, _ in ready:
            shutil.rmtree(incoming, ignore_errors=True)
    return loaded, there


def _in_the_way(root: Root, final: Path) -> str:
    """Why the cache that is there stays; empty when there is none, or an empty one that no server fills."""
    if not final.is_dir():
        return ""
    held = caches.look(final)
    if held.entries:
        return f"the host has this cache, with {held.entries} files"
    living = [
        service.name for service in inventory.services(root) if server_alive(service) and _sees(service.cache_link) == final
    ]
    return f"the server of {living[0]} is filling it" if living else ""


def _replace(incoming: Path, final: Path) -> None:
    """Rename a cache into the place of none, or of an empty one. Raises OSError: another one was made there meanwhile."""
    if final.is_dir():
        aside = incoming.with_name(f"{incoming.name}-empty")
        os.rename(final, aside)
        shutil.rmtree(aside, ignore_errors=True)
    caches.put(incoming, final)


def _misfit(cache: Json, card: str, versions: Dict[str, str]) -> str:
    """Why a cache can never be used here; empty when it can, as far as is known."""
    if cache["card"] != card:
        return f"is of {cache['card']}, and this host has {card}"
    theirs = cache.get("versions") or {}
    wrong = next((name for name in _differing(theirs, versions) if name in ("torch", "triton")), None)
    return f"is of {wrong} {theirs[wrong]}, and here is {versions[wrong]}" if wrong else ""


def _notes(root: Root, service: Optional[str], loaded: Iterable[Json], versions: Dict[str, str]) -> List[str]:
    """What is loaded and will yet not serve as well as where it was made."""
    notes = []
    for each in loaded:
        theirs = each.get("versions") or {}
        # A build may bring another engine than the runtime's.
        name = next(iter(_differing(theirs, versions)), None) if each["build"] == "stock" else None
        if name:
            notes.append(f"{each['key']} is of {name} {theirs[name]}, and here is {versions[name]}: a start here will not use it")
        link = str(root.service(service).cache_link) if service else ""
        if link and link not in each["links"]:
            seen = ", ".join(each["links"]) or each["path"]
            notes.append(
                f"{each['key']} was seen as {seen}, and is as {link} here: what a tool keeps by its path is compiled again"
            )
    return notes


def _differing(theirs: Dict[str, str], versions: Dict[str, str]) -> Iterator[str]:
    return (name for name in theirs if name in versions and not _same(theirs[name], versions[name]))


def _same(one: str, other: str) -> bool:
    """Whether two versions may be the same: a lock's pin has no local part (``2.11.0`` for ``2.11.0+cu130``)."""
    one, other = one.partition(" patched")[0], other.partition(" patched")[0]
    return one == other or (("+" in one) != ("+" in other) and one.partition("+")[0] == other.partition("+")[0])


def _refused(unfit: List[Json], index: Json) -> AgentError:
    first = unfit[0]
    return AgentError(
        f"these caches do not fit this host: {first['key']} {first['why']}",
        evidence=f"{len(unfit)} of {len(index['caches'])} do not fit; they were packed on {index['host']}",
        next="pack caches of a host with the same card, torch and Triton; nothing was put, and the running server was not touched",
        code=HOST_UNFIT,
        kind="caches",
    )


def _damaged(error: Exception) -> AgentError:
    return AgentError(
        "the caches did not arrive as they were packed",
        evidence=str(error),
        next="run the same command again: they are sent anew; nothing was put, and the running server was not touched",
        code=HOST_UNFIT,
        kind="caches",
    )


def _record(cache: Json, host: str, name: str) -> Json:
    came = {"from": host, "file": name, "last_start": cache.get("last_start")}
    told = {
        "version": 1,
        **Identity.from_json(cache).to_json(),
        "created": round(time.time(), 3),
        "seeded_from": None,
        "last_used": None,
    }
    return {**told, "came": came}


def _sees(link: Path) -> Optional[Path]:
    try:
        return Path(os.readlink(link))
    except OSError:
        return None
