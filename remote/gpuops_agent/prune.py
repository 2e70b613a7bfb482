"""The verb `prune`: delete what no release that can still be started needs.

Every deletion is a journal entry, then a rename to ``.trash-...``, then the removal: one that is cut leaves nothing half there, and the next
prune ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from . import beats, inventory, journal, locks, retention
from .paths import Root, Service, own_zipapp
from .proc import identify
from .retention import OPERATION, Verdict
from .wire import AgentError

TRASH = ".trash-"


def prune(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Args: ``service?`` (all when absent; what services share is judged by the releases of all), ``keep?``, ``dry_run?``, ``by?``, ``kinds?``
    (only these may go).

    Returns:
        ``{dry_run, bytes, gone, kept, failed}``: bytes that are free now, and a list of ``{kind, service, name, bytes, why}`` each.
    Raises:
        AgentError: a service is busy or locked by a person (code 13); there is no such service.
    """
    keep = retention.KEEP_RELEASES if args.get("keep") is None else int(args["keep"])
    if keep < 1:
        raise AgentError(f"cannot keep {keep} releases", evidence="at least 1 stays", code=2, kind="usage")
    only = args.get("service")
    if only is not None and not root.service(only).path.is_dir():
        raise AgentError(f"there is no service {only}", evidence=str(root.services), next="gpuops status", kind="no_service")
    work = Pruning(root, keep, only, args.get("by"), own_zipapp().stem, time.time(), args.get("kinds"))
    return beats.during(work.rehearse if args.get("dry_run") else work.do)


class Pruning:
    """One prune of one ROOT. ``now`` is the wall clock in seconds, ``present_agent`` the name of the agent that must stay."""

    def __init__(
        self,
        root: Root,
        keep: int,
        only: Optional[str],
        by: Any,
        present_agent: str,
        now: float,
        kinds: Optional[List[str]] = None,
    ) -> None:
        self._root = root
        self._keep = keep
        self._only = only
        self._by = by
        self._present_agent = present_agent
        self._now = now
        self._kinds = kinds

    def rehearse(self) -> Dict[str, Any]:
        """What :meth:`do` would do."""
        verdicts = self._verdicts(inventory.services(self._root))
        gone = [_told(verdict, freed(verdict.paths)) for verdict in verdicts if verdict.goes]
        return _answer(True, gone, verdicts, [])

    def do(self) -> Dict[str, Any]:
        """Delete. Nothing begins on this host meanwhile: the locks of all services are held."""
        services = inventory.services(self._root)
        with _locked(services, self._by):
            _empty_trash(self._root, services)
            _forget_cancelled(services, self._now)
            verdicts = self._verdicts(services)
            gone: List[Dict[str, Any]] = []
            failed: List[Dict[str, Any]] = []
            for verdict in verdicts:
                if not verdict.goes:
                    continue
                size = freed(verdict.paths)
                try:
                    self._delete(verdict, size, services)
                except (OSError, AgentError) as error:
                    failed.append({**_told(verdict, size), "why": str(error)})
                else:
                    gone.append(_told(verdict, size))
        return _answer(False, gone, verdicts, failed)

    def _verdicts(self, services: List[Service]) -> List[Verdict]:
        things = inventory.things(self._root, self._present_agent, self._now)
        facts = tuple(inventory.facts(service, things) for service in services)
        verdicts = retention.decide(facts, things, self._keep, self._only)
        return [verdict for verdict in verdicts if self._kinds is None or verdict.kind in self._kinds]

    def _delete(self, verdict: Verdict, size: int, services: List[Service]) -> None:
        if verdict.service is None and inventory.services(self._root) != services:
            raise AgentError("a new service has begun: what it uses is not known yet")
        # What is shared was there for all of them.
        concerned = [service for service in services if verdict.service in (None, service.name)]
        entry = {"kind": verdict.kind, "name": verdict.name, "bytes": size, "why": verdict.why, "by": self._by}
        unwritten = [service for service in concerned if not _note(service, entry)]
        for trash in [_to_trash(path, verdict.kind) for path in verdict.paths]:
            _remove(trash)
        for service in unwritten:
            # The disk was full; now there is room.
            journal.write(service, "pruned", **entry)


def freed(paths: Tuple[Path, ...]) -> int:
    """The bytes of disk that deleting these paths frees: a file that has another name elsewhere (a linked build) frees nothing."""
    links: Dict[Tuple[int, int], int] = {}
    total = 0
    for status in (status for path in paths for status in _everything(path)):
        if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:
            total += status.st_blocks * 512
            continue
        inode = (status.st_dev, status.st_ino)
        links[inode] = links.get(inode, 0) + 1
        if links[inode] == status.st_nlink:
            total += status.st_blocks * 512
    return total


def _everything(path: Path) -> Iterator[os.stat_result]:
    """Everything at and below a path, links not followed."""
    try:
        status = os.lstat(path)
    except OSError:
        return
    yield status
    if not stat.S_ISDIR(status.st_mode):
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            yield from _everything(Path(entry.path))


@contextlib.contextmanager
def _locked(services: List[Service], by: Any) -> Iterator[None]:
    """Hold the locks of all services. Raises AgentError (code 13) when one is held by somebody else."""
    me = identify(os.getpid())
    assert me is not None, "this process has no /proc entry"
    owner = {"op": None, "kind": "prune", "by": by, "at": time.time(), "runner": me.to_json()}
    held: List[Tuple[Service, int]] = []
    try:
        for service in services:
            locks.refuse_if_locked(service)
            try:
                held.append((service, _acquire(service, owner)))
            except locks.Held as busy:
                raise locks.busy(service, busy.owner) from busy
        yield
    finally:
        for service, fd in held:
            # Before the lock is free: whoever takes it next writes a new one.
            service.lock_owner.unlink(missing_ok=True)
            os.close(fd)


def _acquire(service: Service, owner: Dict[str, Any]) -> int:
    """``locks.acquire``; on a full disk, which is what pruning is for, without saying who holds it. Raises locks.Held."""
    try:
        return locks.acquire(service, owner)
    except AgentError as error:
        if error.kind != "disk_full":
            raise
    fd = os.open(service.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise locks.Held({}) from error
    return fd


def _empty_trash(root: Root, services: List[Service]) -> None:
    """Remove what an earlier prune could not end."""
    shared = (
        root.runtimes,
        root.builds,
        root.builds / "recipes",
        root.overlays,
        root.bundles,
        root.models,
        root.caches,
        root.agents,
    )
    homes: Set[Path] = set(shared)
    for service in services:
        homes |= {service.path, service.releases}
    for trash in (trash for home in homes for trash in home.glob(f"{TRASH}*")):
        _remove(trash)


def _forget_cancelled(services: List[Service], now: float) -> None:
    """Remove what keeps a cancelled order from being played, once that order cannot come any more."""
    for file in (file for service in services for file in service.cancelled.glob("*.json")):
        with contextlib.suppress(OSError):
            if now - file.stat().st_mtime > inventory.YOUNG_S:
                file.unlink()


def _note(service: Service, entry: Dict[str, Any]) -> bool:
    try:
        journal.write(service, "pruned", **entry)
    except AgentError as error:
        if error.kind != "disk_full":
            raise
        return False
    return True


def _to_trash(path: Path, kind: str) -> Path:
    """Rename, within one file system, to where nobody takes it for something."""
    # Whatever lies among the operations counts as one.
    home = path.parent.parent if kind == OPERATION else path.parent
    trash = home / f"{TRASH}{os.urandom(4).hex()}"
    os.rename(path, trash)
    return trash


def _remove(trash: Path) -> None:
    if trash.is_symlink() or not trash.is_dir():
        trash.unlink()
        return
    # A build's folders may be read-only: what is in them could not be unlinked. Its files may share their inode with another build's.
    os.chmod(trash, 0o700)
    for folder, names, _ in os.walk(trash):
        for path in (os.path.join(folder, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(trash)


def _told(verdict: Verdict, size: int) -> Dict[str, Any]:
    return {"kind": verdict.kind, "service": verdict.service, "name": verdict.name, "bytes": size, "why": verdict.why}


def _answer(dry_run: bool, gone: List[Dict[str, Any]], verdicts: List[Verdict], failed: List[Dict[str, Any]]) -> Dict[str, Any]:
    kept = [_told(verdict, 0) for verdict in verdicts if not verdict.goes]
    for each in kept:
        # Nobody asked for their sizes, and to measure gigabytes takes time.
        del each["bytes"]
    return {"dry_run": dry_run, "bytes": sum(each["bytes"] for each in gone), "gone": gone, "kept": kept, "failed": failed}
