"""The `exec` verb: one command on the host, without a shell, its output as it comes."""

from __future__ import annotations

import codecs
import os
import selectors
import subprocess
from typing import Any, Dict, Optional

from . import releases
from .paths import Root
from .proc import boottime
from .tool import end_group
from .wire import UNKNOWN, AgentError, emit

# How often silence is broken by a beat and the deadline looked at, in seconds.
LOOK_S = 1.0


def execute(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Run ``argv``; with ``service`` and ``runtime`` in the environment of its current release (its interpreter first on PATH, no secrets).

    Returns:
        ``{status}``: the exit status, or 128 + the signal that ended it.
    Raises:
        AgentError: there is no such command; the timeout (seconds) passed, then the command and its children were ended (exit code 12).
    """
    env = dict(os.environ)
    if args.get("runtime"):
        env.update(_release_environment(root, args["service"]))
    try:
        process = subprocess.Popen(
            args["argv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
            cwd=os.path.expanduser("~"),
        )
    except OSError as error:
        raise AgentError(f"{args['argv'][0]} cannot be run on the host", evidence=str(error), kind="exec") from error
    try:
        deadline = boottime() + float(args["timeout"]) if args.get("timeout") else None
        _relay(process, deadline, args)
        status = _wait(process, deadline, args)
    except BaseException:
        end_group(process)
        raise
    return {"status": status if status >= 0 else 128 - status}


def _release_environment(root: Root, name: str) -> Dict[str, str]:
    service = root.service(name)
    release = releases.load(service, releases.meant(service))
    if release is None:
        raise AgentError(f"service {name} has no release whose runtime could be used", next="gpuops up", kind="no_release")
    env: Dict[str, str] = release.document["env"]
    return {name: value for name, value in env.items() if "@{secret:" not in value}


def _relay(process: "subprocess.Popen[bytes]", deadline: Optional[float], args: Dict[str, Any]) -> None:
    """Pass the output on until both streams have ended. Raises AgentError when the deadline (CLOCK_BOOTTIME) has passed."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("out", "err")}
    with selectors.DefaultSelector() as selector:
        for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            ready = selector.select(timeout=LOOK_S)
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                text = decoders[key.data].decode(data, final=not data)
                if text:
                    emit(key.data, text=text)
                if not data:
                    selector.unregister(key.fileobj)
            if not ready:
                emit("beat")
            _check(deadline, args)


def _wait(process: "subprocess.Popen[bytes]", deadline: Optional[float], args: Dict[str, Any]) -> int:
    """The exit status. A command may close its streams and work on."""
    while True:
        try:
            return process.wait(timeout=LOOK_S)
        except subprocess.TimeoutExpired:
            emit("beat")
            _check(deadline, args)


def _check(deadline: Optional[float], args: Dict[str, Any]) -> None:
    if deadline is not None and boottime() > deadline:
        raise AgentError(
            f"{args['argv'][0]} ran longer than {args['timeout']:g} s and was ended",
            next="--timeout SECONDS",
            code=UNKNOWN,
            kind="timeout",
        )
