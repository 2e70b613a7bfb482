"""Which keys a host may show: the user's known_hosts files, read by ``ssh-keygen -F``, and what to do with a new one.

Paramiko's own reader knows no patterns and no ``@revoked``, and takes only the first of several keys; OpenSSH's is asked instead.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import paramiko

from gpuops.transport.failures import host_key_changed, host_key_unknown
from gpuops.transport.resolve import SshTarget

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownKeys:
    """The keys on file for one host, as (type, blob)."""

    trusted: frozenset[tuple[str, bytes]]
    revoked: frozenset[tuple[str, bytes]]

    def preferred(self, offered: tuple[str, ...]) -> tuple[str, ...]:
        """The key algorithms in the order to ask for: those whose key we can check come first, or the host may show us another one."""
        types = {kind for kind, _ in self.trusted}
        if "ssh-rsa" in types:
            types |= {"rsa-sha2-512", "rsa-sha2-256"}
        return tuple(sorted(offered, key=lambda algorithm: algorithm not in types))


def known_keys(target: SshTarget) -> KnownKeys:
    """Look a host up in all its known_hosts files."""
    trusted: set[tuple[str, bytes]] = set()
    revoked: set[tuple[str, bytes]] = set()
    for path in (*target.user_known_hosts_files, *target.global_known_hosts_files):
        if path.is_file():
            for marker, kind, blob in _entries(target.known_host_name, path):
                if marker == "@revoked":
                    revoked.add((kind, blob))
                elif not marker:
                    trusted.add((kind, blob))
    return KnownKeys(frozenset(trusted), frozenset(revoked))


class HostKeyCheck(paramiko.MissingHostKeyPolicy):
    """Decides about every key that the host shows: Paramiko is given no known hosts, so it asks here each time.

    Raises:
        TransportError: ``host_key_unknown`` or ``host_key_changed``.
    """

    def __init__(self, target: SshTarget, known: KnownKeys) -> None:
        self._target = target
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """See the class."""
        shown = (key.get_name(), key.asbytes())
        fingerprint = f"{key.get_name()} {key.fingerprint}"
        if shown in self._known.revoked:
            raise host_key_changed(self._target, fingerprint, "a key that is marked @revoked")
        if shown in self._known.trusted:
            return
        if self._known.trusted:
            raise host_key_changed(self._target, fingerprint, "known_hosts has another key for it")
        if not self._target.accept_new_host_key:
            raise host_key_unknown(self._target, fingerprint)
        self._record(key, fingerprint)

    def _record(self, key: paramiko.PKey, fingerprint: str) -> None:
        name = self._target.known_host_name
        if not self._target.user_known_hosts_files:
            _log.warning("accepted the host key of %s: %s (not recorded: no UserKnownHostsFile)", name, fingerprint)
            return
        path = self._target.user_known_hosts_files[0]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        hashed = self._target.raw.get("hashknownhosts") == "yes"
        filed = paramiko.HostKeys.hash_host(name) if hashed else name
        line = f"{filed} {key.get_name()} {key.get_base64()}\n".encode()
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            cut_off = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write((b"\n" if cut_off else b"") + line)
        _log.warning("accepted the host key of %s: %s, recorded in %s", name, fingerprint, path)


def _entries(name: str, path: Path) -> list[tuple[str, str, bytes]]:
    done = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    entries = []
    for line in done.stdout.splitlines():
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            entries.append((marker, fields[1], base64.b64decode(fields[2])))
        except binascii.Error:
            continue
    return entries
