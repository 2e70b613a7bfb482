"""Which versions a runtime has, or will have, as far as that is known before it is made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Optional

from . import ask, caches, runtimes
from .files import read_json
from .paths import Root
from .wire import AgentError

# Importing nothing but metadata; a slow disk.
_PATIENCE_S = 30.0

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*==\s*([^\s;#]+)")


def foreseen(root: Root, spec: Optional[Dict[str, Any]]) -> Dict[str, str]:
    """Versions by normalised name: those that are installed, where the runtime is there; else the pins of its lock (without a local part, as
    ``+cpu``), and what of torch and Triton the interpreter itself has, for a runtime that takes those. Empty where nothing is known.

    Args:
        spec: the order's ``prepare.runtime``, or None.
    """
    if spec is None:
        return {}
    if spec["kind"] == "path":
        found = runtimes.distributions(Path(spec["path"]).expanduser())
    else:
        made = read_json(root.runtimes / spec["id"] / "runtime.json")
        found = made["distributions"] if made else {**_of_interpreter(spec), **_pinned(spec["lock"])}
    return {caches.normal(name): str(version) for name, version in found.items()}


def _pinned(lock: str) -> Dict[str, str]:
    matches = (_PIN.match(line.strip()) for line in lock.splitlines())
    return {match[1]: match[2] for match in matches if match}


def _of_interpreter(spec: Dict[str, Any]) -> Dict[str, str]:
    if not spec.get("system_packages"):
        return {}
    program = (
        "import importlib.metadata as m, json; names = [d.metadata['Name'] for d in m.distributions()];"
        "print(json.dumps({n: m.version(n) for n in names if n and n.lower() in ('torch', 'triton')}))"
    )
    try:
        found: Dict[str, str] = json.loads(
            ask.output([runtimes.interpreter(spec.get("python")), "-c", program], _PATIENCE_S).splitlines()[-1]
        )
    except (AgentError, ask.Silent, ValueError, IndexError):
        # The rollout will say what is wrong with this Python; it is no matter of caches.
        return {}
    return found
