"""The `exec` verb: one command on the host, without a shell, its output as it comes."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from typing import Any, Dict

from . import releases
from .paths import Root
from .proc import boottime
from .wire import UNKNOWN, AgentError, emit

KILL_AFTER_S = 5.0


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
        _relay(process, boottime() + float(args["timeout"]) if args.get("timeout") else None, args)
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    return {"status": status if status >= 0 else 128 - status}


def _release_environment(root: Root, name: str) -> Dict[str, str]:
    service = root.service(name)
    release = releases.load(service, releases.current(service) or releases.known_good(service))
    if release is None:
        raise AgentError(f"service {name} has no release whose runtime could be used", next="gpuops up", kind="no_release")
    env: Dict[str, str] = release.document["env"]
    return {name: value for name, value in env.items() if "@{secret:" not in value}


def _relay(process: "subprocess.Popen[bytes]", deadline: Any, args: Dict[str, Any]) -> None:
    with selectors.DefaultSelector() as selector:
        for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            ready = selector.select(timeout=1.0)
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if data:
                    emit(key.data, text=data.decode("utf-8", "replace"))
                else:
                    selector.unregister(key.fileobj)
            if not ready:
                emit("beat")
            if deadline is not None and boottime() > deadline:
                raise AgentError(
                    f"{args['argv'][0]} ran longer than {args['timeout']:g} s and was ended",
                    next="--timeout SECONDS",
                    code=UNKNOWN,
                    kind="timeout",
                )


def _end(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=KILL_AFTER_S)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
