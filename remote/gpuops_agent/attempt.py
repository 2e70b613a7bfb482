"""One attempt to bring a release up: launch, prove ready, put the probes. It either succeeds or says why not, with the evidence."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from . import caches, claims, liveness, probes, proofs, ready, releases
from .diagnosis import Ending, brief
from .examine import examine
from .files import write_json
from .guard import Died, Guard
from .paths import Service, own_zipapp
from .proc import boottime, title
from .recorder import Recorder
from .records import LaunchSpec, ServerRecord
from .releases import Release
from .server import Server, of_release
from .supervisor import launch
from .wire import AgentError

# Kinds of failure of a server that lives and shows no sign of work.
_SILENT = ("stalled", "hung")

# Kinds of error of a launch that say nothing of the release: the disk was full, or the supervisor died before it started anything.
_NOT_ITS_FAULT = ("disk_full", "no_supervisor")

# Characters of an answer that evidence repeats: garbage is recognised by less.
LONGEST_ANSWER = 120


class Failure(Exception):
    """Why a release did not come up. ``reason`` is one line; ``evidence`` what shows it; ``next`` a command; ``diagnosis`` as told to a client."""

    def __init__(
        self, kind: str, reason: str, evidence: str = "", next: str = "", diagnosis: Optional[Dict[str, Any]] = None
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.evidence = evidence
        self.next = next
        self.diagnosis = diagnosis


@dataclass(frozen=True)
class Up:
    """A release that serves: its process, and what the gates showed. ``proof`` is that of its kernels, None where it has none to give."""

    record: ServerRecord
    seconds: float
    results: List[Dict[str, Any]] = field(default_factory=list)
    proof: Optional[Dict[str, Any]] = None


def bring_up(
    service: Service,
    release: Release,
    recorder: Recorder,
    *,
    fast: bool,
    cancelled: Callable[[], bool],
    on_ready: Callable[[], None] = lambda: None,
    insist: bool = True,
) -> Up:
    """Launch a release and gate it.

    Args:
        fast: the short gate of a known-good release: ready, and one required probe.
        on_ready: called between readiness and the probes; may raise Failure.
        insist: whether a missing proof of its kernels fails the release; else it is only told.
    Raises:
        Failure: it died, did not become ready, or answered wrong; the server may still run.
        wire.Cancelled, AgentError
    """
    began = boottime()
    server = of_release(service, release)
    recorder("phase", phase="launch", progress=None, detail=f"release {release.number}")
    _keep_old_log(service, release.number)
    cache = Path(release.document["cache"]) if release.document.get("cache") else None
    before = caches.look(cache) if cache else None
    if cache:
        caches.point(service, cache)
    proofs.clear(release)
    record = _launch(service, release)
    recorder("server", release=release.number, pid=record.pid, port=record.port)
    with Guard(service, record, release.document["engine"], cancelled, recorder) as guard:
        try:
            answered = ready.wait(guard, server, release.document["deadlines"], _tells_silence(guard, release, recorder))
            recorder("answered", release=release.number, at=round(answered, 3))
            recorder("ready", release=release.number, seconds=round(boottime() - began, 3))
            on_ready()
            proof = _prove(release, record, recorder, insist=insist)
            results = gate(guard, server, release, recorder, fast=fast, proof=proof)
        except Died as death:
            recorder("died", release=release.number, **death.facts)
            failure = Failure("died", _death(death.facts), str(death.facts.get("line") or ""))
            raise explained(failure, guard, release, recorder, death.ending) from death
        except ready.NotReady as error:
            failure = Failure(error.kind, error.what, error.evidence)
            raise explained(failure, guard, release, recorder, Ending(alive=True)) from error
    if cache and before:
        try:
            recorder("cache", **caches.started(cache, release.number, before, caches.look(cache)))
        except (AgentError, OSError) as error:
            recorder("note", text=f"the cache's record could not be written: {error}")
    return Up(record, boottime() - began, results, proof)


def explained(failure: Failure, guard: Guard, release: Release, recorder: Recorder, ending: Ending) -> Failure:
    """The same failure with its diagnosis, told and noted; where that is sure, its evidence and its cure are the failure's."""
    silent = failure.kind in _SILENT
    found = examine(guard.service, guard.record, release.document, guard.log, ending, silent=silent)
    if found is None or not found.name:
        return failure
    told = brief(found)
    recorder("diagnosis", release=release.number, **told)
    if not found.sure:
        return Failure(failure.kind, failure.reason, failure.evidence, failure.next, told)
    shown = f"{found.what} ({found.evidence}); {failure.evidence}" if found.waits_for else found.evidence or failure.evidence
    return Failure(failure.kind, failure.reason, shown, failure.next or found.cure, told)


def _tells_silence(guard: Guard, release: Release, recorder: Recorder) -> Callable[[float], None]:
    """What tells of a start without a sign of work, long before it is given up: how long, and what it waits for."""

    def tell(seconds: float) -> None:
        found = examine(guard.service, guard.record, release.document, guard.log, Ending(alive=True), silent=True)
        recorder("silent", release=release.number, seconds=round(seconds, 1), **(brief(found) if found else {}))

    return tell


def gate(
    guard: Guard,
    server: Server,
    release: Release,
    recorder: Recorder,
    *,
    fast: bool,
    proof: Optional[Dict[str, Any]] = None,
) -> List[Dict[str, Any]]:
    """Put the release's probes and keep the results in ``gates.json``; the one probe of the short gate leaves that record alone.

    The first required probe that fails ends it: the verdict stands, and every further question would only lengthen the outage.

    Raises:
        Failure: a required probe failed; its question and answer are the evidence.
    """
    asked = release.document["probes"]
    if fast:
        asked = probes.required(asked)[:1]
    guard.enter("probes", f"{len(asked)} probes", 0.0)
    results: List[Dict[str, Any]] = []
    for number, probe in enumerate(asked, 1):
        results.append(_put(guard, server, probe, release.document["deadlines"]["probe_s"]))
        recorder("probe", **results[-1])
        guard.enter("probes", probe["name"], number / len(asked))
        if probes.failed(results):
            break
    wrong = probes.failed(results)
    if not fast:
        write_json(release.path / "gates.json", {"asked": len(asked), "probes": results, "passed": not wrong, **_and(proof)})
    if wrong:
        what = wrong[0]["error"] or f"answered {_short(wrong[0]['answer'])!r}, expected: {wrong[0]['expectation']}"
        evidence = f"asked {wrong[0]['question']!r}, {what}"
        raise Failure("wrong_answers", f"probe {wrong[0]['name']} failed ({len(results)} of {len(asked)} put)", evidence)
    return results


def _prove(release: Release, record: ServerRecord, recorder: Recorder, *, insist: bool) -> Optional[Dict[str, Any]]:
    """What the ranks prove of the build's kernels, told and noted; None where no proof is expected. Raises Failure when it is not enough."""
    verdict = proofs.check(release, record)
    if verdict is None:
        return None
    build = release.document["build"]["id"]
    proof = {"build": build, **verdict.to_json()}
    recorder("proof", release=release.number, **proof)
    if verdict.passed:
        return proof
    if not insist:
        recorder("note", text=f"release {release.number} serves without the proof of its kernels: {verdict.text}")
        return proof
    write_json(release.path / "gates.json", {"asked": 0, "probes": [], "passed": False, "proof": proof})
    evidence = " | ".join(verdict.evidence)
    raise Failure("proof", f"the kernel pack {build} did not prove itself: {verdict.text}", evidence, "gpuops logs")


def _and(proof: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    return {} if proof is None else {"proof": proof}


def _short(answer: str) -> str:
    """The beginning of an answer, for one line of evidence; ``gates.json`` holds all of it."""
    return answer if len(answer) <= LONGEST_ANSWER else f"{answer[:LONGEST_ANSWER]}..."


def _put(guard: Guard, server: Server, probe: Dict[str, Any], timeout: float) -> Dict[str, Any]:
    began = boottime()
    log = guard.service.server_log(guard.record.release)
    before = liveness.sample(guard.record, log)
    result = guard.during(lambda: probes.run(server, probe, timeout))
    if result["timed_out"]:
        # No answer is no wrong answer: say whether the engine hangs or is only slow.
        state, evidence = liveness.judge(before, liveness.sample(guard.record, log), timeout, liveness.CLOCK_TICKS, title)
        raise Failure(state, f"the server does not generate any more (probe {probe['name']})", evidence)
    if result["error"]:
        guard.expect_end()
    return {**result, "seconds": round(boottime() - began, 3)}


def _launch(service: Service, release: Release) -> ServerRecord:
    try:
        return launch(_launch_spec(service, release), own_zipapp())
    except AgentError as error:
        if error.kind in _NOT_ITS_FAULT:
            raise
        raise Failure(error.kind, error.what, error.evidence, error.next) from error


def _launch_spec(service: Service, release: Release) -> LaunchSpec:
    document = release.document
    return LaunchSpec(
        service=service,
        release=release.number,
        argv=document["argv"],
        env={**document["env"], **proofs.environment(document, release.path)},
        secrets_dir=service.root.secrets,
        port=document["port"],
        rank_patterns=document["engine"]["ranks"]["patterns"],
        log_file=service.server_log(release.number),
        cwd=Path(document.get("cwd") or release.path),
        gpus=claims.gpus_of(document),
    )


def _keep_old_log(service: Service, number: int) -> None:
    """A release that starts again gets a fresh log; the older ones are kept as ``server.log.1``, ``.2``, ..."""
    log = service.server_log(number)
    if not log.exists() or log.stat().st_size == 0:
        return
    older = 1
    while log.with_name(f"server.log.{older}").exists():
        older += 1
    os.replace(log, log.with_name(f"server.log.{older}"))


def _death(facts: Dict[str, Any]) -> str:
    phase = facts.get("phase") or "launch"
    return f"{facts['what']} in phase {phase}"


def mark(service: Service, recorder: Recorder, number: int, state: str, reason: str = "") -> None:
    """Set a release's state and tell the followers."""
    releases.set_state(service, number, state, reason, recorder.op)
    recorder("state", release=number, state=state, reason=reason)
