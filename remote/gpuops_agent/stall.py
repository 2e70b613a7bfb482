"""A start that is silent: what is it waiting for? A pure judgement over what a look at the host showed (``look.py``) and the log's last words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence

from .look import Scene

STOPPED = "stall_stopped"
MISSING_RANK = "stall_missing_rank"
JIT_LOCK = "stall_jit_lock"
COMPILER = "stall_compiler"
DOWNLOAD = "stall_download"
NCCL_P2P = "stall_nccl_p2p"
DISK = "stall_io"
SILENT = "silent_stall"

# Kernel functions in which a process sleeps that waits for a file system.
_FILE_SYSTEM = re.compile(r"nfs|rpc_wait|fuse|lustre|cl_sync|io_schedule|folio_wait|wait_on_page|ceph|xfs|ext4|jbd2")


@dataclass(frozen=True)
class Stall:
    """The class, what is waited for in a few words, what shows it, and what helps."""

    name: str
    waits_for: str
    evidence: str
    cure: str
    restart_cures: bool


def judge(scene: Scene, last_line: str, meeting: Sequence[str] = ()) -> Stall:
    """The most telling of what shows; :data:`SILENT` when nothing does.

    Args:
        meeting: regular expressions for the last words of a log that stops where ranks meet (``engine["meaningful"]["meeting"]``).
    """
    meets = any(re.search(pattern, last_line) for pattern in meeting)
    return (
        _stopped(scene)
        or _missing_rank(scene)
        or _locked(scene)
        or _compiling(scene)
        or _downloading(scene)
        or _meeting(scene, last_line if meets else "")
        or _reading(scene)
        or _no_rank(scene)
        or Stall(
            SILENT,
            "nothing that shows",
            _processes(scene) or "no process of the server lives",
            "gpuops logs; py-spy dump --pid of a rank says where it stands",
            True,
        )
    )


def _stopped(scene: Scene) -> Optional[Stall]:
    halted = [each for each in scene.processes if each.state in ("T", "t")]
    if not halted:
        return None
    names = ", ".join(each.name for each in halted)
    return Stall(
        STOPPED,
        "a process that a signal or a debugger has stopped",
        f"{names}: state {halted[0].state}",
        "kill -CONT it, or gpuops restart",
        True,
    )


def _missing_rank(scene: Scene) -> Optional[Stall]:
    alive = [title for title in scene.ranks if "scheduler" in title]
    if scene.lost:
        return Stall(
            MISSING_RANK,
            "a rank that has ended",
            f"{', '.join(scene.lost)} has ended; alive: {_listed(scene.ranks)}",
            "the rank's own lines in gpuops logs",
            True,
        )
    # Before the first one has come the server may still be busy on its own: see _no_rank.
    return _fewer(scene, len(alive)) if alive else None


def _no_rank(scene: Scene) -> Optional[Stall]:
    return None if any("scheduler" in title for title in scene.ranks) else _fewer(scene, 0)


def _fewer(scene: Scene, alive: int) -> Optional[Stall]:
    if scene.expected is None or alive >= scene.expected:
        return None
    return Stall(
        MISSING_RANK,
        f"{scene.expected - alive} of {scene.expected} ranks",
        f"{alive} of {scene.expected} schedulers live: {_listed(scene.ranks)}",
        "the missing rank's own lines in gpuops logs; gpuops doctor for its card",
        True,
    )


def _locked(scene: Scene) -> Optional[Stall]:
    if scene.locks:
        wait = scene.locks[0]
        holder = f"pid {wait.holder}: {wait.holder_title[:120]}" if wait.holder is not None else "somebody who cannot be seen"
        return Stall(
            JIT_LOCK,
            f"the lock of {wait.path}",
            f"pid {wait.pid} waits for {wait.path}, held by {holder}",
            "end the holder if it is a leftover; else wait for it",
            True,
        )
    busy = [each for each in scene.compilers if each.cpu > 0.0]
    if scene.left_locks and not busy:
        return Stall(
            JIT_LOCK,
            "a lock file that a killed compile has left",
            "; ".join(scene.left_locks),
            "remove the lock file (gpuops exec -- rm FILE), then gpuops restart",
            False,
        )
    return None


def _compiling(scene: Scene) -> Optional[Stall]:
    compilers = scene.compilers
    if not compilers:
        return None
    told = ", ".join(f"{each.name}, {each.cpu:.0%} of a core" for each in compilers[:4])
    return Stall(
        COMPILER,
        f"{compilers[0].program}, a compiler",
        told,
        "wait if it works; one that does nothing: free disk and memory, then gpuops restart",
        True,
    )


def _downloading(scene: Scene) -> Optional[Stall]:
    if not scene.downloads:
        return None
    each = scene.downloads[0]
    what = each.path or f"a connection to {each.peer}"
    grown = f"; {each.size} bytes, {each.grown} more in the last half second" if each.path else ""
    return Stall(
        DOWNLOAD,
        f"a download: {what}",
        f"pid {each.pid} has {what} open{grown}",
        "fetch the model beforehand (model.repo), or look at the host's network",
        True,
    )


def _meeting(scene: Scene, last_line: str) -> Optional[Stall]:
    spinning = [card for card in scene.cards if card.spins]
    if len(spinning) < 2 and not (last_line and len(scene.ranks) > 1):
        return None
    cards = "; ".join(card.text for card in spinning)
    log = f"the log ends with: {last_line}" if last_line else ""
    return Stall(
        NCCL_P2P,
        "the other ranks, in a collective",
        "; ".join(filter(None, [cards, log])),
        "NCCL_P2P_DISABLE=1 in server.env once: if it starts then, the cards' P2P path is broken (iommu=pt, ACS off); --disable-custom-all-reduce",
        False,
    )


def _reading(scene: Scene) -> Optional[Stall]:
    waiting = [each for each in scene.processes if each.state == "D" or _FILE_SYSTEM.search(each.wait)]
    if not waiting:
        return None
    told = ", ".join(f"{each.name} in {each.wait or 'the kernel'}" for each in waiting[:4])
    return Stall(
        DISK, "a disk or a network file system", told, "gpuops exec -- dmesg; is the model's file system there and fast?", True
    )


def _processes(scene: Scene) -> str:
    return "; ".join(
        f"{each.name} {each.state} {each.cpu:.0%} of a core" + (f" in {each.wait}" if each.wait else "")
        for each in scene.processes[:6]
    )


def _listed(titles: "tuple[str, ...]") -> str:
    names: List[str] = [title[:40] for title in titles]
    return ", ".join(names) or "none"
