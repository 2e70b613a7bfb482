"""Everything of a rollout that needs no card and is not the release itself, done while the old server serves: the cache, the build's byte-code,
its imports and kernels, and the model's weights in the page cache. What fails here is refused; the running server is not touched.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Optional

from . import caches, claims, compiling, ninja, preflight, releases, warm
from .files import disk_error
from .paths import Service
from .prepare import Prepared, Work, cache_identity, environment
from .records import server_alive
from .releases import Release
from .wire import HOST_UNFIT, AgentError


def make_ready(
    service: Service, order: Dict[str, Any], prepared: Prepared, again: Optional[Release], work: Work, *, tried: bool = False
) -> None:
    """Make the cache, import the build, compile its kernels and what the cache has of others, warm the weights.

    Args:
        again: the good release of this content that is started again; its cache is its own.
        tried: whether this operation has been through :func:`try_build` for this order already.
    Raises:
        AgentError: no disk; a build that cannot prove itself and has to; an import or a kernel that fails. wire.Cancelled
    """
    preflight.enough_disk(service.root.path)
    _must_prove_itself(order, prepared)
    cache = make_cache(service, order, prepared, again, work)
    if not tried:
        try_build(order, prepared, cache, work)
    if server_alive(service) is not None:
        _warm(prepared.model.path, order["prepare"]["model"].get("warm"), work)


def try_build(order: Dict[str, Any], prepared: Prepared, cache: Path, work: Work) -> None:
    """Import the order's build, if it has one, and compile into the cache what can be without a card. Raises AgentError, wire.Cancelled."""
    told = environment(order, prepared, cache, port="0")
    if prepared.build is not None:
        compiling.byte_code(prepared.build, prepared.runtime.python, told, work)
        compiling.imports(prepared.build, prepared.runtime.python, told, work)
        triton = Path(told.get("TRITON_CACHE_DIR") or cache / "triton")
        cards = compiling.capabilities(claims.gpus_of(order["candidate"]))
        compiling.kernels(prepared.build, prepared.runtime.python, told, triton, cards, work)
    _rebuild(order, prepared, cache, told, work)


def make_cache(service: Service, order: Dict[str, Any], prepared: Prepared, again: Optional[Release], work: Work) -> Path:
    """The cache that a release of this order starts with, made when it is missing. Raises AgentError (no disk), wire.Cancelled."""
    wanted = cache_identity(prepared, order)
    own = (again.document.get("cache") if again else None) or str(caches.folder(service.root, wanted))
    if own != str(caches.folder(service.root, wanted)):
        # Of an agent that named caches otherwise. It is what the release starts with.
        return Path(own)
    return caches.ensure(service.root, wanted, order["engine"], _seed(service, wanted), work.emit, work.cancelled)


def _rebuild(order: Dict[str, Any], prepared: Prepared, cache: Path, told: Dict[str, str], work: Work) -> None:
    """What of a copied cache is a build of ninja's that names its folder. Raises AgentError (disk), wire.Cancelled."""
    parts = [cache / row["folder"] for row in caches.rows_of(order["engine"]) if row.get("ninja")]
    try:
        folders = ninja.renamed(parts, cache)
    except OSError as error:
        raise disk_error(error, cache) from error
    ninja.rebuild(folders, prepared.runtime.python, told, work)


def _seed(service: Service, wanted: caches.Identity) -> Optional[Path]:
    """What a new cache begins with: for one that is kept apart its build's own, where there is one; else the known-good release's."""
    whole = caches.folder(service.root, replace(wanted, apart=""))
    if wanted.apart and whole.is_dir():
        return whole
    good = releases.load(service, releases.known_good(service))
    seed = good.document.get("cache") if good else None
    return Path(seed) if seed else None


def _must_prove_itself(order: Dict[str, Any], prepared: Prepared) -> None:
    build = prepared.build
    if order["candidate"].get("proof") == "required" and (build is None or not build.about.get("proof")):
        raise AgentError(
            f"the playbook requires a proof (build.proof), and {f'the build {build.id}' if build else 'no build'} has a plugin that gives one",
            evidence="its manifest has no about.proof",
            next="make the build from sources with a [tool.gpuops.build] table, or leave build.proof out; the running server was not touched",
            code=HOST_UNFIT,
            kind="proof",
        )


def _warm(model: Path, wanted: Optional[bool], work: Work) -> None:
    paths = warm.files_of(model)
    total = sum(path.stat().st_size for path in paths)
    if total == 0:
        return
    why_not = warm.decide(total, warm.room(), wanted)
    if why_not:
        work.emit("note", text=f"the weights are not read ahead: {why_not}")
        return

    def progress(done: int, total: int) -> None:
        work.emit("phase", phase="warm", progress=done / total, detail="the weights into the page cache")

    work.emit("warmed", **warm.warm(paths, work.cancelled, progress).to_json())
