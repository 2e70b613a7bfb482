"""The verbs around an operation: `run` hands an order to a runner, `follow` tells what it does, `cancel` asks it to undo.

The runner is a process of its own: it outlives the connection that started it, so a cut link costs the view, never the rollout.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any, Dict, Optional

from . import lease, locks
from .detach import spawn
from .files import disk_error, read_json, write_json
from .paths import Root, Service, own_zipapp
from .proc import Identity, alive
from .recorder import events_file, outcome
from .records import server_alive
from .wire import BEAT_S, REFUSED, UNKNOWN, AgentError, emit, write

# How often a follower looks for new events, in seconds.
FOLLOW_S = 0.05

# A runner that has not written who it is after this long never will.
RUNNER_STARTS_S = 30.0

_OP = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


def run(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Start the order's operation, or find the one that it equals, and follow it to its outcome.

    ``lock_wait_s`` seconds are waited for another rollout to end; a lock that a person took is never waited for.

    Asking again with the same operation id follows, or repeats the recorded outcome: an order is never played twice. An order whose desired state a
    live rollout already works towards attaches to that one.
    """
    order = args["order"]
    service = root.service(order["service"])
    op = order["op"]
    if not _OP.match(op):
        raise AgentError(f"{op!r} is not an operation id", code=2, kind="usage")
    folder = service.operation(op)
    if folder.exists():
        return _follow(service, op, 0)
    _refuse_cancelled(service, op)
    began = time.monotonic()
    locks.refuse_if_locked(service)
    holder = locks.owner(service)
    if holder is not None and not _is_the_same(order, holder) and args.get("lock_wait_s"):
        locks.wait_free(service, float(args["lock_wait_s"]), lambda: emit("beat"))
        holder = locks.owner(service)
    if holder is not None:
        return _attach_or_refuse(service, order, holder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return _follow(service, op, 0)
    except OSError as error:
        raise disk_error(error, folder) from error
    try:
        # Again, now that the folder is there: whoever cancels looks for the two in the other order, so one of them sees the other.
        _refuse_cancelled(service, op)
        write_json(folder / "order.json", order, 0o600)
        lease.begin(service, order)
        answer = spawn(service, "runner", {"service": service.name, "op": op}, own_zipapp(), str(folder / "runner.log"))
    except (AgentError, OSError):
        # Nothing was begun: asking again with this id must not find a folder that nobody plays.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if "held" in answer:
        _forget(folder)
        left = float(args.get("lock_wait_s") or 0.0) - (time.monotonic() - began)
        if left > 0:
            # Somebody was quicker: that is waited for too.
            return run(root, {**args, "lock_wait_s": left})
        return _attach_or_refuse(service, order, answer["held"])
    return _follow(service, op, 0)


def follow(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Stream an operation's events from ``offset`` (bytes of its event file) and answer with its outcome."""
    service = root.service(args["service"])
    op = args.get("op") or latest(service)
    if op is None:
        raise AgentError(f"service {service.name} has no operation to follow", next="gpuops history", kind="no_operation")
    if not service.operation(op).is_dir():
        raise AgentError(f"service {service.name} has no operation {op}", next="gpuops history", kind="no_operation")
    return _follow(service, op, int(args.get("offset") or 0))


def cancel(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Ask a live operation to undo itself; one whose runner is still on its way to the lock, too: it finds that out before it touches anything.

    With ``before`` an order that has not come yet is cancelled too (answered with ``before``, and the release that serves): it is refused when it
    comes.
    """
    service = root.service(args["service"])
    folder = service.operation(args["op"])
    if args.get("before") and not folder.is_dir() and _forbid(service, args["op"]):
        serving = server_alive(service)
        return {"cancelled": True, "before": True, "release": serving.release if serving else None}
    holder = locks.owner(service)
    if (holder is None or holder.get("op") != args["op"]) and not running(service, args["op"]):
        return {"cancelled": False}
    try:
        write_json(folder / "cancel", {"at": time.time()})
    except AgentError:
        if args.get("before") and not folder.is_dir():
            # It came, and was refused.
            return cancel(root, args)
        raise
    return {"cancelled": True}


def _forbid(service: Service, op: str) -> bool:
    """Leave word that an order must not be played. False when that cannot be written, or when the order has come meanwhile."""
    if not _OP.match(op):
        raise AgentError(f"{op!r} is not an operation id", code=2, kind="usage")
    try:
        service.forbidden(op).parent.mkdir(parents=True, exist_ok=True)
        write_json(service.forbidden(op), {"at": time.time()})
    except (AgentError, OSError):
        return False
    return not service.operation(op).is_dir()


def _refuse_cancelled(service: Service, op: str) -> None:
    if service.forbidden(op).exists():
        raise AgentError(
            f"the order {op} was cancelled before it came",
            evidence="nothing had been touched",
            next="gpuops status",
            code=REFUSED,
            kind="cancelled",
        )


def latest(service: Service) -> Optional[str]:
    """The live operation, else the one that began last."""
    holder = locks.owner(service)
    if holder is not None and holder.get("op"):
        return str(holder["op"])
    try:
        folders = [folder for folder in service.operations.iterdir() if folder.is_dir()]
    except OSError:
        return None
    return max(folders, key=_began).name if folders else None


def _began(folder: Path) -> float:
    try:
        return (folder / "order.json").stat().st_mtime
    except OSError:
        return 0.0


def _forget(folder: Path) -> None:
    """Remove the folder of an order that was not begun; the runner that found the lock held may still be on its way out of it."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(FOLLOW_S)


def _is_the_same(order: Dict[str, Any], holder: Dict[str, Any]) -> bool:
    """Whether a live rollout already works towards what the order wants. A launch to be looked at is one of its own, and promotes nothing."""
    if order.get("trial") or holder.get("trial"):
        return False
    return order.get("spec") is not None and holder.get("spec") == order["spec"] and holder.get("kind") == order["kind"]


def _attach_or_refuse(service: Service, order: Dict[str, Any], holder: Dict[str, Any]) -> Dict[str, Any]:
    other = holder.get("op")
    if not other or not _is_the_same(order, holder):
        raise locks.busy(service, holder, waits=True)
    emit("op", op=other, kind=holder["kind"], service=service.name, attached=True)
    return _follow(service, str(other), 0)


def _follow(service: Service, op: str, offset: int) -> Dict[str, Any]:
    path = events_file(service, op)
    rest = b""
    spoke = time.monotonic()
    while True:
        ended = outcome(service, op)
        lost = ended is None and not running(service, op)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            data = b""
        offset += len(data)
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        for event in filter(None, map(_event, lines)):
            write({**event, "op": op})
            spoke = time.monotonic()
        if ended is not None:
            return ended
        if lost and outcome(service, op) is None:
            raise AgentError(
                f"operation {op} ended without an outcome: its runner died",
                evidence=f"no live runner, and no {op}/outcome.json",
                next="gpuops status; then run the same command again: it starts over",
                code=UNKNOWN,
                kind="runner_died",
            )
        if time.monotonic() - spoke > BEAT_S:
            # Also how the loss of the client is noticed: the write fails.
            emit("beat")
            spoke = time.monotonic()
        time.sleep(FOLLOW_S)


def running(service: Service, op: str) -> bool:
    """Whether the operation's runner lives, or may still be on its way."""
    runner = read_json(service.operation(op) / "runner.json")
    try:
        if runner is not None:
            return alive(Identity.from_json(runner))
        began = service.operation(op).stat().st_ctime
    except (OSError, ValueError):
        return False
    return time.time() - began < RUNNER_STARTS_S


def _event(text: bytes) -> Optional[Dict[str, Any]]:
    """One line of an event file; None for one that cannot be read."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
