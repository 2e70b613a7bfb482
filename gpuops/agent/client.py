"""Calling the agent: one fixed command string, one JSON request, JSON lines back.

The agent is uploaded only when the host says that it has none of this content; every other call is one round trip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpuops.agent import pack
from gpuops.errors import Exit, GpuopsError, OutcomeUnknown
from gpuops.transport.base import Completed, Transport

PROTOCOL = 1

# The longest silence on a stream that is believed, in seconds: the agent sends a beat every 5.
SILENCE_S = 30.0

# Python's exit status for a program file that it cannot open, and for an option that it is too old to know. An agent that ran has answered.
CANNOT_START = 2

Event = Mapping[str, Any]
Listener = Callable[[Event], None]


# The oldest Python that runs the agent.
OLDEST = (3, 9)


class AgentMissing(Exception):
    """The host has no agent of this content (yet)."""


class Agent:
    """The agent of one host, called through one transport.

    Args:
        transport: the connection; it stays the caller's.
        root: gpuops' folder on the host.
        python: the interpreter there that runs the agent.
    """

    def __init__(self, transport: Transport, root: str, python: str) -> None:
        self.transport = transport
        self._root = root
        self._python = python

    def call(
        self, verb: str, *, on_event: Listener | None = None, payload: bytes = b"", silence_s: float = SILENCE_S, **args: Any
    ) -> dict[str, Any]:
        """Call a verb and return its result; events go to ``on_event`` as they come.

        Raises:
            GpuopsError: the agent's own error, with its code.
            OutcomeUnknown: the link was lost, or the agent ended without a result.
            TransportError
        """
        request = json.dumps({"protocol": PROTOCOL, "args": args}).encode() + b"\n" + payload
        try:
            return self._once(verb, request, on_event, silence_s)
        except AgentMissing:
            self._install()
        try:
            return self._once(verb, request, on_event, silence_s)
        except AgentMissing as error:
            raise GpuopsError(
                "the agent was uploaded, but the host does not find it", evidence=str(error), code=Exit.HOST_UNFIT
            ) from error

    @contextmanager
    def events(self, verb: str, *, silence_s: float = SILENCE_S, **args: Any) -> Iterator[Iterator[Event]]:
        """Call a verb and iterate its events; leaving the block early hangs up. The result, if any, comes last as ``{"result": ...}``."""
        request = json.dumps({"protocol": PROTOCOL, "args": args}).encode() + b"\n"
        with self.transport.stream(self._argv(verb), stdin=request, idle_timeout=silence_s) as stream:
            yield (_parse(line) for line in stream)

    def _once(self, verb: str, request: bytes, on_event: Listener | None, silence_s: float) -> dict[str, Any]:
        silent = True
        with self.transport.stream(self._argv(verb), stdin=request, idle_timeout=silence_s) as stream:
            for line in stream:
                value = _parse(line)
                silent = silent and not value
                if "event" in value:
                    if on_event is not None and value["event"] != "beat":
                        on_event(value)
                elif "result" in value:
                    # The agent's last word: how its process ends is of no interest, and not waited for.
                    result: dict[str, Any] = value["result"]
                    return result
                elif "error" in value:
                    raise raised(value["error"])
            ended = stream.finish()
        if silent and ended.status == CANNOT_START:
            raise AgentMissing(ended.stderr.decode("utf-8", "replace").strip())
        raise self._no_answer(verb, ended)

    def _no_answer(self, verb: str, ended: Completed) -> Exception:
        said = ended.stderr.decode("utf-8", "replace").strip()
        if ended.status == 127 or "not found" in said:
            return GpuopsError(
                f"the host has no {self._python}",
                evidence=said or "exit status 127",
                next=f"install Python {OLDEST[0]}.{OLDEST[1]} or newer on the host, or set host.python in the playbook",
                code=Exit.HOST_UNFIT,
                kind="no_python",
            )
        return OutcomeUnknown(
            f"the agent ended without an answer to {verb}",
            evidence=f"exit status {ended.status}; {said[-500:]}",
            next="gpuops status",
        )

    def _install(self) -> None:
        from gpuops.agent.bootstrap import program  # only a new host needs it

        ended = self.transport.run([self._python, "-"], stdin=program(self._root), timeout=60.0)
        word, _, rest = ended.stdout.decode("utf-8", "replace").strip().partition(" ")
        if word == "installed":
            return
        if word == "too-old":
            raise GpuopsError(
                f"the host's {self._python} is too old: {rest}",
                evidence=f"the agent needs Python {OLDEST[0]}.{OLDEST[1]} or newer",
                next="install a newer Python on the host, and set host.python in the playbook",
                code=Exit.HOST_UNFIT,
                kind="old_python",
            )
        if word == "failed":
            kind = "disk_full" if "No space left" in rest else "root"
            raise GpuopsError(
                f"the agent could not be put into {self._root} on the host",
                evidence=rest,
                next="check the folder's owner and the disk, or set host.root in the playbook",
                code=Exit.HOST_UNFIT,
                kind=kind,
            )
        raise self._no_answer("the upload of the agent", ended)

    def _argv(self, verb: str) -> list[str]:
        # -I: no environment variables and no user site; -S: no site-packages.
        return [self._python, "-IS", f"{self._root}/agent/{pack.name()}", verb]


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        # A login shell that greets on stdout (a .bashrc with echo) is not ours to judge.
        return {}
    return value


def raised(error: Mapping[str, Any]) -> GpuopsError:
    """The error that the agent sent, as it is raised here."""
    code = Exit(error["code"]) if error["code"] in set(Exit) else Exit.FAILURE
    return GpuopsError(error["what"], evidence=error["evidence"], next=error["next"], code=code, kind=error["kind"])
