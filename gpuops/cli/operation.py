"""Playing an order from the command line: its progress, its end, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuops.cli import places, progress
from gpuops.cli.places import Where
from gpuops.cli.talk import OutputLost, Talk
from gpuops.errors import GpuopsError
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
        self._ordered = False

    def play(self, order: Json, lock_wait_s: float | None = None) -> Json:
        """Hand the order to the host and follow it to its outcome. Raises GpuopsError, OutcomeUnknown."""
        self._ordered = True
        return self._watch(lambda watcher: watcher.run(order, lock_wait_s=lock_wait_s))

    def follow(self, service: str, op: str | None) -> Json:
        """Follow an operation that somebody began: the running one, or the last, when ``op`` is None."""
        return self._watch(lambda watcher: watcher.attach(service, op))

    def ask_to_undo(self, service: str, op: str | None) -> str:
        """Ask the host to undo the running operation; returns its id. Raises GpuopsError when it does not run."""
        running = next((entry["operation"] for entry in self._session.status()["services"] if entry["service"] == service), None)
        wanted = op or (running or {}).get("op")
        if wanted and self._session.agent.call("cancel", service=service, op=wanted)["cancelled"]:
            return str(wanted)
        raise GpuopsError(
            f"there is nothing to undo: {service} has no running operation{f' {op}' if op else ''}",
            evidence=f"running now: {running['op']}" if running else "no operation holds the service's lock",
            next="gpuops history",
            kind="no_operation",
        )

    def conclude(self, outcome: Json, service: str) -> int:
        """Print how it ended, and tell the playbook's webhooks when the order was ours; returns the exit code."""
        code = self._print(outcome, service)
        if self._ordered:
            self._notify(outcome, service)
        return code

    def _print(self, outcome: Json, service: str) -> int:
        try:
            raise_for(outcome)
        except GpuopsError as error:
            error.evidence = self._probes.evidence() or error.evidence
            self._talk.fail(error, **outcome)
            return int(error.code)
        try:
            if self._talk.json:
                self._talk.give(outcome)
            else:
                host = self._session.target.address.name
                self._talk.say(report.lines(outcome, service, host, self._talk.out_paint))
        except OutputLost as lost:
            # The code is the outcome's, whoever reads it.
            self._talk.note(f"warning: {service} is {outcome['outcome']}, and the result could not be printed: {lost.strerror}")
        return 0

    def _notify(self, outcome: Json, service: str) -> None:
        playbook = places.find(self._where, replace(self._talk, quiet=True, verbose=False))
        if playbook.playbook is None:
            return
        from gpuops.rollout import notify

        try:
            webhooks = notify.configured(playbook.playbook, playbook.overrides, playbook.host)
            notify.send(webhooks, outcome, service, self._session.target.address.name, self._talk.note)
        except GpuopsError as error:
            self._talk.note(f"warning: no webhook was told: {error.what}: {error.evidence}")
        except KeyboardInterrupt:
            self._talk.note("warning: left before every webhook was told")

    def _watch(self, follow: Callable[[Watcher], Json]) -> Json:
        reconnect = places.connector(self._session.target, self._where, self._talk)
        with progress.shown(self._talk) as listener:

            def hear(event: Event) -> None:
                self._probes.hear(event)
                listener(event)

            return follow(Watcher(self._session, reconnect, hear))


def play_simple(talk: Talk, where: Where, kind: str, *, reason: str | None, lock_wait: float | None) -> int:
    """An order of kind ``down``, ``restart`` or ``recover``, from the options to the exit code."""
    with places.session(places.target(where, talk), where, talk) as session:
        service = session.service()
        order = simple_order(kind, service, deadlines=places.deadlines(where, talk), reason=reason)
        operation = Operation(talk, where, session)
        return operation.conclude(operation.play(order, lock_wait), service)
