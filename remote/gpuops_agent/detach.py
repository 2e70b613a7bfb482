"""Starting a process of the agent that lives on its own: new session, none of our descriptors, acknowledged over a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, Dict

from . import session
from .paths import Service
from .wire import AgentError, line

ACK_FD_VARIABLE = "GPUOPS_ACK_FD"


def spawn(service: Service, verb: str, request: Dict[str, Any], zipapp: Path, log: str = os.devnull) -> Dict[str, Any]:
    """Run a hidden verb detached and wait for its acknowledgement.

    The child gets the request on stdin, ``log`` as stdout and stderr, and one descriptor to acknowledge on. It is in a session of its own, so it
    outlives us and our terminal; nothing that we hold (an ssh channel's pipes, a lock) is inherited.

    Raises:
        AgentError: it reported one, or ended without a word.
    """
    readable, writable = os.pipe()
    try:
        with open(log, "ab") as output:
            child = subprocess.Popen(
                [*session.prefix(service, verb), sys.executable, "-IS", str(zipapp), verb],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(writable,),
                start_new_session=True,
                cwd="/",
                env={**os.environ, ACK_FD_VARIABLE: str(writable)},
            )
    finally:
        os.close(writable)
    assert child.stdin is not None
    with child.stdin as stdin:
        stdin.write(line(request))
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.readline()
    if not answer:
        status = child.wait()
        words = "; ".join(filter(None, (f"exit status {status}", _last_line(log))))
        raise AgentError(f"the {verb} ended before it answered", evidence=words, next="gpuops doctor; then try again", kind="bug")
    value: Dict[str, Any] = json.loads(answer)
    if "error" in value:
        error = value["error"]
        raise AgentError(error["what"], evidence=error["evidence"], next=error["next"], code=error["code"], kind=error["kind"])
    return value


def request(stdin: BinaryIO) -> Dict[str, Any]:
    """The request, in the detached process."""
    value: Dict[str, Any] = json.loads(stdin.readline())
    return value


def acknowledge(value: Dict[str, Any]) -> None:
    """Answer whoever called :func:`spawn`, once; the descriptor is closed."""
    fd = int(os.environ.pop(ACK_FD_VARIABLE))
    try:
        os.write(fd, line(value))
    except OSError:  # whoever asked has gone: the order stands all the same
        pass
    finally:
        os.close(fd)


def _last_line(log: str) -> str:
    """The end of what it wrote: of a traceback, the exception."""
    try:
        lines = Path(log).read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((text.strip() for text in reversed(lines) if text.strip()), "")
