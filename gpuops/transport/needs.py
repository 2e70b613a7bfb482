"""When only the ssh binary will do: what a resolved configuration asks for that Paramiko cannot do, or would do differently."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

# Keyword of `ssh -G` -> values that change nothing. A keyword that is absent changes nothing either.
_NEUTRAL: Mapping[str, tuple[str, ...]] = {
    "certificatefile": ("none",),
    "pkcs11provider": ("none",),
    "securitykeyprovider": ("internal",),
    "knownhostscommand": ("none",),
    "revokedhostkeys": ("none",),
    "verifyhostkeydns": ("false", "no"),
    "bindaddress": ("none",),
    "bindinterface": ("none",),
    "addressfamily": ("any",),
    "proxyusefdpass": ("no",),
}
_ARMOUR = re.compile(rb"-----BEGIN OPENSSH PRIVATE KEY-----(.*?)-----END", re.DOTALL)
_MAGIC = b"openssh-key-v1\0"  # PROTOCOL.key in the OpenSSH sources


def openssh_reason(raw: Mapping[str, str]) -> str | None:
    """Why this configuration needs the ssh binary, in words for the user; None when Paramiko serves it as well.

    Args:
        raw: what ``ssh -G`` said, see :class:`gpuops.transport.resolve.SshTarget`.
    """
    for keyword, neutral in _NEUTRAL.items():
        if raw.get(keyword, neutral[0]) not in neutral:
            return f"the ssh configuration sets {keyword} {raw[keyword].splitlines()[0]}"
    return _gssapi(raw) or _agent(raw) or _identities(raw) or _authorities(raw)


def _gssapi(raw: Mapping[str, str]) -> str | None:
    # Debian switches GSSAPI on for everybody; it only means something to those who hold a ticket.
    if raw.get("gssapiauthentication") != "yes":
        return None
    ticket = "KRB5CCNAME" in os.environ or Path(f"/tmp/krb5cc_{os.getuid()}").exists()
    return "there is a Kerberos ticket and GSSAPIAuthentication is on" if ticket else None


def _agent(raw: Mapping[str, str]) -> str | None:
    agent = raw.get("identityagent", "SSH_AUTH_SOCK")
    ours = ("SSH_AUTH_SOCK", "$SSH_AUTH_SOCK", "none", os.environ.get("SSH_AUTH_SOCK"))
    return None if agent in ours else f"IdentityAgent is {agent}"


def _identities(raw: Mapping[str, str]) -> str | None:
    for name in raw.get("identityfile", "").splitlines():
        path = Path(name.strip('"')).expanduser()
        if "%" in name:
            return f"IdentityFile {name} holds a token"
        reason = _identity(path)
        if reason:
            return reason
    return None


def _identity(path: Path) -> str | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        data = path.read_bytes()[:65536]
    except OSError:
        return None
    armour = _ARMOUR.search(data)
    if armour is None:
        if b"ENCRYPTED" in data:
            return f"{path} has a passphrase, which ssh asks an agent about"
        return None if b"PRIVATE KEY" in data else f"{path} is a public key; the private one is elsewhere"
    try:
        blob = base64.b64decode(armour[1])
    except binascii.Error:
        return None
    if b"sk-ssh-" in blob or b"sk-ecdsa-" in blob:
        return f"{path} is the key of a FIDO token"
    # After the magic comes the cipher's name as a string: a length of four bytes, then "none" for a key without passphrase.
    if not blob.startswith(_MAGIC + b"\0\0\0\x04none"):
        return f"{path} has a passphrase, which ssh asks an agent about"
    return None


def _authorities(raw: Mapping[str, str]) -> str | None:
    for keyword in ("userknownhostsfile", "globalknownhostsfile"):
        for name in raw.get(keyword, "").split():
            path = Path(name).expanduser()
            try:
                trusted = b"@cert-authority" in path.read_bytes() if path.is_file() else False
            except OSError:
                continue
            if trusted:
                return f"{path} trusts a certificate authority"
    return None
