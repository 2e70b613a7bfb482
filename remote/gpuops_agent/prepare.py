"""Everything that a rollout does before the old server stops: runtime, build and model in place, and the release's document resolved.

Nothing here needs the GPU, so nothing here costs an outage.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from . import ask, builds, bundles, caches, gpus, models, proofs, runtimes
from .host import facts
from .paths import Root, own_zipapp
from .wire import AgentError, Emit

_PLACEHOLDER = re.compile(r"@\{([a-z]+)\}")

# What the server inherits from the host besides what the playbook says; everything else of the agent's environment stays out.
INHERITED = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME")


@dataclass(frozen=True)
class Work:
    """What a long preparation needs: where to write its output, how to tell progress, and whether to stop.

    Args:
        wheels: the folder of a bundle, from which alone packages come then; None: they come from where the host gets its packages.
        at_once: how many preparations share the host's cores.
    """

    emit: Emit
    log: Path
    cancelled: Callable[[], bool]
    deadline: float  # CLOCK_BOOTTIME, seconds
    wheels: Optional[Path] = None
    at_once: int = 1

    @property
    def cores(self) -> int:
        """How many processes that compute it may have at a time."""
        return max(1, len(os.sched_getaffinity(0)) // self.at_once)

    def package_source(self) -> List[str]:
        """What tells pip where packages come from."""
        return ["--no-index", "--find-links", str(self.wheels)] if self.wheels else []


@dataclass(frozen=True)
class Prepared:
    """Runtime, model and build in place."""

    runtime: runtimes.Runtime
    model: models.Model
    build: Optional[builds.Build]


def prepare(root: Root, parts: Dict[str, Any], engine: Dict[str, Any], work: Work) -> Prepared:
    """Make what is missing. Idempotent: what is there (by its stamp) is taken as it is.

    Args:
        parts: the order's ``prepare``.
        engine: the order's ``engine``: a build may be for some versions only.
    Raises:
        AgentError: the host is unfit (no Python, disk, incomplete model, failed download), with the tool's own last line as evidence.
        wire.Cancelled
    """
    work = replace(work, wheels=bundles.wheels(root, parts.get("bundle")))
    runtime = runtimes.ensure(root, parts["runtime"], work)
    build = builds.ensure(root, parts["build"], runtime, engine, work) if parts.get("build") else None
    model = models.ensure(root, parts["model"], runtime, work)
    return Prepared(runtime, model, build)


def resolve(root: Root, order: Dict[str, Any], prepared: Prepared, port: int) -> Dict[str, Any]:
    """The release's document: the candidate with every placeholder but secrets replaced, and all that a later restore needs."""
    candidate = order["candidate"]
    # The server knows its cache by the link: see caches.py.
    values = _values(prepared, root.service(order["service"]).cache_link, str(port))
    return {
        "spec": order["spec"],
        "base": order.get("base"),
        "swap": bool(order.get("swap")),
        "service": order["service"],
        "op": order["op"],
        "by": order.get("by"),
        "argv": [_fill(word, values) for word in candidate["argv"]],
        "env": _environment(prepared, candidate, values),
        "secrets": candidate["secrets"],
        "auth": candidate.get("auth"),
        "bind": candidate["bind"],
        "port": port,
        "served_model_name": candidate.get("served_model_name"),
        "runtime": prepared.runtime.to_json(),
        "model": prepared.model.to_json(),
        "build": prepared.build.to_json() if prepared.build else None,
        "proof": proofs.settle(prepared.build.about if prepared.build else None, candidate),
        "cache": str(caches.folder(root, cache_identity(prepared, order))),
        "agent": own_zipapp().stem,
        "engine": order["engine"],
        "probes": order["probes"],
        "deadlines": order["deadlines"],
        "hooks": candidate.get("hooks") or {},
        "restart": candidate.get("restart") or {},
        "gpus": candidate.get("gpus"),
        "summary": candidate["summary"],
        "playbook": candidate["playbook"],
    }


def fingerprint(root: Root, prepared: Prepared) -> Dict[str, Any]:
    """What was really there when the release was staged: distributions, model sizes, host."""
    host = facts(root)
    host.pop("disk_free")
    return {
        "host": host,
        "card": card(),
        "kernel": os.uname().release,
        "runtime": prepared.runtime.fingerprint,
        "model": prepared.model.to_json(),
        "build": prepared.build.to_json() if prepared.build else None,
    }


def base_environment(python: Path) -> Dict[str, str]:
    """The environment every server starts with: the runtime's own bin folder first on PATH, and :data:`INHERITED`."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**inherited, "PATH": f"{python.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}", "PYTHONUNBUFFERED": "1"}


def environment(order: Dict[str, Any], prepared: Prepared, cache: Path, port: str) -> Dict[str, str]:
    """The server's environment with its cache at another path: for programs that prepare something for it. Secrets are left as placeholders."""
    return _environment(prepared, order["candidate"], _values(prepared, cache, port))


def cache_identity(prepared: Prepared, order: Dict[str, Any]) -> caches.Identity:
    """What the release's cache belongs to: a cache never meets another build, card or compiler; nor, where ``cache_apart`` says so, another step."""
    found = caches.identity(prepared.build, prepared.runtime, card(), order["engine"])
    return replace(found, apart=order.get("cache_apart") or "")


def card() -> str:
    """The models of the host's NVIDIA cards as their driver names them, each once, or ``cpu``."""
    names = set()
    for information in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        for text in information.read_text(errors="replace").splitlines():
            if text.startswith("Model:"):
                names.add(text.split(":", 1)[1].strip())
    if not names and ask.where("nvidia-smi"):
        # A container that sees the cards and not the driver's /proc.
        names = {each.name for each in gpus.cards()}
    return " + ".join(sorted(names)) or "cpu"


def _values(prepared: Prepared, cache: Path, port: str) -> Dict[str, str]:
    return {
        "python": str(prepared.runtime.python),
        "runtime": str(prepared.runtime.path),
        "model": str(prepared.model.path),
        "build": str(prepared.build.site) if prepared.build else "",
        "pythonpath": prepared.build.python_path if prepared.build else "",
        "cache": str(cache),
        "port": port,
    }


def _environment(prepared: Prepared, candidate: Dict[str, Any], values: Dict[str, str]) -> Dict[str, str]:
    return {**base_environment(prepared.runtime.python), **{name: _fill(text, values) for name, text in candidate["env"].items()}}


def _fill(text: str, values: Dict[str, str]) -> str:
    def value(match: "re.Match[str]") -> str:
        name = match.group(1)
        if name not in values:
            raise AgentError(f"the order uses an unknown placeholder @{{{name}}}", evidence=text, kind="order")
        return values[name]

    return _PLACEHOLDER.sub(value, text)
