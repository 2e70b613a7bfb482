"""Take over a server that somebody started by hand, without touching it.

It must answer a generation. It becomes release 0 of the service, known-good
as it serves, under a supervisor: from then on `up` can replace it, and put
it back with the same arguments, environment and working folder if the new
one fails. Keys and tokens among these go to the host's secrets. Probes and
deadlines are the playbook's. Nothing is ever stopped by this verb.

\b
Examples:
  gpuops adopt -p prod.yaml
  gpuops adopt --port 30000 --host gpu-box --service chat --engine-version 0.5.23
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuops.cli import places
from gpuops.cli.places import Where
from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit, GpuopsError

if TYPE_CHECKING:
    from gpuops.playbook.targets import Target

ENGINE = "sglang"


@verb
def main(
    talk: Talk,
    where: Where,
    pid: Annotated[
        int | None, typer.Option("--pid", min=2, metavar="N", help="The server's process.", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, metavar="N", help="Where it listens; else the playbook's port.", show_default=False
        ),
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="The engine's version; else the playbook's.", show_default=False),
    ] = None,
) -> int:
    from gpuops.rollout import who

    where = places.find(where, talk)
    target, asked = _asked(talk, where, engine_version)
    if pid is None and port is None:
        port = asked.pop("port")
    with places.session(target, where, talk) as session:
        arguments = {**asked, "by": who.me(), "pid": pid, "port": port}
        adopted = session.agent.call("adopt", service=target.service, **arguments)
    if talk.json:
        talk.give(adopted)
        return 0
    talk.say(_lines(adopted, target.address.name))
    for note in adopted["notes"]:
        talk.note(f"note: {note}")
    return 0


def _asked(talk: Talk, where: Where, engine_version: str | None) -> tuple[Target, dict[str, Any]]:
    """The target, and what the host needs to know of the engine; ``port`` is the playbook's where it is a fixed one."""
    if where.playbook is not None:
        from gpuops.rollout.desired import adoption

        loaded = places.load(where, talk)
        fixed = loaded.model.server.port
        target = replace(places.target_of(loaded, where), service=loaded.model.service)
        return target, {**adoption(loaded, engine_version), "port": fixed if isinstance(fixed, int) else None}
    target = places.target(where, talk)
    if not (target.service and engine_version):
        missing = "--service NAME" if not target.service else "--engine-version VERSION"
        raise GpuopsError(
            "without a playbook, the service's name and the engine's version must be said",
            evidence=f"{missing} is missing",
            next="gpuops adopt --port 30000 --host HOST --service NAME --engine-version VERSION",
            code=Exit.USAGE,
            kind="usage",
        )
    from gpuops.engines import facts

    engine = facts(ENGINE, engine_version).as_order()
    return target, {"engine": engine, "probes": [], "deadlines": dict(places.DEADLINES), "gpus": None, "port": None}


def _lines(adopted: dict[str, Any], host: str) -> list[str]:
    lines = [
        f"{adopted['service']} on {host}: adopted pid {adopted['pid']} as release {adopted['release']}, known-good",
        f"  {adopted['engine']}, {adopted['model']}, port {adopted['port']}",
    ]
    if adopted["secrets"]:
        lines.append(f"  secrets kept on the host: {', '.join(adopted['secrets'])}")
    return lines
