"""Saying why a launch failed: the log, the look at the host and the judgement, put together, with every secret taken out.

On the way back to a server that serves nothing may get in the way: :func:`examine` answers with None rather than fail.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from . import journal, look, releases, stall
from .diagnosis import Diagnosis, Ending, diagnose, redacted
from .logread import LogReader
from .logs import tail
from .paths import Root, Service
from .records import ServerRecord, read_exit, server_alive
from .signatures import UNKNOWN
from .vault import Redactor
from .wire import AgentError

# Of a longer log only the end is read: some seconds of work.
_MOST_BYTES = 16 << 20


def examine(
    service: Service, record: ServerRecord, document: Dict[str, Any], reader: LogReader, ending: Ending, *, silent: bool = False
) -> Optional[Diagnosis]:
    """Why this launch failed, or what it waits for.

    Args:
        document: the release's.
        reader: has read the launch's log so far.
        silent: it shows no sign of work.
    """
    try:
        return _examine(service, record, document, reader, ending, silent)
    except Exception:
        # A defect here must not cost the way back: the story goes to runner.log.
        traceback.print_exc(file=sys.stderr)
        return None


def verb(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """The `diagnose` verb: a release's last launch, or the one that runs.

    Args of the request: ``service``, ``release`` (the one that failed last, else the current one), ``reading`` (``phases`` and ``meaningful`` of the
    client, whose table may be newer than the release's own).
    """
    service = root.service(args["service"])
    number = args.get("release") or _interesting(service)
    release = releases.load(service, number)
    path = service.server_log(int(number)) if number is not None else None
    if release is None or path is None or not path.exists():
        raise AgentError(
            f"release {number} of {service.name} has no server log" if number else f"service {service.name} has no release",
            next="gpuops history",
            kind="no_log",
        )
    engine = {**release.document["engine"], **(args.get("reading") or {})}
    reader = LogReader(engine)
    reader.feed(tail(path, _MOST_BYTES))
    reader.finish()
    document = {**release.document, "engine": engine}
    record = server_alive(service)
    if record is not None and record.release == release.number:
        told = _examine(service, record, document, reader, Ending(alive=True), silent=False).to_json()
    else:
        past = _past(service, release.number)
        told = redacted(diagnose(reader, past.ending), Redactor(root)).to_json()
        if told["class"] in (None, UNKNOWN) and past.told:
            # It was looked at while it failed, by more than its log.
            told.update({key: value for key, value in past.told.items() if key in told})
    return {"service": service.name, "release": release.number, "log": str(path), **told}


def _examine(
    service: Service, record: ServerRecord, document: Dict[str, Any], reader: LogReader, ending: Ending, silent: bool
) -> Diagnosis:
    engine = document["engine"]
    scene = look.look(service, record, engine, document.get("cache"))
    meaningful = engine["meaningful"]
    waits = stall.judge(scene, reader.last_meaningful, meaningful.get("meeting", [])) if silent else None
    return redacted(diagnose(reader, ending, scene, waits, meaningful), Redactor(service.root))


@dataclass(frozen=True)
class _Past:
    """How a release's last launch ended, and what was said of it then."""

    ending: Ending
    told: Dict[str, Any]


def _past(service: Service, release: int) -> _Past:
    alive: Optional[bool] = None
    code = signal = None
    asked = False
    told: Dict[str, Any] = {}
    for entry in journal.entries(service):
        if entry.get("release") != release:
            continue
        if entry["event"] == "server":
            alive, code, signal, asked, told = False, None, None, False, {}
        elif entry["event"] == "died":
            code, signal = entry.get("code"), entry.get("signal")
        elif entry["event"] == "stopping":
            asked = True
        elif entry["event"] == "diagnosis":
            told = entry
    ended = read_exit(service)
    if ended is not None and ended.release == release and code is None and signal is None and not asked:
        code, signal = ended.code, ended.signal
    return _Past(Ending(alive, code, signal, asked), told)


def _interesting(service: Service) -> Optional[int]:
    """The release whose launch failed last, unless another one has become ready since; else the current or the newest."""
    failed: Optional[int] = None
    for entry in journal.entries(service):
        if entry["event"] == "diagnosis" or (entry["event"] == "died"):
            failed = entry.get("release")
        elif entry["event"] == "outcome" and entry.get("outcome") in ("promoted", "unchanged"):
            failed = None
    known: List[int] = releases.numbers(service)
    newest = known[-1] if known else None
    return next((each for each in (failed, releases.current(service), newest) if each is not None), None)
