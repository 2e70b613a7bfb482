"""A host as a comparison needs it, by the means of the command line: every step is shown while it runs."""

from __future__ import annotations

from typing import Any

from gpuops.cli import places
from gpuops.cli.operation import Operation
from gpuops.cli.places import Where
from gpuops.cli.progress import shown
from gpuops.cli.talk import Talk
from gpuops.cli.up import bring
from gpuops.engines.measuring import load_words
from gpuops.measure.ab import Comparison, Name
from gpuops.playbook.loader import LoadedPlaybook
from gpuops.playbook.measuring import Bench
from gpuops.rollout import who
from gpuops.rollout.desired import cells_of_bench, simple_order
from gpuops.rollout.lease import Renewer
from gpuops.rollout.session import Session
from gpuops.rollout.sides import Content

# What holds the service's lock is a measurement whose controller has gone (seconds), or a launch that is being undone (as long as a start takes).
LOCK_WAIT_S = 900.0

Json = dict[str, Any]


def undo_leftover(session: Session, service: str, comparison: Comparison, talk: Talk) -> None:
    """Ask the host to undo a launch that a cut comparison has left playing: its lease would hold for a while, and nobody waits for it."""
    entry = next((each for each in session.status()["services"] if each["service"] == service), None)
    running = (entry or {}).get("operation")
    if running is not None and str(running.get("reason")).startswith(_reason(comparison, "")):
        talk.note(f"a launch of the cut comparison still plays: the host is asked to undo it ({running['op']})")
        session.agent.call("cancel", service=service, op=running["op"])


class HostBox:
    """A :class:`gpuops.rollout.ab.Box`.

    Args:
        contents: the sides by their names, as they were resolved before the first launch.
    """

    def __init__(
        self, talk: Talk, where: Where, session: Session, contents: dict[str, Content], loaded: LoadedPlaybook | None
    ) -> None:
        self._talk = talk
        self._where = where
        self._session = session
        self._contents = contents
        self._loaded = loaded
        self._service = session.service()
        self._deadlines = places.deadlines(where, talk)
        self._renewer: Renewer | None = None

    def close(self) -> None:
        """Renew the comparison's lease no more."""
        if self._renewer is not None:
            self._renewer.stop()

    def launch(self, comparison: Comparison, name: Name) -> Json:
        side, content = comparison.side(name), self._contents[name]
        if side.release is not None:
            # It has become a release: that is launched again, whatever the playbook says by now.
            content = Content(side, content.base, content.facts)
        elif self._loaded is not None:
            bring(self._talk, self._session, self._loaded, content.tree)
        order = content.order_of_a_launch(self._service, self._deadlines, _reason(comparison, name), _ticket(comparison))
        return self._operation().play(order, LOCK_WAIT_S)

    def bench(self, comparison: Comparison) -> Json:
        with shown(self._talk) as listener:
            return self._session.agent.call(
                "bench",
                on_event=listener,
                service=self._service,
                by=who.me(),
                load=load_words(),
                cells=None if comparison.cells is None else list(comparison.cells),
                default_cells=cells_of_bench(Bench()),
                only=list(comparison.only),
                deadline_s=comparison.deadline_s,
                seed=None,
            )

    def save(self, comparison: Comparison, *, take: bool = False) -> None:
        lease_s = self._deadlines["lease_s"]
        self._session.agent.call("ab.save", service=self._service, record=comparison.to_json(), take=take, lease_s=lease_s)
        if take:
            connect = places.connector(self._session.target, self._where, self._talk)
            ticket = {"service": self._service, "token": comparison.token}
            self._renewer = Renewer(connect, lease_s, "ab.renew", **ticket)
            self._renewer.start()

    def now(self) -> tuple[int | None, int | None]:
        entry = self._entry()
        running = entry["operation"]
        if running is not None and running["kind"] == "recover":
            # A launch has died, and the host is bringing the known-good release back already.
            self._operation().follow(self._service, running["op"])
            entry = self._entry()
        server = entry["server"]
        return (None if server is None else int(server["release"])), entry["known_good"]

    def restore(self, comparison: Comparison) -> Json:
        reason = "the end of a comparison"
        order = simple_order("restore", self._service, deadlines=self._deadlines, release=comparison.home, reason=reason)
        return self._operation().play({**order, "comparison": _ticket(comparison)}, LOCK_WAIT_S)

    def smoke(self) -> Json:
        with shown(self._talk) as listener:
            return self._session.agent.call("smoke", on_event=listener, service=self._service)

    def _entry(self) -> Json:
        return next(each for each in self._session.status()["services"] if each["service"] == self._service)

    def _operation(self) -> Operation:
        return Operation(self._talk, self._where, self._session)


def _reason(comparison: Comparison, name: str) -> str:
    """Why a launch is ordered, as the history has it."""
    return f"comparison {comparison.id}: {name}"


def _ticket(comparison: Comparison) -> Json:
    """What an order of a comparison carries: the host plays it only while the comparison is ours."""
    return {"id": comparison.id, "token": comparison.token}
