"""An address means what the user's own ssh makes of it."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.errors import Exit, GpuopsError, TransportError
from gpuops.sandbox import ALIAS, SandboxInfo
from gpuops.transport import Address, Kind, open_transport
from gpuops.transport.fabric_ssh import proxy_command
from gpuops.transport.resolve import SshTarget, parse_name, resolve


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("box", (None, "box", None)),
        ("me@box", ("me", "box", None)),
        ("me@box:2222", ("me", "box", 2222)),
        ("10.0.0.1:22", (None, "10.0.0.1", 22)),
        ("[::1]:2222", (None, "::1", 2222)),
        ("me@[fe80::1%eth0]:22", ("me", "fe80::1%eth0", 22)),
        ("fe80::1", (None, "fe80::1", None)),
        ("me@fe80::1", ("me", "fe80::1", None)),
    ],
)
def test_an_address_is_taken_apart(name: str, parts: tuple[str | None, str, int | None]) -> None:
    assert parse_name(name) == parts


@pytest.mark.parametrize(
    "name", ["", "-oProxyCommand=x", "me@-x", "box:0", "box:70000", "box:ssh", "a b", "@box", "[::1", "box\n"]
)
def test_what_cannot_be_an_address_is_a_usage_error(name: str) -> None:
    with pytest.raises(GpuopsError) as caught:
        parse_name(name)
    assert caught.value.code == Exit.USAGE


def configured(folder: Path, text: str, name: str = "box", **more: object) -> SshTarget:
    config = folder / "config"
    config.write_text(text)
    return resolve(Address(name, ssh_config=config, **more))  # type: ignore[arg-type]


def test_include_and_match_work_as_in_ssh(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host box\n HostName 192.0.2.7\n Port 2200\n")
    target = configured(tmp_path, f"Include {tmp_path}/more\nMatch originalhost box exec true\n User trainer\n")
    assert (target.hostname, target.port, target.user) == ("192.0.2.7", 2200, "trainer")


def test_user_and_port_of_the_address_win_over_the_configuration(tmp_path: Path) -> None:
    target = configured(tmp_path, "Host box\n HostName 192.0.2.7\n Port 2200\n User other\n", "me@box:2300")
    assert (target.alias, target.hostname, target.port, target.user) == ("box", "192.0.2.7", 2300, "me")


def test_options_of_the_address_win_over_the_configuration(tmp_path: Path) -> None:
    target = configured(tmp_path, "ConnectTimeout 3\n", options={"ConnectTimeout": "7"})
    assert target.connect_timeout == 7


def test_known_hosts_files_and_the_name_in_them_are_those_of_ssh(tmp_path: Path) -> None:
    text = "UserKnownHostsFile /a/one /a/two\nGlobalKnownHostsFile /dev/null\nPort 2200\nHostName BOX.example\n"
    target = configured(tmp_path, text)
    assert target.user_known_hosts_files == (Path("/a/one"), Path("/a/two"))
    assert target.global_known_hosts_files == ()
    assert target.known_host_name == "[box.example]:2200"
    assert configured(tmp_path, f"{text}HostKeyAlias fleet\n").known_host_name == "fleet"


def test_a_configuration_that_ssh_refuses_is_shown_as_ssh_says_it(tmp_path: Path) -> None:
    with pytest.raises(TransportError) as caught:
        configured(tmp_path, "NoSuchKeyword yes\n")
    assert caught.value.kind == "ssh_config"
    assert "nosuchkeyword" in caught.value.evidence.lower()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("CertificateFile /x-cert.pub", "certificatefile /x-cert.pub"),
        ("PKCS11Provider /lib/p11.so", "pkcs11provider"),
        ("SecurityKeyProvider /lib/sk.so", "securitykeyprovider"),
        ("KnownHostsCommand /bin/keys %H", "knownhostscommand"),
        ("IdentityAgent /run/agent.sock", "IdentityAgent is /run/agent.sock"),
        ("VerifyHostKeyDNS yes", "verifyhostkeydns"),
        ("BindAddress 192.0.2.9", "bindaddress"),
        ("AddressFamily inet6", "addressfamily"),
    ],
)
def test_what_only_the_ssh_program_can_do_is_named(tmp_path: Path, line: str, reason: str) -> None:
    found = configured(tmp_path, f"{line}\n").needs_openssh
    assert found is not None
    assert reason in found


def test_an_ordinary_configuration_needs_no_ssh_program(tmp_path: Path, sandbox: SandboxInfo) -> None:
    assert resolve(Address(ALIAS, ssh_config=sandbox.ssh_config)).needs_openssh is None


def test_gssapi_matters_only_to_those_who_hold_a_ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    assert configured(tmp_path, "GSSAPIAuthentication yes\n").needs_openssh is None
    monkeypatch.setenv("KRB5CCNAME", "FILE:/x")
    assert "Kerberos" in (configured(tmp_path, "GSSAPIAuthentication yes\n").needs_openssh or "")


def test_keys_that_paramiko_cannot_use_need_the_ssh_program(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "pass phrase", "-f", str(key)], check=True)
    assert "has a passphrase" in (configured(tmp_path, f"IdentityFile {key}\n").needs_openssh or "")
    assert "is a public key" in (configured(tmp_path, f"IdentityFile {key}.pub\n").needs_openssh or "")
    blob = base64.b64encode(b"openssh-key-v1\0\0\0\0\x04none" + b"sk-ssh-ed25519@openssh.com").decode()
    key.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{blob}\n-----END OPENSSH PRIVATE KEY-----\n")
    assert "FIDO" in (configured(tmp_path, f"IdentityFile {key}\n").needs_openssh or "")


def test_auto_says_why_it_takes_the_ssh_program(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("BindAddress 192.0.2.9\n")
    notes: list[str] = []
    with open_transport(Address("box", ssh_config=tmp_path / "config"), note=notes.append) as transport:
        assert type(transport).__name__ == "OpenSshTransport"
    assert notes == ["using the ssh program for box: the ssh configuration sets bindaddress 192.0.2.9"]


def test_auto_takes_fabric_and_says_nothing(address: Address) -> None:
    notes: list[str] = []
    with open_transport(address, note=notes.append) as transport:
        assert type(transport).__name__ == "FabricTransport"
    assert notes == []


def test_local_is_this_machine() -> None:
    with open_transport(Address("local")) as transport:
        assert type(transport).__name__ == "LocalTransport"


def test_opening_the_package_imports_no_ssh_library() -> None:
    source = (
        "import sys, gpuops.transport; print([m for m in ('fabric', 'paramiko', 'invoke', 'cryptography') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_connection_goes_through_a_jump_host(ssh_kind: Kind, sandbox: SandboxInfo, tmp_path: Path) -> None:
    config = tmp_path / "config"
    inner = sandbox.ssh_config.read_text().replace(f"Host {ALIAS}", "Host behind")
    config.write_text(f"Include {sandbox.ssh_config}\n{inner}    ProxyJump {ALIAS}\n")
    before = logins(sandbox)
    with open_transport(Address("behind", ssh_config=config), ssh_kind) as transport:
        assert transport.run(["echo", "through"]).stdout == b"through\n"
        assert logins(sandbox) - before == 2  # at the jump host, and through it at the host behind; both are the sandbox
        assert transport.run(["echo", "again"]).stdout == b"again\n"


def logins(sandbox: SandboxInfo) -> int:
    return (sandbox.folder / "sshd.log").read_text().count("Accepted publickey")


def test_a_connection_goes_through_a_proxy_command(ssh_kind: Kind, sandbox: SandboxInfo, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    command = f"touch {proof}; ssh -F {sandbox.ssh_config} -W %h:%p {ALIAS}"
    address = Address(ALIAS, ssh_config=sandbox.ssh_config, options={"ProxyCommand": f"sh -c '{command}'"})
    with open_transport(address, ssh_kind) as transport:
        assert transport.run(["echo", "through"]).stdout == b"through\n"
    assert proof.exists()


def test_a_jump_keeps_the_config_file_and_drops_the_options_of_the_host(tmp_path: Path) -> None:
    target = configured(tmp_path, "ProxyJump first,me@second:2222\nHostName inner\n", "box:2200", options={"ConnectTimeout": "9"})
    command = proxy_command(target)
    assert command is not None
    assert " ".join(command) == (
        f"ssh -F {tmp_path}/config -o BatchMode=yes -o ConnectTimeout=9 -l me -p 2222 -J first -W [inner]:2200 -- second"
    )
