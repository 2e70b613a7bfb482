"""The zipapp's entry point: one verb, one JSON request on stdin, JSON lines on stdout."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any, Dict, Tuple

from . import PROTOCOL
from .paths import own_root
from .wire import FAILURE, AgentError, write

# verb -> (module, function): a verb loads only what it needs, a round trip is short.
VERBS: Dict[str, Tuple[str, str]] = {
    "hello": ("host", "hello"),
    "status": ("status", "status"),
    "run": ("operations", "run"),
    "follow": ("operations", "follow"),
    "cancel": ("operations", "cancel"),
    "renew": ("lease", "renew"),
    "confirm": ("lease", "confirm"),
    "smoke": ("smoke", "smoke"),
    "logs": ("logs", "logs"),
    "history": ("history", "history"),
    "bench": ("bench", "bench"),
    "profile": ("profile", "profile"),
    "profile.get": ("profile", "get"),
    "ab.save": ("comparisons", "save"),
    "ab.load": ("comparisons", "load"),
    "ab.list": ("comparisons", "listed"),
    "ab.renew": ("ab_lease", "renew"),
    "evidence": ("evidence", "evidence"),
    "exec": ("execute", "execute"),
    "doctor": ("doctor", "doctor"),
    "diagnose": ("examine", "verb"),
    "adopt": ("adopt", "adopt"),
    "lock": ("locks", "lock"),
    "unlock": ("locks", "unlock"),
    "prune": ("prune", "prune"),
    "pin": ("pins", "pin"),
    "unpin": ("pins", "unpin"),
    "wait": ("waiting", "wait"),
    "secret": ("vault", "store"),
    "tree.have": ("trees", "have"),
    "tree.commit": ("trees", "commit"),
    "build.list": ("trees", "listed"),
    "build.verify": ("trees", "verify"),
    "bundle.platform": ("bundles", "platform"),
    "bundle.have": ("bundles", "have"),
    "bundle.put": ("bundles", "put"),
    "bundle.commit": ("bundles", "commit"),
    "cache.list": ("cache_pack", "listed"),
    "cache.pack": ("cache_pack", "pack"),
    "cache.get": ("cache_pack", "get"),
    "cache.drop": ("cache_pack", "drop"),
    "cache.load": ("cache_load", "load"),
}

# Called by the agent itself with its stdin; they speak their own protocol.
HIDDEN: Dict[str, Tuple[str, str]] = {
    "runner": ("runner", "main"),
    "supervise": ("supervisor", "main"),
}


def main() -> int:
    """Dispatch. Returns the exit status: 0 with a result, else the error's code."""
    os.umask(0o077)
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    if verb in HIDDEN:
        module, function = HIDDEN[verb]
        work = getattr(importlib.import_module(f"{__package__}.{module}"), function)
        gc.enable()
        return int(work(sys.stdin.buffer))
    try:
        write({"result": _answer(verb)})
        return 0
    except AgentError as error:
        return _fail(error)
    except BrokenPipeError:
        return FAILURE
    except Exception as error:
        import traceback  # only a defect needs it

        where = traceback.format_exc().strip().splitlines()
        return _fail(AgentError(f"the agent failed in {verb}: {error!r}", evidence=" | ".join(where[-3:]), kind="bug"))


def _answer(verb: str) -> Dict[str, Any]:
    if verb not in VERBS:
        raise AgentError(f"the agent knows no verb {verb!r}", evidence=f"verbs: {', '.join(VERBS)}", code=2, kind="usage")
    try:
        request = json.loads(sys.stdin.buffer.readline())
        protocol, args = request["protocol"], request["args"]
    except (ValueError, KeyError, TypeError) as error:
        raise AgentError("the request is no JSON line", evidence=repr(error), code=2, kind="usage") from error
    if protocol != PROTOCOL:
        raise AgentError(
            f"the client speaks protocol {protocol}, this agent {PROTOCOL}",
            next="use the gpuops that this agent came with, or let it upload its own",
            kind="protocol",
        )
    module, function = VERBS[verb]
    handler = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    gc.enable()
    result: Dict[str, Any] = handler(own_root(), args)
    return result


def _fail(error: AgentError) -> int:
    try:
        write({"error": error.as_dict()})
    except BrokenPipeError:
        pass
    return error.code


if __name__ == "__main__":
    sys.exit(main())
