"""What the user's own ssh would do for a host: asked of ``ssh -G``, never parsed by us.

So ``Include``, ``Match``, ``ProxyJump``, ``CanonicalizeHostname`` and the system-wide configuration mean here exactly what they mean there.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuops.errors import Exit, GpuopsError, TransportError
from gpuops.transport.base import Address
from gpuops.transport.needs import openssh_reason

DEFAULT_CONNECT_S = 10
"""Seconds to wait for a connection when the user's configuration does not say."""

_RESOLVE_S = 20.0  # `Match exec` may run anything
_HOST = re.compile(
    r"(?:\[(?P<v6>[^\[\]\s]+)\]|(?P<host>[^\[\]:\s]+))(?::(?P<port>\d+))?\Z|(?P<bare_v6>[^\[\]:\s]*:[^\[\]\s]*:[^\[\]\s]*)\Z"
)


@dataclass(frozen=True)
class SshTarget:
    """A host, resolved.

    Args:
        name: the host as the user wrote it, for messages.
        alias: the same without user and port.
        written: the words that make ``ssh`` see the same thing again (``-F``, ``-o``, ``-p``, ``-l``).
        known_host_name: the name under which its key is filed (``host``, ``[host]:port``, or HostKeyAlias).
        connect_timeout: seconds.
        raw: everything that ``ssh -G`` said; repeated keywords joined by newlines.
        needs_openssh: why only the ssh binary can make this connection, or None.
        when_unreachable: the command that would make the host reachable; empty where none is known.
    """

    name: str
    alias: str
    written: tuple[str, ...]
    hostname: str
    user: str
    port: int
    known_host_name: str
    identity_files: tuple[Path, ...]
    user_known_hosts_files: tuple[Path, ...]
    global_known_hosts_files: tuple[Path, ...]
    proxyjump: str | None
    proxycommand: str | None
    strict_host_key_checking: str
    connect_timeout: int
    accept_new_host_key: bool
    raw: Mapping[str, str]
    needs_openssh: str | None
    when_unreachable: str = ""

    def command(self, *words: str) -> str:
        """An ``ssh`` command line to this host, for a person to paste."""
        return shlex.join(["ssh", *self.written, *words])


def resolve(address: Address) -> SshTarget:
    """Ask ``ssh -G`` about an address.

    Raises:
        GpuopsError: USAGE, the address is malformed; TransportError, ssh is missing or refuses its configuration.
    """
    user, host, port = parse_name(address.name)
    written = _written(address, user, port)
    raw = _parse(_ssh_g([*written, "--", host], address.name))
    hostname = raw.get("hostname", host)
    resolved_port = int(raw.get("port", "22"))
    alias_for_key = raw.get("hostkeyalias")
    timeout = raw.get("connecttimeout", "none")
    return SshTarget(
        name=address.name,
        alias=host,
        written=tuple(written),
        hostname=hostname,
        user=raw.get("user", user or ""),
        port=resolved_port,
        known_host_name=alias_for_key or (hostname.lower() if resolved_port == 22 else f"[{hostname.lower()}]:{resolved_port}"),
        identity_files=_paths(raw.get("identityfile", "").splitlines()),
        user_known_hosts_files=_paths(raw.get("userknownhostsfile", "").split()),
        global_known_hosts_files=_paths(raw.get("globalknownhostsfile", "").split()),
        proxyjump=_set(raw.get("proxyjump")),
        proxycommand=_set(raw.get("proxycommand")),
        strict_host_key_checking="accept-new" if address.accept_new_host_key else "yes",
        connect_timeout=int(timeout) if timeout.isdigit() and int(timeout) > 0 else DEFAULT_CONNECT_S,
        accept_new_host_key=address.accept_new_host_key,
        raw=raw,
        needs_openssh=openssh_reason(raw),
        when_unreachable=address.when_unreachable,
    )


def parse_name(name: str) -> tuple[str | None, str, int | None]:
    """``user@host:port``, ``[v6]:port``, a bare IPv6 address, or an alias: (user, host, port), None where not given.

    Raises:
        GpuopsError: USAGE.
    """
    # As in ssh: the last "@" ends the user, which may hold one itself.
    user, at, rest = name.rpartition("@")
    match = _HOST.match(rest)
    if match is None or (at and not user):
        raise _malformed(name, "expected an ssh alias, host, user@host, user@host:port or [v6]:port")
    parts = (user or None, match["v6"] or match["bare_v6"] or match["host"], int(match["port"]) if match["port"] else None)
    # A leading dash would reach ssh as an option.
    if parts[1].startswith("-") or (parts[0] or "").startswith("-") or any(c.isspace() or not c.isprintable() for c in name):
        raise _malformed(name, "a host or user cannot begin with '-' or hold blanks")
    if parts[2] is not None and not 0 < parts[2] < 65536:
        raise _malformed(name, f"port {parts[2]} is not between 1 and 65535")
    return parts


def _malformed(name: str, evidence: str) -> GpuopsError:
    return GpuopsError(f"{name!r} is not a host", evidence=evidence, next="gpuops --help", code=Exit.USAGE, kind="address")


def _written(address: Address, user: str | None, port: int | None) -> list[str]:
    # Absolute: rsync runs its ssh in another folder.
    words = ["-F", str(address.ssh_config.expanduser().absolute())] if address.ssh_config else []
    for key, value in address.options.items():
        words += ["-o", f"{key}={value}"]
    if port is not None:
        words += ["-p", str(port)]
    if user is not None:
        words += ["-l", user]
    return words


def _ssh_g(words: list[str], name: str) -> str:
    argv = ["ssh", "-G", *words]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_RESOLVE_S, check=False
        )
    except FileNotFoundError:
        raise TransportError(
            "there is no ssh on this machine",
            evidence="`ssh` is not on PATH",
            next="install the OpenSSH client",
            kind="ssh_missing",
        ) from None
    except subprocess.TimeoutExpired:
        raise TransportError(
            f"ssh does not say how it would reach {name}",
            evidence=f"`{' '.join(argv)}` was still running after {_RESOLVE_S:g} s; a `Match exec` may hang",
            next=" ".join(argv),
            kind="ssh_config",
        ) from None
    if done.returncode != 0:
        raise TransportError(
            f"ssh does not accept its configuration for {name}",
            evidence=done.stderr.strip(),
            next=" ".join(argv),
            kind="ssh_config",
        )
    return done.stdout


def _parse(text: str) -> dict[str, str]:
    raw: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        key = key.lower()
        raw[key] = f"{raw[key]}\n{value}" if key in raw else value
    return raw


def _paths(words: list[str]) -> tuple[Path, ...]:
    return tuple(Path(word.strip('"')).expanduser() for word in words if word not in ("none", "/dev/null"))


def _set(value: str | None) -> str | None:
    return None if value in (None, "", "none") else value
