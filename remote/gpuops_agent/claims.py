"""One holder for a port, and for a GPU, across all services of a ROOT.

A claim is a `flock` on ``locks/port-<n>.lock`` or ``locks/gpu-<id>.lock``, held by the supervisor for the life of its server, and a
JSON file beside it that says whose it is. The kernel drops the lock when the supervisor dies, however it dies. A server that
outlives its supervisor still uses what was claimed for it, so its claim stands until the server has ended too.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from . import proc
from .files import read_json, write_json
from .paths import Root, Service
from .records import server_alive
from .wire import HOST_UNFIT, REFUSED, AgentError

# Who looks at a claim holds its lock for an instant, and a supervisor needs a moment to go: that is waited for, in seconds.
PATIENCE_S = 2.0

_NVIDIA_SMI_S = 20.0
_CARDS = Path("/proc/driver/nvidia/gpus")
_GPU_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z")  # an index, a UUID or a PCI address; it becomes a file name


class Claim(NamedTuple):
    """A port or a GPU. ``kind`` is ``port`` or ``gpu``."""

    kind: str
    id: str


def take(service: Service, release: int, port: int, gpus: List[str]) -> None:
    """Claim the port and the GPUs for the life of this process: the descriptors are left open on purpose, and exec closes them.

    Raises:
        AgentError: another service holds one of them (code 13).
    """
    me = proc.identify(os.getpid())
    assert me is not None, "this process has no /proc entry"
    service.root.locks.mkdir(parents=True, exist_ok=True)
    owner = {"service": service.name, "release": release, **me.to_json(), "at": round(time.time(), 3)}
    for claim in _wanted(port, gpus):
        _hold(service, claim)
        write_json(_owner_file(service.root, claim), owner)


def check(service: Service, port: Optional[int], gpus: List[str]) -> None:
    """The look before anything is touched: nothing that a release needs is held by another service. ``port`` None is not picked yet.

    Raises:
        AgentError: something is (code 13); service, release and pid of the holder are named.
    """
    for claim in _wanted(port, gpus):
        holder = _holder(service.root, claim)
        if holder is not None and holder["service"] != service.name:
            raise _refused(service.root, claim, holder)


def claims(root: Root) -> List[Dict[str, Any]]:
    """The claims that are held now: ``[{kind, id, service, release, pid, at}]``, ports first. ``pid`` is the holding supervisor's."""
    try:
        names = os.listdir(root.locks)
    except OSError:
        return []
    found = []
    for name in names:
        match = re.match(r"(port|gpu)-(.+)\.lock\Z", name)
        claim = Claim(match.group(1), match.group(2)) if match else None
        holder = _holder(root, claim) if claim else None
        if claim and holder:
            found.append({**claim._asdict(), **{key: holder.get(key) for key in ("service", "release", "pid", "at")}})
    return sorted(found, key=lambda each: (each["kind"] != "port", len(each["id"]), each["id"]))


def gpus_of(document: Dict[str, Any]) -> List[str]:
    """The GPU ids that a release claims: its document's ``gpus``, a list or ``all``; empty when it names none.

    Raises:
        AgentError: something in the list is no GPU id (code 5).
    """
    said = document.get("gpus") or []
    ids = all_gpus() if said == "all" else [str(each) for each in said]
    for each in ids:
        if not _GPU_ID.match(each):
            raise AgentError(
                f"{each!r} is not a GPU", evidence="an index, a UUID or 'all'", next="set gpus", code=HOST_UNFIT, kind="gpus"
            )
    return sorted(set(ids), key=lambda each: (len(each), each))


def all_gpus() -> List[str]:
    """The indices of all NVIDIA GPUs: the driver's own list, else what nvidia-smi tells; empty when there is neither."""
    try:
        count = len(os.listdir(_CARDS))
    except OSError:
        count = _count_by_tool()
    return [str(index) for index in range(count)]


def _count_by_tool() -> int:
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_NVIDIA_SMI_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith(b"GPU ") for line in listed.splitlines())


def _wanted(port: Optional[int], gpus: List[str]) -> List[Claim]:
    ports = [] if port is None else [Claim("port", str(port))]
    return [*ports, *(Claim("gpu", each) for each in gpus)]


def _hold(service: Service, claim: Claim) -> None:
    fd = os.open(_lock_file(service.root, claim), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = _holder(service.root, claim) or {}
                os.close(fd)
                raise _refused(service.root, claim, holder) from None
        time.sleep(0.02)
    bereft = _bereft(service.root, claim)
    if bereft is not None and bereft["service"] != service.name:
        os.close(fd)
        raise _refused(service.root, claim, bereft)


def _holder(root: Root, claim: Claim) -> Optional[Dict[str, Any]]:
    """What the holder wrote about itself; None when nobody holds the claim."""
    if not _locked(_lock_file(root, claim)):
        return _bereft(root, claim)
    owner = read_json(_owner_file(root, claim))
    # Held, but its file is still being written, or cannot be read: somebody's all the same.
    return owner if owner is not None and "service" in owner else {"service": "", "release": None, "pid": None}


def _bereft(root: Root, claim: Claim) -> Optional[Dict[str, Any]]:
    """The owner whose supervisor has died while its server lives on."""
    owner = read_json(_owner_file(root, claim))
    if owner is None or not isinstance(owner.get("service"), str):
        return None
    record = server_alive(root.service(owner["service"]))
    return owner if record is not None and record.release == owner.get("release") else None


def _locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def _lock_file(root: Root, claim: Claim) -> Path:
    return root.locks / f"{claim.kind}-{claim.id}.lock"


def _owner_file(root: Root, claim: Claim) -> Path:
    return root.locks / f"{claim.kind}-{claim.id}.json"


def _refused(root: Root, claim: Claim, holder: Dict[str, Any]) -> AgentError:
    name = holder.get("service")
    record = server_alive(root.service(name)) if name else None
    pid = record.pid if record is not None else holder.get("pid")
    what = "port" if claim.kind == "port" else "GPU"
    return AgentError(
        f"{what} {claim.id} belongs to the service {name or 'of another rollout'}",
        evidence=f"release {holder.get('release')}, pid {pid}; {_lock_file(root, claim)} is held",
        next=f"choose another {what}, or stop that service: gpuops down --service {name or 'NAME'}",
        code=REFUSED,
        kind="claimed",
    )
