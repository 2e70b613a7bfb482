"""One seeded rollout from its known-good release to the verdict."""

from __future__ import annotations

import json
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks import chaos_verdict as verdict
from benchmarks.chaos_draw import Case
from benchmarks.chaos_faults import Done, strike
from benchmarks.chaos_host import Host, Parts
from gpuops.sandbox import SandboxInfo

# Deadlines only end what would never end; all in seconds, for the imitation engine.
BEGIN_S = 60.0  # from the command to the operation's first event
END_S = 120.0  # from the fault to the operation's end
RECOVERS_S = 5.0  # until the host has begun to recover by itself
SETTLE_S = 3.0  # until what an operation leaves behind at its very end has gone
CLIENT_S = 60.0  # until a controller says how it ended
LOOK_S = 0.005

T = TypeVar("T")


@dataclass
class Result:
    """How one seed ended. ``faults`` is empty when it ended well."""

    case: Case
    faults: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    fault: str = ""
    outcome: str = ""
    needed_recover: bool = False
    unsupervised: bool = False
    known_s: float | None = None
    restores: list[verdict.Restore] = field(default_factory=list)
    seconds: float = 0.0


class NeverHappened(Exception):
    """A deadline of the harness passed."""


def play(case: Case, folder: Path, parts: Parts, sshd: SandboxInfo, *, keep: bool = False) -> Result:
    """Play a case in ``folder``, which is kept when it ended badly (or ``keep``). Never raises for what the case did."""
    host = Host(folder, parts, sshd, case)
    result = trial(host)
    host.close(keep=keep or bool(result.faults))
    return result


def trial(host: Host) -> Result:
    """Play the host's case. Never raises for what the case did."""
    began = time.monotonic()
    result = Result(host.case)
    try:
        _play(host, result)
    except Exception as error:
        what = str(error) if isinstance(error, NeverHappened) else traceback.format_exc(limit=-4)
        result.faults.append(what)
    if result.faults:
        result.evidence = _evidence(host)
    result.seconds = time.monotonic() - began
    return result


def _play(host: Host, result: Result) -> None:
    started = host.start_known_good()
    if started["outcome"] not in ("promoted", "unchanged"):
        raise NeverHappened(f"the known-good release did not start: {json.dumps(started)}")
    before, told = set(host.operations()), len(verdict.journal(host)[0])
    end_s, client_s = END_S * host.parts.patience, CLIENT_S * host.parts.patience
    controller = host.gpuops("up")
    op = _wait(lambda: _begun(host, before, controller), "the rollout begins", BEGIN_S * host.parts.patience)
    _wait(lambda: _reached(host, op), f"{host.case.phase or f'event {host.case.moment}'}, or the end", end_s)
    done = strike(host, op, controller)
    result.fault = done.what
    try:
        _wait(lambda: not host.busy(), "the operation ends", end_s)
        if done.second is not None:
            host.ended(done.second, client_s)
            _wait(lambda: not host.busy(), "the second operation ends", end_s)
    finally:
        done.mend()
    result.known_s = done.known_s
    result.outcome = str((host.outcome(op) or {}).get("outcome", "cut"))
    _settle(host, result, op)
    _check_controller(host, result, controller, op)
    ran = host.ended(host.gpuops("status"), client_s)
    services = ran.json.get("services") or [{}]
    if ran.code != 0 or services[0].get("state") != "running":
        result.faults.append(f"gpuops status ended with {ran.code}: {services[0].get('state')} {ran.err[-300:]}")
    result.unsupervised = not verdict.supervised(host)
    result.restores = verdict.restores(verdict.journal(host)[0][told:])


def _settle(host: Host, result: Result, op: str) -> None:
    """Wait until all is well; when it is not by itself, one `gpuops recover` must make it so."""
    known, patience = len(host.operations()), host.parts.patience
    if host.outcome(op) is None:
        # Its runner died. The host may recover by itself.
        _wait_for(lambda: len(host.operations()) > known or not verdict.faults_of(host), RECOVERS_S * patience)
        if len(host.operations()) > known:
            # Its record is there before its runner has the lock.
            _wait_for(lambda: host.busy() or host.outcome(host.operations()[-1]), RECOVERS_S * patience)
    _wait(lambda: not host.busy(), "the host's own recovery ends", END_S * patience)
    unwell = _settled(host)
    if not unwell:
        return
    result.needed_recover = True
    result.fault += f"; by itself: {'; '.join(unwell)}"
    ran = host.ended(host.gpuops("recover"), END_S * patience)
    unwell = _settled(host)
    if unwell:
        result.faults += unwell
        result.faults.append(f"after gpuops recover, which ended with {ran.code}: {(ran.out + ran.err)[-600:]}")


def _settled(host: Host) -> list[str]:
    """What is still wrong once everything had the time to settle."""
    faults: list[str] = []

    def well() -> bool:
        faults[:] = verdict.faults_of(host)
        return not faults

    _wait_for(well, SETTLE_S * host.parts.patience)
    return faults


def _check_controller(host: Host, result: Result, controller: subprocess.Popen[str], op: str) -> None:
    """A controller that lives and can reach its host has to end; and it never says that it is done when it is not."""
    if host.case.fault in ("kill_controller", "link_down", "link_half_open"):
        return
    ran = host.ended(controller, CLIENT_S * host.parts.patience)
    if ran.code == 0 and (host.outcome(op) or {}).get("code") != 0 and host.case.fault != "garbled_file":
        result.faults.append(f"the controller said {ran.json}, the host {host.outcome(op)}")


def _begun(host: Host, before: set[str], controller: subprocess.Popen[str]) -> str | None:
    new = [op for op in host.operations() if op not in before and host.events(op)]
    if not new and controller.poll() is not None:
        raise NeverHappened(f"the rollout did not begin: {host.ended(controller, 1)}")
    return new[0] if new else None


def _reached(host: Host, op: str) -> bool:
    events, case = host.events(op), host.case
    come = any(event.get("phase") == case.phase for event in events) if case.phase else len(events) >= case.moment
    return come or any(event["event"] == "outcome" for event in events) or not host.busy()


def _wait(look: Callable[[], T | None], what: str, patience: float) -> T:
    value = _wait_for(look, patience)
    if not value:
        raise NeverHappened(f"this never came true within {patience:g} s: {what}")
    return value


def _wait_for(look: Callable[[], T | None], patience: float) -> T | None:
    deadline = time.monotonic() + patience
    pause = LOOK_S
    while not (value := look()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 1.05, 0.1)
    return value


def _evidence(host: Host) -> list[str]:
    """What a person looks at first."""
    lines = [f"process {pid}: {' '.join(words)[:160]}" for pid, words, _ in host.processes()]
    for op in host.operations()[-4:]:
        told = [
            " ".join(str(event.get(key)) for key in ("event", "phase", "text", "state") if event.get(key))
            for event in host.events(op)
        ]
        lines.append(f"operation {op}: {'; '.join(told)}")
        lines.append(f"  outcome: {json.dumps(host.outcome(op))}")
    return lines


__all__ = ["Done", "Result", "play", "trial"]
