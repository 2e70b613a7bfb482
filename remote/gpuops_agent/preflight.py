"""What must hold before the old server is asked to stop."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Optional, Union

from . import releases
from .files import read_json, write_json
from .net import Listener, listeners, pick_port
from .paths import Service
from .proc import descendants
from .records import server_alive
from .releases import BAD, Release
from .wire import HOST_UNFIT, REFUSED, AgentError

# A server's log, its state files and the journal need room; a start that fills the disk half-way is worse than none.
FREE_DISK_BYTES = 256 << 20


def port_of(service: Service, wanted: Union[int, str], bind: str) -> int:
    """The port to serve on: the playbook's, or for ``auto`` one that is picked once and remembered for the service.

    Raises:
        AgentError: there is no free port.
    """
    known = remembered_port(service, wanted)
    if known is not None:
        return known
    try:
        port = pick_port(bind)
    except OSError as error:
        raise AgentError(
            "the host has no free port", evidence=str(error), next="set server.port", code=HOST_UNFIT, kind="no_port"
        ) from error
    write_json(service.port_file, {"port": port})
    return port


def remembered_port(service: Service, wanted: Union[int, str]) -> Optional[int]:
    """The fixed port, the one remembered for ``auto``, or None when ``auto`` has not picked yet."""
    if wanted != "auto":
        return int(wanted)
    known = read_json(service.port_file)
    port = known.get("port") if known else None
    return port if isinstance(port, int) else None


def port_is_ours(service: Service, port: Optional[int]) -> None:
    """Nobody but this service's own server listens on the port.

    Raises:
        AgentError: a foreign process does (exit code 13); it is named, and not touched.
    """
    if port is None:
        return
    record = server_alive(service)
    ours = {record.pid, *(stat.pid for stat in descendants(record.pid))} if record else set()
    foreign = [listener for listener in listeners(port, likely=ours) if listener.pid not in ours]
    if foreign:
        raise _taken(port, foreign[0])


def secrets_are_here(service: Service, release: Release) -> None:
    """Raises AgentError (exit code 5) when a secret that the release names is not on the host: its launch would fail."""
    missing = [name for name in release.document["secrets"] if not (service.root.secrets / name).is_file()]
    if missing:
        raise AgentError(
            f"secrets of release {release.number} are not on the host: {', '.join(missing)}",
            evidence=f"looked in {service.root.secrets}",
            next=f"export {' '.join(missing)}, and run gpuops up again; the running server was not touched",
            code=HOST_UNFIT,
            kind="secret_missing",
        )


def build_is_here(release: Release) -> None:
    """Raises AgentError (exit code 5) when a folder of the release's build is gone: Python would go on to the runtime's own package in silence."""
    build = release.document.get("build") or {}
    wanted = [build.get("site"), (build.get("overlay") or {}).get("site")]
    gone = [path for path in wanted if path and not Path(path).is_dir()]
    if gone:
        raise AgentError(
            f"the build of release {release.number} is not on the host any more",
            evidence=f"missing: {', '.join(gone)}",
            next="gpuops up with the release's playbook brings it again; the running server was not touched",
            code=HOST_UNFIT,
            kind="build",
        )


def enough_disk(path: Path) -> None:
    """Raises AgentError (exit code 5) when the disk under ``path`` has less than :data:`FREE_DISK_BYTES` left."""
    free = shutil.disk_usage(path).free
    if free < FREE_DISK_BYTES:
        raise AgentError(
            f"the host's disk is nearly full: {free >> 20} MB free, {FREE_DISK_BYTES >> 20} MB needed",
            evidence=str(path),
            next="free space on the host, then run again; the running server was not touched",
            code=HOST_UNFIT,
            kind="disk_full",
        )


def restore_target(service: Service, number: Optional[int], *, force: bool) -> Release:
    """The release to go back to: the one that was asked for, else known-good.

    Raises:
        AgentError: there is none, or it is bad and not forced (exit code 13); the candidates are listed.
    """
    wanted = number if number is not None else releases.known_good(service)
    release = releases.load(service, wanted)
    if release is None:
        what = f"there is no release {number}" if number is not None else "there is no known-good release"
        raise AgentError(what, evidence=_candidates(service), next="gpuops history", kind="no_release")
    state = releases.state(service, release.number)
    if state["state"] == BAD and not force:
        raise AgentError(
            f"release {release.number} is bad: {state['reason']}",
            evidence=_candidates(service),
            next=f"gpuops restore {release.number} --force, if you mean it",
            code=REFUSED,
            kind="bad_release",
        )
    return release


def _candidates(service: Service) -> str:
    known = [f"{number} ({releases.state(service, number)['state']})" for number in releases.numbers(service)]
    return f"releases: {', '.join(known)}" if known else "the service has no release"


def _taken(port: int, listener: Listener) -> AgentError:
    return AgentError(
        f"port {port} is taken by a process that is not ours",
        evidence=listener.who,
        next=f"take it over: gpuops adopt --port {port}; or stop it, or choose another port: --set server.port=NUMBER",
        code=REFUSED,
        kind="port_taken",
    )
