"""Following a release's log across lost links: the offset says where to go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from gpuops.errors import OutcomeUnknown, TransportError
from gpuops.rollout.session import Session

# As patient as gpuops.rollout.watch: about a minute without a word from the host.
ATTEMPTS = 6
LONGEST_WAIT_S = 20.0


class Tail:
    """Follows one release's log; text reaches ``show`` once each, with the offset behind it (bytes).

    Args:
        reconnect: opens a new session to the same host; the old one may be dead.
        note: is told of a lost link.
    """

    def __init__(
        self, session: Session, reconnect: Callable[[], Session], show: Callable[[str, int], None], note: Callable[[str], None]
    ) -> None:
        self._session = session
        self._reconnect = reconnect
        self._show = show
        self._note = note
        self._offset: int | None = None
        self._silent_attempts = 0

    def follow(self, service: str, release: int | None, lines: int | None) -> None:
        """Read until the server has ended.

        Raises:
            GpuopsError: there is no such log. OutcomeUnknown, TransportError: the link did not come back.
        """
        retrying = Retrying(
            stop=self._gives_up,
            wait=wait_exponential(max=LONGEST_WAIT_S),
            retry=retry_if_exception_type((OutcomeUnknown, TransportError)),
            before_sleep=self._lost,
            reraise=True,
        )
        retrying(self._read, service, release, lines)

    def _read(self, service: str, release: int | None, lines: int | None) -> None:
        if self._silent_attempts:
            self._session = self._reconnect()
        self._silent_attempts += 1
        place = {"lines": lines} if self._offset is None else {"offset": self._offset}
        self._session.agent.call("logs", on_event=self._hear, service=service, release=release, follow=True, **place)

    def _hear(self, event: Mapping[str, Any]) -> None:
        # A link that still brings something is not given up, however often it breaks.
        self._silent_attempts = 1
        self._offset = event["offset"]
        self._show(event["text"], event["offset"])

    def _gives_up(self, state: RetryCallState) -> bool:
        return self._silent_attempts >= ATTEMPTS

    def _lost(self, state: RetryCallState) -> None:
        self._note("the link is lost; connecting again")
        self._session.agent.transport.close()
