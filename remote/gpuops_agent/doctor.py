"""The `doctor` verb: what on this host can end a server, spoil a start or lie to us. It looks, and changes nothing.

Every check fails alone: one that cannot be made says `unknown` with the reason, and the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List

from . import beats, check_collective, check_gpu, check_host, check_run, check_start
from .ask import Silent
from .check import FAIL, UNKNOWN, Finding, Subject, services_of
from .paths import Root, Service


@dataclass(frozen=True)
class Check:
    """A row of a table below: ``look`` finds out about the host."""

    name: str
    look: Callable[[Subject], Finding]


@dataclass(frozen=True)
class ServiceCheck:
    """The same for one service."""

    name: str
    look: Callable[[Subject, Service], Finding]


START = (
    Check("start method", check_start.start_method),
    Check("KillUserProcesses", check_start.kill_user_processes),
    Check("linger", check_start.linger),
    Check("RemoveIPC", check_start.remove_ipc),
    Check("OOM", check_start.oom),
    Check("control groups", check_start.cgroups),
)
SERVICE = (
    ServiceCheck("supervisor", check_run.supervisor),
    ServiceCheck("server", check_run.identity),
    ServiceCheck("reboot", check_run.boot),
    ServiceCheck("port", check_run.port),
    ServiceCheck("model", check_run.model),
    ServiceCheck("all-reduce", check_collective.all_reduce),
)
LEFT = (
    Check("processes", check_run.leftover_processes),
    Check("shared memory", check_run.leftover_shm),
)
HOST = (
    Check("disk", check_host.disk),
    Check("inodes", check_host.inodes),
    Check("/dev/shm", check_host.shared_memory),
    Check("python", check_host.python),
    Check("clock", check_host.clock),
    Check("open files", check_host.descriptors),
    Check("hidepid", check_host.hidepid),
)
GPU = (
    Check("driver", check_gpu.driver),
    Check("GPU memory", check_gpu.memory),
    Check("card health", check_gpu.health),
    Check("Xid", check_gpu.xids),
    Check("topology", check_gpu.topology),
)


def doctor(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """``{checks: [{group, name, state, what, evidence, next}], failed}``: of one service, or of all under ROOT.

    ``port`` is one more port to look at: is it free for a server that is still to come? ``collective``: the ranks add up numbers also where
    a server runs.
    """
    wanted = args.get("service")
    services = [root.service(wanted)] if wanted else services_of(root)
    subject = Subject(root, services, args.get("port"), bool(args.get("collective")))
    checks = beats.during(lambda: _examine(subject))
    return {"checks": checks, "failed": sum(each["state"] == FAIL for each in checks)}


def _examine(subject: Subject) -> List[Dict[str, Any]]:
    told = [_told("start", check.name, partial(check.look, subject)) for check in START]
    for service in subject.services:
        told += [_told(f"service {service.name}", check.name, partial(check.look, subject, service)) for check in SERVICE]
    host = HOST if subject.port is None else (*HOST, Check("port", check_run.wanted_port))
    for group, table in (("left over", LEFT), ("host", host), ("GPU", GPU if check_gpu.present() else ())):
        told += [_told(group, check.name, partial(check.look, subject)) for check in table]
    return told


def _told(group: str, name: str, look: Callable[[], Finding]) -> Dict[str, Any]:
    try:
        found = look()
    except Silent as error:
        found = Finding(UNKNOWN, "could not be found out", str(error))
    except Exception as error:
        found = Finding(UNKNOWN, "the check itself failed", repr(error))
    return {"group": group, "name": name, **vars(found)}
