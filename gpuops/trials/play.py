"""Playing a trial from here: one order, whose steps are kept as they get their verdicts; and going on with one that was cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from gpuops.builds.push import push
from gpuops.errors import GpuopsError, OutcomeUnknown
from gpuops.rollout.session import Session
from gpuops.trials import state as states
from gpuops.trials.state import State
from gpuops.trials.steps import Prepared

Json = dict[str, Any]
Event = Mapping[str, Any]


class Order(Protocol):
    """What makes the order, given the verdicts on steps that were played before."""

    def __call__(self, done: Mapping[str, str]) -> Json: ...


class Play(Protocol):
    """What hands an order to the host and follows it to its outcome, telling every event."""

    def __call__(self, order: Json, hear: Callable[[Event], None]) -> Json: ...


class Player:
    """One process that plays a trial.

    Args:
        folder: where the state is kept.
        complete: whether these verdicts answer the trial.
        redact: takes the secrets out of what is kept.
        note: is told of what could not be kept; the host goes on, and has it all.
    """

    def __init__(
        self,
        state: State,
        folder: Path,
        order: Order,
        complete: Callable[[Mapping[str, str]], bool],
        redact: Callable[[Any], Any] = lambda value: value,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.state = state
        self._folder = folder
        self._order = order
        self._complete = complete
        self._redact = redact
        self._note = note

    @property
    def complete(self) -> bool:
        return self._complete(self.state.verdicts)

    def begin(self, host: str) -> Json:
        """The order to hand to a host, noted before it leaves: an operation that may run there is always known here.

        Raises:
            GpuopsError: it cannot be noted.
        """
        order = self._order(self.state.verdicts)
        hosts = self.state.hosts if host in self.state.hosts else (*self.state.hosts, host)
        # An operation that may still run is asked for again by its id, and followed; a host that does not know it begins it.
        op = self.state.op or order["op"]
        self.state = replace(self.state, op=op, hosts=hosts)
        states.save(self._folder, self.state)
        return {**order, "op": op}

    def play(self, host: str, play: Play) -> Json:
        """Play what has no verdict yet; returns the last outcome.

        Raises:
            GpuopsError: refused. OutcomeUnknown: the host goes on by itself; playing again follows it.
        """
        resumed = self.state.op is not None
        outcome = self._once(host, play)
        if resumed and not self.complete and outcome["outcome"] in ("trial_cut", "cut", "tried"):
            # That was how the earlier operation had ended: now the rest.
            outcome = self._once(host, play)
        return outcome

    def _once(self, host: str, play: Play) -> Json:
        order = self.begin(host)
        try:
            outcome = play(order, self._hear)
        except OutcomeUnknown as lost:
            if lost.kind == "runner_died":
                # Nobody plays it any more: the next operation brings the known-good release back first.
                self._keep(replace(self.state, op=None))
            raise
        except GpuopsError:
            self._keep(replace(self.state, op=None))
            raise
        state = self.state
        for result in outcome.get("steps") or ():
            state = state.with_result(self._redact(result))
        ended = {key: outcome.get(key) for key in ("op", "outcome", "code", "seconds", "reason")}
        self._keep(replace(state, op=None, operations=(*state.operations, ended)))
        return outcome

    def _hear(self, event: Event) -> None:
        if event["event"] == "tried":
            result = {key: value for key, value in event.items() if key not in ("event", "t", "op")}
            self._keep(self.state.with_result(self._redact(result)))

    def _keep(self, state: State) -> None:
        """Keep what is known. What cannot be written here ends no trial: the operation's record on the host has it, and is asked for again."""
        self.state = state
        try:
            states.save(self._folder, state)
        except GpuopsError as error:
            self._note(f"warning: {error.what}: {error.evidence}; --resume will ask the host again")


def bring(session: Session, made: Sequence[Prepared], note: Callable[[str], None]) -> None:
    """What the steps refer to and the order does not carry: every build once, and the secrets."""
    for tree in {each.tree.id: each.tree for each in made if each.tree is not None}.values():
        sent = push(session.agent, tree)
        note(f"build {tree.id} " + ("is on the host already" if sent is None else f"sent by {sent.tool}"))
    secrets = {name: value for each in made for name, value in each.playbook.secret_values.items()}
    if secrets:
        session.agent.call("secret", values=secrets)
        note(f"secrets stored on the host: {', '.join(sorted(secrets))}")
