"""Which playbook and which host a verb is about, from its options, the environment, the folder and what was used last."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.cli import last
from gpuops.errors import Exit, GpuopsError

if TYPE_CHECKING:
    from gpuops.cli.talk import Talk
    from gpuops.playbook.loader import LoadedPlaybook
    from gpuops.playbook.targets import Target
    from gpuops.rollout.session import Session

VARIABLE = "GPUOPS_PLAYBOOK"
USUAL = "gpuops.yaml"

# What a playbook's `deadlines` say when it says nothing (gpuops.playbook.models.Deadlines; a test holds the two together).
DEADLINES = {
    "prepare_s": 3600.0,
    "stop_s": 60.0,
    "start_s": 1800.0,
    "stall_s": 300.0,
    "generate_s": 60.0,
    "probe_s": 120.0,
    "hook_s": 60.0,
    "lease_s": 60.0,
}


@dataclass(frozen=True)
class Where:
    """The options by which a verb is told its playbook and host; see ``gpuops status --help``."""

    playbook: str | None = None
    host: str | None = None
    service: str | None = None
    transport: str | None = None
    accept_new_host_key: bool = False
    overrides: tuple[str, ...] = ()


def with_argument(where: Where, playbook: str | None) -> Where:
    """A playbook may also be given as an argument. Raises GpuopsError (usage) when both are given and differ."""
    if playbook is None or playbook == where.playbook:
        return where
    if where.playbook is not None:
        raise _usage("two playbooks are named", f"{playbook} and -p {where.playbook}", "name one of them")
    return replace(where, playbook=playbook)


def find(where: Where, talk: Talk) -> Where:
    """The same with the playbook found: as named, else the environment's, this folder's, the one used last, else none."""
    if where.playbook is not None:
        return where
    if named := os.environ.get(VARIABLE):
        talk.detail(f"playbook {named} (from ${VARIABLE})")
        return replace(where, playbook=named)
    if Path(USUAL).is_file():
        talk.detail(f"playbook {USUAL} (in this folder)")
        return replace(where, playbook=USUAL)
    used = last.recall(Path.cwd())
    if used is None:
        return where
    talk.note(f"playbook {used.playbook} (the one that `gpuops up` used last in this folder)")
    if where.host is not None:
        # What was said about the other host does not hold for this one.
        kept = tuple(text for text in used.overrides if text.startswith("service="))
        return replace(where, playbook=used.playbook, overrides=(*kept, *where.overrides))
    return replace(where, playbook=used.playbook, host=used.host, overrides=(*used.overrides, *where.overrides))


def target(where: Where, talk: Talk) -> Target:
    """Where the service runs; of a playbook only this much is read.

    Raises:
        GpuopsError: neither playbook nor host are known (usage); the playbook is invalid; its sandbox does not exist.
    """
    found = find(where, talk)
    if found.playbook is None:
        return _adjusted(_bare(found), found)
    from gpuops.playbook import target as target_of

    return _adjusted(target_of(found.playbook, found.overrides, found.host), found)


def load(where: Where, talk: Talk) -> LoadedPlaybook:
    """The whole playbook, validated. Raises GpuopsError when there is none (usage), or when it is invalid."""
    found = find(where, talk)
    if found.playbook is None:
        raise _no_playbook(f"-p FILE, ${VARIABLE}, ./{USUAL}, or the argument PLAYBOOK of up and plan")
    from gpuops.playbook import load as load_playbook

    overrides = found.overrides if found.service is None else (*found.overrides, f"service={found.service}")
    return load_playbook(found.playbook, overrides, found.host)


def target_of(playbook: LoadedPlaybook, where: Where) -> Target:
    """The target of a playbook that :func:`load` gave, with the options about the connection applied."""
    return _adjusted(playbook.target(), where)


def session(target: Target, where: Where, talk: Talk) -> Session:
    """A connection to a target. Raises TransportError."""
    from gpuops.rollout.session import connect

    return connect(target, talk.note, where.transport)


def connector(target: Target, where: Where, talk: Talk) -> Callable[[], Session]:
    """What opens the same connection again."""
    return lambda: session(target, where, talk)


def deadlines(where: Where, talk: Talk) -> dict[str, float]:
    """The playbook's deadlines, read without the rest of it: stopping a server needs no secrets and no valid model section."""
    found = find(where, replace(talk, quiet=True, verbose=False))
    if found.playbook is None:
        return dict(DEADLINES)
    from gpuops.playbook.layers import assemble
    from gpuops.playbook.locate import plain

    section: Any = plain(assemble(Path(found.playbook), found.overrides, found.host).tree).get("deadlines")
    said = section if isinstance(section, dict) else {}
    return {name: float(said[name]) if _is_seconds(said.get(name)) else usual for name, usual in DEADLINES.items()}


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _bare(where: Where) -> Target:
    """The target without a playbook: the host is all that is known."""
    if where.host is None:
        raise _no_playbook(f"-p FILE, ${VARIABLE}, ./{USUAL}, the one that `gpuops up` used last in this folder, or --host HOST")
    from gpuops.playbook.targets import DEFAULT_PYTHON, DEFAULT_ROOT, Target, host_word_problem
    from gpuops.transport.base import Address

    if problem := host_word_problem("address", where.host):
        raise _usage(f"--host {where.host} is not a host", problem, "gpuops status --host user@host:port")
    return Target("", Address(where.host), DEFAULT_ROOT, DEFAULT_PYTHON, "auto")


def _adjusted(target: Target, where: Where) -> Target:
    address = replace(target.address, accept_new_host_key=where.accept_new_host_key)
    return replace(target, address=address, service=where.service or target.service)


def _no_playbook(choices: str) -> GpuopsError:
    return _usage(
        "which playbook? None is named, and none was used before in this folder", f"looked for {choices}", "gpuops status -p FILE"
    )


def _usage(what: str, evidence: str, next: str) -> GpuopsError:
    return GpuopsError(what, evidence=evidence, next=next, code=Exit.USAGE, kind="usage")
