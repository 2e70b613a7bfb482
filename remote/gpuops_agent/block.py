"""One block: a cell is measured once, between two looks at the server, under watch, and then judged."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from . import aiperf_client, counters, http, load_client, open_loop, own_client, proc, telemetry
from .load_run import NATIVE, Cell, Run, figures
from .records import ServerRecord
from .releases import Release
from .server import Server, at, filled
from .validate import Block, Canary, Witness, faults
from .wire import AgentError

# How often a running client is looked after, in seconds.
LOOK_S = 0.1

# The prefix cache cannot be emptied, and counters are not complete, while a request is on its way out: so many seconds are given, and so many
# in which nothing changes.
SETTLE_S = 15.0
QUIET_S = 1.0

# Tokens that every warm-up request generates: enough for prefill and decode to have met the cell's batch sizes; and how many are sent at a time
# before an open loop, whose batches have any size.
WARM_TOKENS = 8
WARM_OPEN = 16


@dataclass(frozen=True)
class Target:
    """What is measured, and in which words it is asked (``load`` of the engine's facts). ``client`` None: our own."""

    server: Server
    record: ServerRecord
    release: Release
    log: Path
    words: Mapping[str, Any]
    client: Optional[load_client.Client]


Progress = Callable[[telemetry.Sample], None]


def measure(target: Target, cell: Cell, seed: int, deadline_s: float, progress: Progress, path: str = NATIVE) -> Dict[str, Any]:
    """Measure a cell once.

    Args:
        seed: of the prompts; a used one would meet its own prompts in the prefix cache.
        deadline_s: seconds for the timed part.
        progress: hears every sample of the telemetry.
    Returns:
        ``{cell, seed, client, valid, rejected, faults, notes, figures, requests, telemetry, counters}``; figures and requests are null for an invalid
        block; notes are what spoils nothing.
    """
    info = _info(target)
    warm_up(target, cell, seed + 1)
    canary = _canary(target)
    if cell.cold:
        flush(target)
    before = Witness(_identity(target), _quiet(target), canary)
    watch = telemetry.Watch(target.server, target.record, target.words, target.log, target.release.document)
    run = _run(target, cell, seed, deadline_s, path, watch, progress)
    settled = _settle(target, run.tokens, before.counters)
    after = Witness(_identity(target), settled, _canary(target))
    block = Block(
        cell,
        run,
        before,
        after,
        one_token_chunks=_one_token_chunks(info, target.words),
        finish_expected=target.words["canary"]["expected"],
        canary_tokens=target.words["canary"]["body"]["sampling_params"]["max_new_tokens"],
    )
    rejected, spoiled = faults(block), watch.faults(cell.at_most)
    wrong = rejected + spoiled
    return {
        "cell": cell.to_json(),
        "seed": seed,
        "client": run.client,
        "path": run.path,
        "at": round(time.time(), 3),
        "valid": not wrong,
        "rejected": bool(rejected),
        "faults": wrong,
        "notes": watch.notes() + ([] if wrong else open_loop.notes(run, cell)),
        "figures": None if wrong else {**figures(run, cell), **open_loop.figures(run, cell)},
        "requests": None if wrong else [_columns(request) for request in run.requests],
        "telemetry": [sample.to_json() for sample in watch.samples],
        "counters": {"before": _json(before.counters), "after": _json(after.counters)},
    }


def warm_up(target: Target, cell: Cell, seed: int) -> None:
    """As many requests of the cell's shape at a time as the cell has, outside of all measurement. Their failures show in the run."""
    number = cell.concurrency or min(cell.requests, WARM_OPEN)
    tokens = min(cell.output_tokens, WARM_TOKENS)
    draw = random.Random(seed)
    words = _vocabulary(target)

    def one(prompt: List[int]) -> None:
        body = filled(target.words["ids"], {"@{ids}": prompt, "@{max_tokens}": tokens})
        server = target.server
        http.post(server.host, server.port, server.engine["endpoints"]["generate"][0], body, own_client.SILENCE_S, server.headers)

    with ThreadPoolExecutor(number) as pool:
        list(pool.map(one, [[draw.randrange(words) for _ in range(cell.input_tokens)] for _ in range(number)]))


def flush(target: Target) -> None:
    """Empty the prefix cache.

    Raises:
        AgentError: the server does not do so, usually because somebody else's requests are running.
    """
    server = target.server
    deadline = proc.boottime() + SETTLE_S
    while True:
        answer = http.post(server.host, server.port, target.words["flush"], {}, counters.TIMEOUT_S, server.headers)
        if answer.status == 200:
            return
        if proc.boottime() > deadline:
            said = answer.error or f"HTTP {answer.status}: {server.redact(answer.body.decode('utf-8', 'replace'))[:200]}"
            raise AgentError(
                "the prefix cache could not be emptied",
                evidence=f"POST {target.words['flush']}: {said}",
                next="keep other traffic off the server, and try again",
                kind="flush",
            )
        time.sleep(LOOK_S)


def _run(target: Target, cell: Cell, seed: int, deadline_s: float, path: str, watch: telemetry.Watch, progress: Progress) -> Run:
    if cell.client == aiperf_client.NAME and not aiperf_client.installed(target.release):
        return Run(aiperf_client.NAME, NATIVE, 0, 0.0, [], failure=aiperf_client.MISSING)
    folder = Path(tempfile.mkdtemp(prefix="gpuops-load-"))
    watch.look()
    started = _start(target, cell, seed, folder, path)
    began = looked = proc.boottime()
    try:
        while True:
            run = started.poll()
            if run is not None:
                return run
            now = proc.boottime()
            if not proc.alive(target.record.identity):
                return _none(target, cell, path, "the server died during the run")
            if now - began > deadline_s:
                return _none(target, cell, path, f"the run did not end within {deadline_s:g} s")
            if now - looked >= telemetry.PERIOD_S:
                progress(watch.look())
                looked = now
            time.sleep(LOOK_S)
    finally:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    target: Target, cell: Cell, seed: int, folder: Path, path: str
) -> Union[load_client.Started, own_client.Started, aiperf_client.Started]:
    if cell.client == aiperf_client.NAME:
        return aiperf_client.Started(target.release, target.server, target.words, cell, seed, _vocabulary(target), folder)
    if target.client is None:
        return own_client.Started(target.server, target.words, cell, seed, _vocabulary(target), path)
    return load_client.Started(target.client, target.release, target.server, target.words, cell, seed, folder, path)


def _none(target: Target, cell: Cell, path: str, why: str) -> Run:
    return Run(cell.client or (target.client.name if target.client else own_client.NAME), path, 0, 0.0, [], failure=why)


def _quiet(target: Target) -> Optional[counters.Counters]:
    """The counters once what was asked before the run is in them."""
    began = proc.boottime()
    last = counters.read(target.server, target.words)
    while last is not None and proc.boottime() - began < SETTLE_S:
        time.sleep(LOOK_S)
        latest = counters.read(target.server, target.words)
        if latest == last and latest.running == 0:
            break
        last = latest
    return last


def _settle(target: Target, told: int, before: Optional[counters.Counters]) -> Optional[counters.Counters]:
    """The counters once they are complete: the server counts a request when it is done with it, which may be after the client is."""
    began = changed = proc.boottime()
    last = counters.read(target.server, target.words)
    while last is not None and before is not None and last.generated - before.generated < told:
        time.sleep(LOOK_S)
        now, latest = proc.boottime(), counters.read(target.server, target.words)
        changed = now if latest != last else changed
        last = latest
        if now - changed > QUIET_S or now - began > SETTLE_S:
            break
    return last


def _identity(target: Target) -> Dict[str, Any]:
    """Process and arguments: pid, start, boot, and everything constant that the server says of itself."""
    said = _info(target)
    fixed = {key: value for key, value in said.items() if key not in target.words["changing"]}
    record = target.record
    stat = proc.read_stat(record.pid)
    return {
        "pid": record.pid,
        "started": stat.start if stat is not None and stat.living else None,
        "arguments": hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16],
    }


def _canary(target: Target) -> Canary:
    words, server = target.words["canary"], target.server
    answer = http.post(
        server.host, server.port, server.engine["endpoints"]["generate"][0], words["body"], own_client.SILENCE_S, server.headers
    )
    if answer.status != 200:
        return Canary("", None, None, answer.error or f"HTTP {answer.status}")
    value = answer.json()
    if isinstance(value, dict) and "error" in value:
        return Canary("", None, None, server.redact(f"the answer is an error: {value['error']}")[:200])
    text = at(value, words["text"])
    return Canary(text if isinstance(text, str) else "", at(value, words["tokens"]), at(value, words["finish"]))


def _info(target: Target) -> Dict[str, Any]:
    return target.server.info().value or {}


def _one_token_chunks(info: Mapping[str, Any], words: Mapping[str, Any]) -> bool:
    row = words["single_token_chunks"]
    return not any(info.get(key) for key in row["unless"]) and info.get(row["interval"], 1) in (None, 1)


def _vocabulary(target: Target) -> int:
    return load_client.vocabulary(Path(target.server.model))


def _columns(request: Any) -> List[float]:
    """TTFT, TPOT, E2E in milliseconds, and the tokens."""
    return [round(request.ttft * 1e3, 3), round(request.tpot * 1e3, 4), round(request.e2e * 1e3, 3), request.tokens]


def _json(counted: Optional[counters.Counters]) -> Optional[Dict[str, float]]:
    return counted.to_json() if counted else None
