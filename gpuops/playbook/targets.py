"""Where a service runs, read from a playbook without validating the rest of it and without importing pydantic.

Verbs such as ``status`` start in a few tens of milliseconds this way. What is checked here is checked by the same rules in a full
load, which ends in :func:`connect` too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.errors import TransportError
from gpuops.transport.base import Address

from .interpolate import interpolate
from .layers import assemble
from .locate import Located, plain
from .merge import KINDS, kinds_in
from .paths import absolute, missing, relocate
from .problems import Key, Problem, first_of_each_key, invalid, is_extension, suggestion

SERVICE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
SERVICE_WORDS = "a name of at most 63 lower-case letters, digits, '.', '_' and '-', which starts with a letter or digit"
TRANSPORTS = ("auto", "fabric", "openssh")
DEFAULT_ROOT = "~/.gpuops"
DEFAULT_PYTHON = "python3"
SANDBOX_NAME = "gpuops-sandbox"

_ADDRESS = re.compile(r"(?P<user>[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.:\[\]][A-Za-z0-9_.:\[\]%-]*\Z")
_PORT = re.compile(r":(?P<port>[0-9]+)\Z")
# Both become words of a command that some login shell reads; see gpuops.transport.base.plain_command.
_ROOT = re.compile(r"(~/|/)[A-Za-z0-9_./=:@%+,~-]*\Z")
_PYTHON = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./=:@%+,~-]*\Z")

_HOST_KEYS = {
    "address": ("address", "ssh_config", "root", "python", "transport"),
    "sandbox": ("sandbox", "transport"),
}


@dataclass(frozen=True)
class Target:
    """Where to connect, and what is known of the other side.

    Args:
        service: the service's name.
        root: gpuops' folder on the host; ``~`` is the home of the user there.
        python: the interpreter that runs the agent on the host.
        transport: ``auto``, ``fabric`` or ``openssh``.
    """

    service: str
    address: Address
    root: str
    python: str
    transport: str


def target(
    path: Path | str,
    overrides: Sequence[str] = (),
    host: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """Where the service of a playbook runs.

    Args:
        overrides: ``--set`` texts.
        host: replaces the playbook's ``host``.
        environ: the laptop's variables; ``os.environ`` when absent.

    Raises:
        PlaybookError: the playbook cannot be read, or ``service`` or ``host`` is wrong.
        TransportError: the host is a sandbox that does not exist.
    """
    assembled = assemble(Path(path), overrides, host)
    found = interpolate(assembled.tree, os.environ if environ is None else environ, only=("service", "host"))
    tree = relocate(found.tree, assembled.base_dir)
    problems = [*found.problems, *missing(tree, assembled.base_dir, section="host"), *_check(tree)]
    if problems:
        raise invalid(str(path), first_of_each_key(problems))
    return connect(tree.value["service"].value, plain(tree.value["host"]), assembled.base_dir)


def connect(service: str, host: str | Mapping[str, Any], base_dir: Path) -> Target:
    """The target of a valid ``host`` section; relative paths in it start from ``base_dir``.

    Raises:
        TransportError: the host is a sandbox that does not exist.
    """
    section = {"address": host} if isinstance(host, str) else host
    transport = section.get("transport") or TRANSPORTS[0]
    if section.get("sandbox") is not None:
        folder = absolute(section["sandbox"], base_dir)
        return Target(
            service,
            Address(
                SANDBOX_NAME,
                ssh_config=folder / "ssh_config",
                when_unreachable=f"gpuops sandbox start --dir {shlex.quote(str(folder))}   (or: make up)",
            ),
            root=str(folder / "root"),
            python=_sandbox_python(folder),
            transport=transport,
        )
    config = section.get("ssh_config")
    return Target(
        service,
        Address(section["address"], ssh_config=None if config is None else absolute(config, base_dir)),
        root=section.get("root") or DEFAULT_ROOT,
        python=section.get("python") or DEFAULT_PYTHON,
        transport=transport,
    )


def host_word_problem(key: str, word: str) -> str | None:
    """What is wrong with one value of a ``host`` section, or None."""
    if key == "address" and not _is_address(word):
        return f"expected an ssh alias, 'host', 'user@host' or 'user@host:port', or 'local', not {word!r}"
    if key == "root" and not _ROOT.match(word):
        return f"expected a path that starts with '/' or '~/', of letters, digits and _./=:@%+,~-, not {word!r}"
    if key == "python" and not _PYTHON.match(word):
        return f"expected a command or path of letters, digits and _./=:@%+,~-, not {word!r}"
    if key == "transport" and word not in TRANSPORTS:
        return f"expected one of {', '.join(TRANSPORTS)}, not {word!r}{suggestion(word, TRANSPORTS)}"
    if not word:
        return "expected a path, not empty text"
    return None


def kind_problem(key: Key, section: Located) -> str:
    """Why a section with several kinds names none of them, or too many."""
    kinds, named = KINDS[key], sorted(kinds_in(section, key))
    choice = f"expected exactly one of the keys {', '.join(kinds)}"
    if named:
        return f"{choice}; here: {', '.join(named)}"
    for name in section.value if section.is_mapping else ():
        if (hint := suggestion(name, kinds)).startswith("; did"):
            return f"{choice}; for {name!r}{hint.replace(';', ',', 1)}"
    return choice


def _is_address(text: str) -> bool:
    # A leading '-' would be an option to ssh; the pattern has no place for one.
    if not _ADDRESS.match(text):
        return False
    port = _PORT.search(text)
    return port is None or text.count(":") > 1 or (len(port["port"]) <= 5 and 0 < int(port["port"]) < 65536)


def _check(tree: Located) -> list[Problem]:
    problems = []
    service, host = _present(tree, "service"), _present(tree, "host")
    for key, node in (("service", service), ("host", host)):
        if node is None:
            problems.append(Problem(tree.mark, (key,), "this key is required, and missing"))
    if service is not None and not (isinstance(service.value, str) and SERVICE.match(service.value)):
        problems.append(Problem(service.mark, ("service",), f"expected {SERVICE_WORDS}, not {service.value!r}"))
    if host is not None:
        problems.extend(_check_host(host))
    return problems


def _present(tree: Located, key: str) -> Located | None:
    """The value of a key; null counts as absent, as in the models."""
    node = tree.get(key)
    return None if node is None or node.value is None else node


def _check_host(host: Located) -> list[Problem]:
    if isinstance(host.value, str):
        return _check_word(host, ("host",), "address")
    if not host.is_mapping:
        return [Problem(host.mark, ("host",), f"expected an ssh address, or a mapping, not {plain(host)!r}")]
    kinds = kinds_in(host, ("host",))
    if len(kinds) != 1:
        return [Problem(host.mark, ("host",), kind_problem(("host",), host))]
    known = _HOST_KEYS[kinds.pop()]
    problems = []
    for name, child in host.value.items():
        if is_extension(name) or child.value is None:
            continue
        if name not in known:
            problems.append(Problem(child.mark, ("host", name), f"no such key{suggestion(name, known)}"))
        else:
            problems.extend(_check_word(child, ("host", name), name))
    return problems


def _check_word(node: Located, key: Key, name: str) -> list[Problem]:
    if not isinstance(node.value, str):
        return [Problem(node.mark, key, f"expected text, not {plain(node)!r}")]
    text = host_word_problem(name, node.value)
    return [] if text is None else [Problem(node.mark, key, text)]


def _sandbox_python(folder: Path) -> str:
    """The interpreter that the sandbox names, if it names one."""
    record = folder / "sandbox.json"
    try:
        python = json.loads(record.read_text(encoding="utf-8")).get("python")
    except FileNotFoundError as error:
        raise TransportError(
            f"there is no sandbox in {folder}",
            evidence=str(error),
            next=f"make up   (or: gpuops sandbox start --dir {shlex.quote(str(folder))})",
            kind="sandbox_missing",
        ) from error
    except (OSError, ValueError, AttributeError) as error:
        raise TransportError(
            f"the sandbox's record {record} cannot be read",
            evidence=str(error),
            next=f"gpuops sandbox start --dir {shlex.quote(str(folder))}",
            kind="sandbox_missing",
        ) from error
    return python if isinstance(python, str) and python else DEFAULT_PYTHON
