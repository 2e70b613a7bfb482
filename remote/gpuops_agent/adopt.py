"""The `adopt` verb: a server that somebody started by hand becomes release 0 of a service, good as it serves.

Nothing is signalled, and nothing is started but a supervisor that watches it. From then on a rollout can stop the server by its
identity, and start it again from what its process showed: the same arguments, environment and working folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets as random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from . import beats, claims, foreign, journal, locks, models, proc, releases, supervisor, vault
from .conceal import Concealed, conceal
from .files import sync_folder, write_json
from .foreign import Foreign, refused
from .net import Listener
from .paths import Root, Service, own_zipapp
from .records import RUN_TAG, ServerRecord, run_processes, server_alive, supervisor_alive
from .releases import BAD, GOOD, STAGED
from .server import Server, reachable
from .wire import AgentError

NUMBER = 0
"""The release of an adopted server: rollouts count from 1."""

_TOKENS = 2
_OWN_FLAGS = frozenset({"model-path", "model", "host", "port", "served-model-name"})


@dataclass(frozen=True)
class Proved:
    """A server that answers: where, and who it says it is."""

    listener: Listener
    server: Server


def adopt(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Adopt a running server.

    Args:
        args: ``{service, by, engine, probes, deadlines, gpus?, pid?, port?}``; engine, probes and deadlines as in an order. Without
            ``pid`` and ``port`` it is the only listening process that has the engine's name in its arguments.
    Returns:
        ``{service, release, pid, port, model, served_model_name, engine, secrets: [NAME], notes: [TEXT]}``
    Raises:
        AgentError: refused (code 13), and nothing was changed.
    """
    service = root.service(args["service"])
    locks.refuse_if_locked(service)
    me = proc.identify(os.getpid())
    assert me is not None, "this process has no /proc entry"
    op = f"adopt-{random.token_hex(4)}"
    owner = {"op": op, "kind": "adopt", "by": args["by"], "at": time.time(), "runner": me.to_json()}
    try:
        lock = locks.acquire(service, owner)
    except locks.Held as held:
        raise locks.busy(service, held.owner) from held
    try:
        return _adopt(service, args)
    finally:
        service.lock_owner.unlink(missing_ok=True)
        os.close(lock)


def _adopt(service: Service, args: Dict[str, Any]) -> Dict[str, Any]:
    _may_begin(service)
    known = _known(service)
    found = foreign.read(foreign.find(args.get("pid"), args.get("port"), args["engine"]["name"], known.keys()))
    pid = found.identity.pid
    if pid in known:
        raise refused(f"process {pid} belongs to the service {known[pid]}", proc.title(pid), "gpuops status")
    hidden = conceal(found.argv, _environment(found), lambda name, value: _free(service.root, name, value))
    proved = beats.during(lambda: _prove(service.root, found, hidden, args))
    claims.check(service, proved.listener.port, claims.gpus_of(args))
    document = _document(service, found, hidden, proved, args)
    _keep(service, document, hidden, found, proved)
    journal.write(service, "adopted", release=NUMBER, pid=pid, port=proved.listener.port, by=args["by"])
    return {
        "service": service.name,
        "release": NUMBER,
        "pid": pid,
        "port": proved.listener.port,
        "model": proved.server.model,
        "served_model_name": proved.server.served_name,
        "engine": document["summary"]["engine"],
        "secrets": sorted(hidden.secrets),
        "notes": _notes(found),
    }


def _may_begin(service: Service) -> None:
    """Raises AgentError when the service has an adopted release, or a server. An adoption that was cut may begin again."""
    staged = releases.load(service, NUMBER)
    state = releases.state(service, NUMBER)["state"] if staged is not None else STAGED
    if state in (GOOD, BAD):
        raise refused(f"service {service.name} has adopted a server before", f"release {NUMBER} is {state}", "gpuops history")
    record = server_alive(service)
    if record is not None and (staged is None or record.release != NUMBER):
        evidence = f"release {record.release}, pid {record.pid}"
        raise refused(f"service {service.name} has a server already", evidence, "choose another name: --service NAME")


def _known(service: Service) -> Dict[int, str]:
    """The processes of the other services of this ROOT, with the service's name."""
    known: Dict[int, str] = {}
    for name in sorted(os.listdir(service.root.services) if service.root.services.is_dir() else []):
        if name.startswith(".") or name == service.name:
            continue
        other = service.root.service(name)
        record = server_alive(other)
        if record is not None:
            known.update((pid, name) for pid in (record.pid, *(identity.pid for identity, _ in run_processes(other))))
    return known


def _environment(found: Foreign) -> Dict[str, str]:
    return {name: value for name, value in found.env.items() if name != RUN_TAG}


def _free(root: Root, name: str, value: str) -> bool:
    known = vault.read(root.secrets / name)
    return known is None or known == value


def _prove(root: Root, found: Foreign, hidden: Concealed, args: Dict[str, Any]) -> Proved:
    """It says who it is, and generates. Raises AgentError when it does not."""
    pid, engine = found.identity.pid, args["engine"]
    candidates = foreign.ports(pid, args.get("port"))
    listener, info = _informed(root, candidates, hidden, engine)
    if info is None:
        where = ", ".join(str(each.port) for each in candidates)
        evidence = f"no answer to {' or '.join(engine['endpoints']['info'])} on port {where}"
        raise refused(f"process {pid} does not say what it serves", evidence, "is it the server? gpuops adopt --pid N")
    keys = engine["identity"]
    model = str(info.get(keys["model_path"], ""))
    server = _server(root, listener, hidden, engine, model, str(info.get(keys.get("served_model_name", ""), "") or model))
    running = str(info.get(keys.get("version", ""), engine["version"]))
    if running != str(engine["version"]):
        evidence = f"{engine['version']} was expected"
        raise refused(
            f"the server runs {engine['name']} {running}",
            evidence,
            f"gpuops adopt --engine-version {running}",
            kind="engine_version",
        )
    wrong = server.mismatch(info)
    if wrong or not model:
        raise refused(f"process {pid} is not the server of port {listener.port}", hidden.hide(wrong or "it names no model"), "")
    answer = server.generate("The capital of France is", _TOKENS, args["deadlines"]["generate_s"])
    if not answer.ok:
        raise refused(
            f"the server (pid {pid}) does not generate",
            hidden.hide(answer.error),
            "adopt a server that serves, or start one: gpuops up",
        )
    return Proved(listener, server)


def _informed(
    root: Root, candidates: List[Listener], hidden: Concealed, engine: Dict[str, Any]
) -> Tuple[Listener, Optional[Dict[str, Any]]]:
    """The first port that answers as the engine does: a server may listen on others too, for its ranks."""
    for each in candidates:
        info = _server(root, each, hidden, engine, "", "").info().value
        if info is not None:
            return each, info
    return candidates[0], None


def _server(root: Root, listener: Listener, hidden: Concealed, engine: Dict[str, Any], model: str, served_name: str) -> Server:
    key = hidden.secrets[hidden.api_key] if hidden.api_key else None
    return Server(
        host=reachable(listener.address),
        port=listener.port,
        model=model,
        served_name=served_name,
        engine=engine,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        redact=vault.Redactor(root),
    )


def _document(service: Service, found: Foreign, hidden: Concealed, proved: Proved, args: Dict[str, Any]) -> Dict[str, Any]:
    """``release.json``: all that a rollout needs to start this server again."""
    engine, model = args["engine"], proved.server.model
    program = Path(shutil.which(found.argv[0], path=found.env.get("PATH", os.defpath)) or found.cwd / found.argv[0])
    return {
        "number": NUMBER,
        "adopted": True,
        "spec": None,
        "service": service.name,
        "op": None,
        "by": args["by"],
        "argv": hidden.argv,
        "env": hidden.env,
        "cwd": str(found.cwd),
        "secrets": sorted(hidden.secrets),
        "auth": f"Bearer @{{secret:{hidden.api_key}}}" if hidden.api_key else None,
        "bind": proved.listener.address,
        "port": proved.listener.port,
        "served_model_name": proved.server.served_name,
        "runtime": {"id": f"path:{program.parent.parent}", "path": str(program.parent.parent), "python": str(program)},
        "model": _model(found.cwd, model),
        "build": None,
        "cache": None,
        "agent": own_zipapp().stem,
        "engine": engine,
        "probes": args["probes"],
        "deadlines": args["deadlines"],
        "hooks": {},
        "restart": {},
        "gpus": args.get("gpus"),
        "summary": {
            "engine": f"{engine['name']} {engine['version']}",
            "model": Path(model).name,
            "build": None,
            "flags": _flags(hidden.argv),
        },
        "playbook": {},
    }


def _model(cwd: Path, path: str) -> Dict[str, Any]:
    """The model by its files; one that is named by a repository, or incomplete, by its name alone."""
    try:
        return {**models.identify(cwd / path).to_json(), "path": path}
    except AgentError:
        return {"path": path, "identity": hashlib.sha256(path.encode()).hexdigest()[:16], "bytes": 0}


def _flags(argv: List[str]) -> Dict[str, Any]:
    """The options among the arguments as a playbook would write them, so that `plan` can compare."""
    flags: Dict[str, Any] = {}
    last = None
    for word in argv:
        option = re.match(r"--([A-Za-z][\w-]*)(?:=(.*))?\Z", word, re.DOTALL)
        if option:
            last = option.group(1) if option.group(2) is None else None
            flags[option.group(1)] = True if option.group(2) is None else _value(option.group(2))
        elif last is not None:
            flags[last], last = _value(word), None
    return {name: value for name, value in flags.items() if name not in _OWN_FLAGS}


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _keep(service: Service, document: Dict[str, Any], hidden: Concealed, found: Foreign, proved: Proved) -> None:
    """Write everything down, and put the server under a supervisor; on a failure nothing of it stays."""
    folder = service.release(NUMBER)
    begun = server_alive(service)
    if begun is not None and begun.identity != found.identity:
        evidence = f"pid {begun.pid}; {found.identity.pid} was asked for"
        raise refused("an adoption of another process was cut", evidence, f"finish it: gpuops adopt --pid {begun.pid}")
    fresh = [name for name in hidden.secrets if not (service.root.secrets / name).exists()]
    try:
        vault.store(service.root, {"values": hidden.secrets})
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "release.json", document)
        releases.set_state(service, NUMBER, STAGED, "being adopted")
        if found.log is not None and not os.path.lexists(service.server_log(NUMBER)):
            os.symlink(found.log, service.server_log(NUMBER))
        sync_folder(service.releases)
        if begun is None or not supervisor_alive(service):
            supervisor.adopt(service, _record(document, found, proved), own_zipapp())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for name in fresh:
            (service.root.secrets / name).unlink(missing_ok=True)
        raise
    write_json(service.port_file, {"port": document["port"]})
    for link in (service.current, service.good):
        releases.point(service, link, NUMBER)
    releases.set_state(service, NUMBER, GOOD, "adopted")


def _record(document: Dict[str, Any], found: Foreign, proved: Proved) -> ServerRecord:
    identity = found.identity
    started_boot = identity.start / os.sysconf("SC_CLK_TCK")
    return ServerRecord(
        **identity.to_json(),
        # Not the session and group that it is in, unless it leads them: those may be a person's shell, and all that runs in it.
        pgid=identity.pid,
        sid=identity.pid,
        executable=str(found.executable),
        argv_sha256=hashlib.sha256("\0".join(document["argv"]).encode()).hexdigest(),
        release=NUMBER,
        port=proved.listener.port,
        supervisor=identity,  # the supervisor puts itself here
        run=found.env.get(RUN_TAG) or random.token_hex(8),
        started_at=round(time.time() - proc.boottime() + started_boot, 3),
        started_boot=round(started_boot, 3),
    )


def _notes(found: Foreign) -> List[str]:
    notes = [foreign.restarter(found)] if foreign.restarter(found) else []
    if found.dropped:
        notes.append(f"not kept, as they are no UTF-8 text: {', '.join(found.dropped)}")
    if found.log is None:
        notes.append("its output goes to no file: gpuops logs has nothing of it until it is started again")
    return [each for each in notes if each]
