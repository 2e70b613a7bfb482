"""Hosts that cannot be reached, that nobody vouched for, that refuse us, or whose link is cut: told apart by both ssh transports."""

from __future__ import annotations

import logging
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_support import Programs, until

from gpuops.errors import Exit, OutcomeUnknown, TransportError
from gpuops.sandbox import ALIAS, SandboxInfo
from gpuops.transport import Address, Kind, Transport, open_transport
from gpuops.transport.openssh import OpenSshTransport


def opened(sandbox: SandboxInfo, kind: Kind, *, accept: bool = False, **options: str) -> Transport:
    address = Address(ALIAS, ssh_config=sandbox.ssh_config, accept_new_host_key=accept, options=options)
    return open_transport(address, kind)


def refusal(transport: Transport) -> TransportError:
    with transport, pytest.raises(TransportError) as caught:
        transport.run(["true"])
    assert caught.value.code == Exit.UNREACHABLE
    return caught.value


def fingerprint(sandbox: SandboxInfo) -> str:
    text = subprocess.run(
        ["ssh-keygen", "-lf", str(sandbox.folder / "host_key.pub")], capture_output=True, text=True, check=True
    ).stdout
    return text.split()[1]


def other_key(folder: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "other")], check=True)
    return folder / "other"


@pytest.mark.failure_mode("host-key")
def test_an_unknown_host_key_is_refused_with_its_fingerprint(sandbox: SandboxInfo, ssh_kind: Kind, tmp_path: Path) -> None:
    error = refusal(opened(sandbox, ssh_kind, UserKnownHostsFile=str(tmp_path / "none")))
    assert error.kind == "host_key_unknown"
    assert fingerprint(sandbox) in error.evidence
    assert "--accept-new-host-key" in error.next


def test_an_unknown_host_key_that_is_accepted_is_recorded_and_then_required(
    sandbox: SandboxInfo, ssh_kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = tmp_path / "folder" / "known_hosts"
    known.parent.mkdir()
    known.write_text("other.example ssh-ed25519 AAAA" + ("" if ssh_kind == "fabric" else "\n"))  # ssh itself needs that newline
    with caplog.at_level(logging.WARNING), opened(sandbox, ssh_kind, accept=True, UserKnownHostsFile=str(known)) as transport:
        assert transport.run(["true"]).status == 0
    with opened(sandbox, ssh_kind, UserKnownHostsFile=str(known)) as transport:
        assert transport.run(["true"]).status == 0
    assert fingerprint(sandbox) in caplog.text


@pytest.mark.failure_mode("host-key")
def test_a_changed_host_key_is_refused_even_when_new_ones_are_accepted(
    sandbox: SandboxInfo, ssh_kind: Kind, tmp_path: Path
) -> None:
    key = other_key(tmp_path).with_suffix(".pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{sandbox.port} {key}")
    error = refusal(opened(sandbox, ssh_kind, accept=True, UserKnownHostsFile=str(tmp_path / "known")))
    assert error.kind == "host_key_changed"
    assert fingerprint(sandbox) in error.evidence
    assert f"ssh-keygen -R '[127.0.0.1]:{sandbox.port}'" in error.next


@pytest.mark.failure_mode("host-key")
def test_a_revoked_host_key_is_refused(sandbox: SandboxInfo, ssh_kind: Kind, tmp_path: Path) -> None:
    key = (sandbox.folder / "host_key.pub").read_text()
    where = f"[127.0.0.1]:{sandbox.port}"
    (tmp_path / "known").write_text(f"{where} {key}@revoked {where} {key}")
    assert refusal(opened(sandbox, ssh_kind, UserKnownHostsFile=str(tmp_path / "known"))).kind == "host_key_changed"


@pytest.mark.parametrize("hashed", [False, True])
def test_a_host_key_known_by_pattern_or_hash_among_others_is_accepted(
    sandbox: SandboxInfo, ssh_kind: Kind, tmp_path: Path, hashed: bool
) -> None:
    key = (sandbox.folder / "host_key.pub").read_text()
    another = other_key(tmp_path).with_suffix(".pub").read_text()
    name = f"[127.0.0.1]:{sandbox.port}" if hashed else f"[127.*]:{sandbox.port}"
    known = tmp_path / "known"
    known.write_text(f"{name} {another}{name} {key}")
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    with opened(sandbox, ssh_kind, UserKnownHostsFile=str(known)) as transport:
        assert transport.run(["true"]).status == 0


@pytest.mark.failure_mode("login-refused")
def test_a_refused_key_is_told_apart(sandbox: SandboxInfo, ssh_kind: Kind, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(sandbox.ssh_config.read_text().replace(str(sandbox.folder / "client_key"), str(other_key(tmp_path))))
    error = refusal(open_transport(Address(ALIAS, ssh_config=config), ssh_kind))
    assert error.kind == "auth_refused"
    assert error.next == f"ssh -F {config} -v {ALIAS} true"


@pytest.mark.failure_mode("login-refused")
def test_no_key_at_all_is_a_refusal(sandbox: SandboxInfo, ssh_kind: Kind, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(sandbox.ssh_config.read_text().replace("client_key", "no_such_key"))
    assert refusal(open_transport(Address(ALIAS, ssh_config=config), ssh_kind)).kind == "auth_refused"


@pytest.mark.failure_mode("unreachable")
def test_a_port_where_nobody_listens_is_unreachable(sandbox: SandboxInfo, ssh_kind: Kind) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = refusal(opened(sandbox, ssh_kind, Port=str(free.getsockname()[1])))
    assert error.kind == "unreachable"
    assert "refused" in error.evidence.lower() or "Unable to connect" in error.evidence
    assert error.next.startswith("ssh ")


@pytest.mark.failure_mode("unreachable")
def test_a_name_that_does_not_exist_is_unreachable(sandbox: SandboxInfo, ssh_kind: Kind) -> None:
    error = refusal(opened(sandbox, ssh_kind, HostName="no-such-host.invalid"))
    assert error.kind == "unreachable"
    assert any(word in error.evidence for word in ("resolve", "not known", "resolution"))


@pytest.mark.failure_mode("unreachable")
def test_a_server_that_never_speaks_is_unreachable(sandbox: SandboxInfo, ssh_kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        error = refusal(opened(sandbox, ssh_kind, Port=str(mute.getsockname()[1]), ConnectTimeout="1"))
    assert error.kind == "unreachable"


def test_a_deadline_before_the_command_was_sent_is_no_unknown_outcome(sandbox: SandboxInfo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        transport = opened(sandbox, "openssh", Port=str(mute.getsockname()[1]))
        with transport, pytest.raises(TransportError) as caught:
            transport.run(["true"], timeout=0.5)
    assert caught.value.evidence == "the command did not end within 0.5 s"


@pytest.mark.failure_mode("unreachable")
def test_a_server_that_is_no_ssh_server_is_unreachable(sandbox: SandboxInfo, ssh_kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        error = refusal(opened(sandbox, ssh_kind, Port=str(listener.getsockname()[1])))
    assert error.kind == "unreachable"


def test_a_jump_host_that_cannot_be_reached_is_unreachable_and_named(sandbox: SandboxInfo, ssh_kind: Kind) -> None:
    error = refusal(opened(sandbox, ssh_kind, ProxyJump="no-such-host.invalid"))
    assert error.kind == "unreachable"
    assert "no-such-host.invalid" in error.evidence


class CuttableLink:
    """A TCP proxy to the sandbox whose connections the test can cut, as a router that is switched off would."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for end in self._sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    @staticmethod
    def _carry(near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far:
            while True:
                for end in select.select([near, far], [], [])[0]:
                    try:
                        data = end.recv(65536)
                        if data:
                            other[end].sendall(data)
                    except OSError:
                        return
                    if not data:
                        return


@pytest.fixture
def link(sandbox: SandboxInfo) -> Iterator[CuttableLink]:
    made = CuttableLink(sandbox.port)
    yield made
    made.close()


def over(link: CuttableLink, sandbox: SandboxInfo, kind: Kind) -> Transport:
    return opened(sandbox, kind, Port=str(link.port), HostKeyAlias=f"[127.0.0.1]:{sandbox.port}")


@pytest.mark.parametrize("calls_before", [0, 2])
@pytest.mark.failure_mode("link-cut")
def test_a_link_cut_while_a_command_runs_is_an_unknown_outcome(
    sandbox: SandboxInfo, ssh_kind: Kind, link: CuttableLink, tmp_path: Path, calls_before: int
) -> None:
    gate = tmp_path / "gate"
    argv = Programs(tmp_path).shell("cut", f"echo started; while [ ! -e {gate} ]; do sleep 0.02; done")
    with over(link, sandbox, ssh_kind) as transport:
        for _ in range(calls_before):
            assert transport.run(["true"]).status == 0
        with transport.stream(argv) as stream:
            assert next(iter(stream)) == b"started"
            link.cut()
            with pytest.raises(OutcomeUnknown) as caught:
                stream.finish()
    gate.touch()
    assert "the link was lost" in caught.value.what


@pytest.mark.failure_mode("link-cut")
def test_a_link_cut_between_two_commands_is_made_again(sandbox: SandboxInfo, ssh_kind: Kind, link: CuttableLink) -> None:
    with over(link, sandbox, ssh_kind) as transport:
        assert [transport.run(["true"]).status for _ in range(2)] == [0, 0]
        link.cut()
        until(lambda: answers(transport), "the transport connects again")


def answers(transport: Transport) -> bool:
    try:
        return transport.run(["true"]).status == 0
    except (TransportError, OutcomeUnknown):
        return False


def test_the_ssh_program_leaves_no_master_and_no_folder_behind(sandbox: SandboxInfo) -> None:
    with opened(sandbox, "openssh") as transport:
        assert isinstance(transport, OpenSshTransport)
        for _ in range(3):
            transport.run(["true"])
        folder = Path(transport._folder.name)
        assert (folder / "c").exists(), "the master's socket"
    assert not folder.exists()


def test_one_call_of_the_ssh_program_makes_one_connection_and_no_master(sandbox: SandboxInfo, link: CuttableLink) -> None:
    with over(link, sandbox, "openssh") as transport:
        transport.run(["true"])
        assert len(link._sockets) == 2  # one connection: its near and its far end
        for _ in range(3):
            transport.run(["true"])
        assert len(link._sockets) == 4  # the master is the second and last
