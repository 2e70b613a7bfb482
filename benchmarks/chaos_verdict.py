"""Whether a rollout ended well, and what its restore cost: looked at from outside, without asking gpuops more than its status."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
from gpuops_agent import proc

from benchmarks.chaos_host import Host, read_json

ASK_S = 10.0

Json = dict[str, Any]


@dataclass(frozen=True)
class Restore:
    """What one restore took, from the journal's times (CLOCK_BOOTTIME), in seconds.

    Args:
        total: from the verdict to the restored server's first answer. The verdict is the operation's first `died`, or `state` that says `bad`
            or `unknown`; for a `recover`, its beginning.
        stop: from TERM to the last process gone, as the stops after the verdict measured it (`stopped`, `proof.seconds`).
        start: from the launched process (`server`) to its first answer (`answered`).
    """

    total: float
    stop: float
    start: float

    @property
    def own(self) -> float:
        """What gpuops added to it."""
        return self.total - self.stop - self.start


def faults_of(host: Host) -> list[str]:
    """What is not as it has to be once a rollout has ended; empty when it ended well."""
    return list(_faults(host))


def journal(host: Host) -> tuple[list[Json], int]:
    """The journal's records, and how many lines of it cannot be read."""
    records, unreadable = [], 0
    for line in host.service.journal.read_bytes().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            records.append(value)
        else:
            unreadable += 1
    return records, unreadable


def restores(records: list[Json]) -> list[Restore]:
    """Every restore of a journal that was brought to an answer."""
    found: list[Restore] = []
    kinds = {each["op"]: each["kind"] for each in records if each["event"] == "op"}
    for op, kind in kinds.items():
        verdict, stop, launched, restoring = None, 0.0, None, False
        for each in records:
            if each.get("op") != op:
                continue
            event, at = each["event"], each["boot"]
            if event == "op" and kind == "recover":
                verdict = at
            elif restoring and event == "server":
                launched = at
            elif restoring and event == "answered" and launched is not None and verdict is not None:
                found.append(Restore(at - verdict, stop, at - launched))
                break
            elif event == "restoring":
                restoring = True
            elif restoring and event == "died":
                # Killed while it came back, and started once more: that costs what this second start costs.
                verdict, stop = at, 0.0
            elif event == "died" or (event == "state" and each["state"] in ("bad", "unknown")):
                verdict, stop = (at, 0.0) if verdict is None else (verdict, stop)
            elif event == "stopped" and verdict is not None:
                stop += each["proof"]["seconds"]
    return found


def _faults(host: Host) -> Iterator[str]:
    good, current = _link(host, "good"), _link(host, "current")
    if good is None or not host.may_be_good(good):
        yield f"release {good} is known-good; the candidate was: {host.case.candidate}"
    if current != good:
        yield f"release {current} is meant to run, release {good} is known-good"
    engines = host.engines()
    record = read_json(host.service.server_file)
    if len(engines) != 1:
        yield f"{len(engines)} servers live: {engines}"
    if record is None:
        yield "there is no readable PID file"
    else:
        if [record["pid"]] != engines:
            yield f"the PID file names {record['pid']}, the server is {engines}"
        if record["release"] != good:
            yield f"release {record['release']} runs, release {good} is known-good"
        yield from _answers(host, int(record["port"]))
        yield from _strays(host, str(record["run"]))
    yield from _locks(host)
    _, unreadable = journal(host)
    if unreadable > (host.case.fault == "garbled_file"):
        yield f"{unreadable} lines of the journal cannot be read"


def _answers(host: Host, port: int) -> Iterator[str]:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    # Greedy and short, as the probes ask: a small model may say anything once it is sampled.
    body = {"model": "demo", "messages": question, "temperature": 0, "max_tokens": 32}
    try:
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=ASK_S * host.parts.patience)
        text = answer.json()["choices"][0]["message"]["content"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        yield f"no answer on port {port}: {error!r}"
        return
    if "Paris" not in text:
        yield f"it answers {text!r}"


def _strays(host: Host, run: str) -> Iterator[str]:
    supervisor = host.supervisor()
    for pid, words, its_run in host.processes():
        if its_run != run and (supervisor is None or pid != supervisor.pid):
            yield f"a stray process: {pid} {' '.join(words)[:120]}"


def _locks(host: Host) -> Iterator[str]:
    if host.busy():
        yield "an operation is still running"
        return
    fd = os.open(host.service.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield "the service's lock is held by nobody who lives"
    finally:
        os.close(fd)


def _link(host: Host, name: str) -> int | None:
    try:
        text = (host.service.path / name).readlink().name
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def supervised(host: Host) -> bool:
    """Whether somebody watches the server that serves."""
    supervisor = host.supervisor()
    return supervisor is not None and proc.alive(supervisor)
