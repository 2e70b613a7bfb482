"""The `bench` verb: measure the server that runs now at some cells, and keep what was measured with its release."""

from __future__ import annotations

import os
import random as numbers
import secrets as random
import time
from typing import Any, Dict, List, Optional

from . import block, load_client, locks, measurements, proc, releases
from .beats import alongside
from .load_run import Cell
from .paths import Root, Service
from .records import ServerRecord, server_alive
from .releases import Release
from .server import of_release
from .telemetry import Sample
from .wire import AgentError, Emit, emit

# A block spoiled by a passer-by is measured again so many times; one that the validator rejects is not, since it would be again.
TRIES = 2


def bench(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Measure ``cells`` in their order, holding the service's lock: nothing may change the server meanwhile.

    Args (of the request): ``service``, ``by``, ``load`` (the engine's words), ``cells`` or null for the release's own, ``default_cells``,
        ``only``, ``deadline_s``, ``seed`` or null for a fresh one.
    Returns:
        ``{release, launch, known_good, client, blocks: [block + {reference}], valid}``; ``reference`` is what the block is compared with, or null.
    Raises:
        AgentError: there is no server; the service is busy (code 13).
    """
    service = root.service(args["service"])
    record, release = running(service)
    lock = _lock(service, args["by"])
    try:
        with alongside():
            return _bench(service, record, release, args)
    finally:
        service.lock_owner.unlink(missing_ok=True)
        os.close(lock)


def running(service: Service) -> "tuple[ServerRecord, Release]":
    """The server that runs now, and its release. Raises AgentError when there is none."""
    record = server_alive(service)
    release = releases.load(service, record.release if record else None)
    if record is None or release is None:
        raise AgentError(
            f"service {service.name} runs no server",
            evidence="no live process is recorded",
            next="gpuops status",
            kind="not_running",
        )
    return record, release


def cells_of(release: Release, args: Dict[str, Any]) -> List[Cell]:
    """The cells of the request, else those of the release's playbook, else the default ones; of these the named ones (``only``).

    Raises:
        AgentError: there is no cell of that name (usage).
    """
    own = (release.document.get("playbook") or {}).get("bench") or {}
    told = args.get("cells") or own.get("cells") or args["default_cells"]
    cells = {cell["name"]: Cell.from_json(cell) for cell in told}
    unknown = [name for name in args.get("only") or () if name not in cells]
    if unknown:
        known, first = ", ".join(cells), next(iter(cells))
        raise AgentError(
            f"there is no cell {unknown[0]!r}",
            evidence=f"cells: {known}",
            next=f"gpuops bench --cell {first}",
            code=2,
            kind="usage",
        )
    return [cells[name] for name in args.get("only") or cells]


def measure(target: block.Target, cell: Cell, draw: numbers.Random, deadline_s: float, tell: Emit) -> Dict[str, Any]:
    """Measure a cell; once more when the host has spoiled the first time. Returns the last block, as :func:`block.measure` does."""
    for attempt in range(1, TRIES + 1):
        again = f", attempt {attempt}" if attempt > 1 else ""
        tell("phase", phase=cell.name, progress=None, detail=f"warming up{again}")
        # SGLang's clients take seeds of 32 bits.
        measured = block.measure(target, cell, draw.getrandbits(31), deadline_s, _Progress(cell, tell))
        if measured["valid"] or measured["rejected"]:
            break
    return measured


def launch_of(record: ServerRecord) -> str:
    """What tells one start of a server from every other one."""
    return f"{record.pid}-{record.start}"


def _bench(service: Service, record: ServerRecord, release: Release, args: Dict[str, Any]) -> Dict[str, Any]:
    words = args["load"]
    client = load_client.find(release, words)
    target = block.Target(of_release(service, release), record, release, service.server_log(release.number), words, client)
    cells = cells_of(release, args)
    name = client.name if client else "gpuops"
    emit("measuring", release=release.number, client=name, cells=[cell.to_json() for cell in cells])
    draw = numbers.Random(args.get("seed") if args.get("seed") is not None else random.randbits(63))
    done = []
    for cell in cells:
        measured = measure(target, cell, draw, float(args["deadline_s"]), emit)
        kept = {**measured, "release": release.number, "launch": launch_of(record), "by": args["by"]}
        against = measurements.reference(service, release.number, kept)
        measurements.append(service, release.number, kept)
        told = {**_short(kept), "reference": _short(against) if against else None}
        emit("block", **told)
        done.append(told)
    return {
        "service": service.name,
        "release": release.number,
        "launch": launch_of(record),
        "known_good": releases.known_good(service),
        "client": name,
        "blocks": done,
        "valid": all(each["valid"] for each in done),
    }


class _Progress:
    """Tells how much of a cell's answers has been generated, by the server's own counter."""

    def __init__(self, cell: Cell, tell: Emit) -> None:
        self._cell = cell
        self._tell = tell
        self._first: Optional[float] = None

    def __call__(self, sample: Sample) -> None:
        share = None
        if sample.generated is not None:
            self._first = sample.generated if self._first is None else self._first
            share = min(1.0, (sample.generated - self._first) / (self._cell.requests * self._cell.output_tokens))
        running = "" if sample.running is None else f"{sample.running:.0f} requests run"
        self._tell("phase", phase=self._cell.name, progress=share, detail=running)


def _short(measured: Dict[str, Any]) -> Dict[str, Any]:
    """A block without what only its record needs."""
    return {key: value for key, value in measured.items() if key not in ("requests", "telemetry")}


def _lock(service: Service, by: str) -> int:
    locks.refuse_if_locked(service)
    me = proc.identify(os.getpid())
    assert me is not None, "we live"
    owner = {"op": f"bench-{random.token_hex(4)}", "kind": "bench", "by": by, "at": time.time(), "runner": me.to_json()}
    try:
        return locks.acquire(service, owner)
    except locks.Held as held:
        raise locks.busy(service, held.owner) from held
