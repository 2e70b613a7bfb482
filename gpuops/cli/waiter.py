"""Waiting for the host across lost links: what was heard of says what to ask for again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from gpuops.cli.talk import Talk
from gpuops.errors import Exit, GpuopsError, OutcomeUnknown, TransportError
from gpuops.report.words import how_it_ended
from gpuops.rollout.session import Session
from gpuops.rollout.watch import raise_for

# As patient as gpuops.rollout.watch: about a minute without a word from the host.
ATTEMPTS = 6
LONGEST_WAIT_S = 20.0

# A host that is asked again after the time is over gets this much, in seconds, to say what it still waited for.
_SPARE_S = 0.1

Json = dict[str, Any]


class Waiter:
    """Waits for one thing on one service.

    Args:
        reconnect: opens a new session to the same host; the old one may be dead.
        note: is told of a lost link.
    """

    def __init__(self, session: Session, reconnect: Callable[[], Session], note: Callable[[str], None]) -> None:
        self._session = session
        self._reconnect = reconnect
        self._note = note
        self._known: Json = {}
        self._silent_attempts = 0

    def wait(self, service: str, what: str, timeout_s: float | None, op: str | None) -> Json:
        """The agent's answer (``remote/gpuops_agent/waiting.py``).

        Raises:
            GpuopsError: the time is over; there is nothing to wait for. OutcomeUnknown, TransportError: the link did not come back.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        self._known = {} if op is None else {"op": op}
        retrying = Retrying(
            stop=self._gives_up,
            wait=wait_exponential(max=LONGEST_WAIT_S),
            retry=retry_if_exception_type((OutcomeUnknown, TransportError)),
            before_sleep=self._lost,
            reraise=True,
        )
        return retrying(self._ask, service, what, deadline)

    def _ask(self, service: str, what: str, deadline: float | None) -> Json:
        if self._silent_attempts:
            self._session = self._reconnect()
        self._silent_attempts += 1
        left = None if deadline is None else max(_SPARE_S, round(deadline - monotonic(), 2))
        asked = {"service": service, "for": what, "timeout_s": left, **self._known}
        return self._session.agent.call("wait", on_event=self._hear, **asked)

    def _hear(self, event: Mapping[str, Any]) -> None:
        # A link that comes back is not given up, however often it breaks.
        self._silent_attempts = 1
        self._known.update({key: event[key] for key in ("since", "op") if key in event})

    def _gives_up(self, state: RetryCallState) -> bool:
        return self._silent_attempts >= ATTEMPTS

    def _lost(self, state: RetryCallState) -> None:
        self._note("the link is lost; connecting again")
        self._session.agent.transport.close()


def concluded(talk: Talk, what: str, told: Json, service: str) -> int:
    """Print what came true; returns the exit code. Raises GpuopsError for an operation that ended in another way."""
    if what == "promoted":
        raise_for(told)
        if told["outcome"] in ("stopped", "not_running"):
            raise GpuopsError(
                f"{service} was not promoted: its operation ended as {told['outcome']}",
                evidence=f"operation {told['op']}",
                next="gpuops history",
                code=Exit.FAILURE,
                kind=told["outcome"],
            )
    if talk.json:
        talk.give(told)
    else:
        talk.say({"ready": _ready, "promoted": _promoted, "dead": _dead}[what](told, service))
    return Exit.OK


def _ready(told: Json, service: str) -> list[str]:
    return [f"{service} is ready: release {told['release']}, pid {told['pid']}, port {told['port']}; {told['evidence']}"]


def _promoted(told: Json, service: str) -> list[str]:
    return [f"{service} is {told['outcome']}: release {told.get('release')}, operation {told['op']}"]


def _dead(told: Json, service: str) -> list[str]:
    lines = [f"{service} is dead: pid {told['pid']} of release {told['release']} {how_it_ended(told)}"]
    if told.get("ranks_lost"):
        lines.append(f"  ranks  {told['ranks_lost']}")
    if told["operation"]:
        lines.append(f"  by     {told['operation']['kind']} {told['operation']['op']}, which is running")
    return [*lines, f"  line   {told['line']}"] if told["line"] else lines
