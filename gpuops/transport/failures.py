"""From what ssh says to a typed error. Pure: text in, error out."""

from __future__ import annotations

import re
import shlex

from gpuops.errors import TransportError
from gpuops.transport.resolve import SshTarget

_FINGERPRINT = re.compile(r"Server host key: (\S+) (SHA256:\S+)")
# From log.c and sshconnect.c of OpenSSH: debug lines carry a prefix, what is meant for people does not.
_DEBUG = re.compile(r"(debug\d: |OpenSSH_|Authenticated to |Transferred: |Bytes per second: )")


def ssh_failure(target: SshTarget, log: str, *, silence: str = "ssh said nothing") -> TransportError:
    """The error for a connection that ssh could not make.

    Args:
        target: the host.
        log: ssh's own messages, at debug level 1 or above.
        silence: the evidence when there is nothing in it for people.
    """
    said = "\n".join(line for line in log.replace("\r", "").splitlines() if line and not _DEBUG.match(line))
    fingerprint = fingerprint_in(log)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in log or "REVOKED HOST KEY" in log:
        return host_key_changed(target, fingerprint, _last_lines(said))
    if "Host key verification failed" in log or "host key is known for" in log:
        return host_key_unknown(target, fingerprint)
    if re.search(
        r"Permission denied \(|Too many authentication failures|No supported authentication methods|Permission denied, please",
        log,
    ):
        return auth_refused(target, _last_lines(said))
    return unreachable(target, _last_lines(said) or silence)


def fingerprint_in(log: str) -> str:
    """The key that the host showed, as ``ssh-keygen -l`` prints it, from ssh's debug lines."""
    key = _FINGERPRINT.search(log)
    return f"{key[1]} {key[2]}" if key else "an unknown fingerprint"


def host_key_unknown(target: SshTarget, fingerprint: str) -> TransportError:
    """Nobody has vouched for this host's key yet."""
    return TransportError(
        f"the host key of {target.name} is not known",
        evidence=f"it shows {fingerprint}, which is in no known_hosts file",
        next="compare the fingerprint with the host's owner, then run the same command with --accept-new-host-key",
        kind="host_key_unknown",
    )


def host_key_changed(target: SshTarget, fingerprint: str, detail: str) -> TransportError:
    """The host shows another key than it used to: reinstalled, or somebody else."""
    return TransportError(
        f"the host key of {target.name} has changed",
        evidence=f"it shows {fingerprint}; {detail}",
        next=f"ask the host's owner; if the change is right: ssh-keygen -R {shlex.quote(target.known_host_name)}, then --accept-new-host-key",
        kind="host_key_changed",
    )


def auth_refused(target: SshTarget, detail: str) -> TransportError:
    """The host is there and is the right one; it does not let us in."""
    return TransportError(
        f"{target.name} does not accept our key",
        evidence=detail,
        next=target.command("-v", target.alias, "true"),
        kind="auth_refused",
    )


def unreachable(target: SshTarget, detail: str) -> TransportError:
    """No connection: no route, refused, timed out, no such name, or no ssh server at the other end."""
    return TransportError(
        f"{target.name} cannot be reached",
        evidence=detail,
        next=target.when_unreachable or target.command("-v", target.alias, "true"),
        kind="unreachable",
    )


def _last_lines(text: str, count: int = 3) -> str:
    return "; ".join(text.splitlines()[-count:])
