"""Playing an order from the command line: its progress, its end, and the exit code."""

from __future__ import annotations

from typing import Any

from gpuops.cli import places, progress
from gpuops.cli.talk import Talk
from gpuops.cli.places import Where
from gpuops.errors import GpuopsError
from gpuops.playbook.targets import Target
from gpuops.report import outcome as report
from gpuops.report.narrate import Event
from gpuops.report.probes import FailedProbes
from gpuops.rollout.desired import simple_order
from gpuops.rollout.session import Session
from gpuops.rollout.watch import Watcher, raise_for

Json = dict[str, Any]


class Operation:
    """One operation on one service, shown while it runs.

    Args:
        session: the connection to the service's host; another one is opened when its link is lost.
    """

    def __init__(self, talk: Talk, where: Where, session: Session) -> None:
        self._talk = talk
        self._where = where
        self._session = session
        self._probes = FailedProbes()

    @property
    def target(self) -> Target:
        return self._session.target

    def play(self, order: Json) -> Json:
        """Hand the order to the host and follow it to its outcome. Raises GpuopsError, OutcomeUnknown."""
        return self._watch(lambda watcher: watcher.run(order))

    def follow(self, service: str, op: str | None) -> Json:
        """Follow an operation that somebody else began."""
        return self._watch(lambda watcher: watcher.attach(service, op))

    def conclude(self, outcome: Json, service: str) -> int:
        """Print how it ended; returns the exit code."""
        try:
            raise_for(outcome)
        except GpuopsError as error:
            error.evidence = self._probes.evidence() or error.evidence
            self._talk.fail(error, **outcome)
            return int(error.code)
        if self._talk.json:
            self._talk.give(outcome)
        else:
            self._talk.say(report.lines(outcome, service, self.target.address.name, self._talk.out_paint))
        return 0

    def _watch(self, follow: Any) -> Json:
        with progress.shown(self._talk) as listener:

            def hear(event: Event) -> None:
                self._probes.hear(event)
                listener(event)

            reconnect = places.connector(self.target, self._where, self._talk)
            outcome: Json = follow(Watcher(self._session, reconnect, hear))
        return outcome


def play_simple(talk: Talk, where: Where, kind: str, *, release: int | None = None, force: bool = False, reason: str | None) -> int:
    """An order of kind ``down``, ``restart`` or ``restore``, from the options to the exit code."""
    with places.session(places.target(where, talk), where, talk) as session:
        service = session.service()
        order = simple_order(
            kind, service, deadlines=places.deadlines(where, talk), release=release, force=force, reason=reason
        )
        operation = Operation(talk, where, session)
        return operation.conclude(operation.play(order), service)
