"""Who listens on a port, on real sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from gpuops_agent import net
from gpuops_agent.wire import AgentError
from test_proc import as_nobody


def listening(host: str = "127.0.0.1", family: int = socket.AF_INET, port: int = 0) -> socket.socket:
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
    sock.bind((host, port))
    sock.listen()
    return sock


@pytest.mark.parametrize("likely", [(), (os.getpid(),), (1,)])
def test_a_listener_is_found_with_its_process(likely: tuple[int, ...]) -> None:
    with listening() as sock:
        (found,) = net.listeners(sock.getsockname()[1], likely)
    assert (found.address, found.pid, found.uid) == ("127.0.0.1", os.getpid(), os.getuid())
    assert "python" in found.command or "pytest" in found.command


def test_an_ipv6_listener_is_found() -> None:
    with listening("::1", socket.AF_INET6) as sock:
        (found,) = net.listeners(sock.getsockname()[1])
    assert found.address == "::1"


def test_a_connection_is_no_listener() -> None:
    with listening() as sock, socket.create_connection(sock.getsockname()) as connection:
        assert net.listeners(connection.getsockname()[1]) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_another_users_listener_has_no_pid_and_says_whose_it_is() -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
        (ours,) = net.listeners(port)

        def look() -> str:
            sock.close()  # the copy that the fork made; the listener stays ours
            return str([(each.pid, each.command) for each in net.listeners(port)])

        assert ours.pid == os.getpid()
        assert as_nobody(look) == "[(None, 'a process of uid 0')]"


def test_a_port_is_free_until_somebody_listens() -> None:
    port = net.pick_port("127.0.0.1")
    assert net.port_free(port, "127.0.0.1")
    with listening(port=port):
        assert not net.port_free(port, "127.0.0.1")
        assert not net.port_free(port, "0.0.0.0")


def test_a_port_that_is_bound_but_not_listened_on_is_not_free() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        assert not net.port_free(sock.getsockname()[1], "127.0.0.1")


def test_connections_of_a_past_server_in_time_wait_do_not_make_the_port_busy() -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = sock.accept()
        served.close()  # the side that closes first keeps TIME_WAIT
        client.close()
    assert net.port_free(port, "127.0.0.1")


def test_a_picked_port_is_none_that_the_kernel_gives_away_by_itself() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 20_000 <= net.pick_port("127.0.0.1") < low


def test_where_the_kernel_gives_away_every_port_the_choice_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "_kernels_first_port", lambda: 1024)
    assert net.port_free(net.pick_port("127.0.0.1"), "127.0.0.1")


@pytest.mark.parametrize("act", [lambda: net.pick_port("192.0.2.1"), lambda: net.port_free(1, "192.0.2.1")])
def test_an_address_that_is_not_ours_is_an_error_that_names_the_setting(act: object) -> None:
    assert callable(act)
    with pytest.raises(AgentError) as caught:
        act()
    assert caught.value.code == 5
    assert "192.0.2.1" in caught.value.what and "bind" in caught.value.next
