"""Who listens on a TCP port, and which port is free."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Set

from . import proc
from .wire import HOST_UNFIT, AgentError

_ESTABLISHED, _LISTEN = "01", "0A"
"""TCP_ESTABLISHED and TCP_LISTEN in ``/proc/net/tcp`` (include/net/tcp_states.h)."""

# Above the ports of most services, below those that the kernel gives away (32768 by default).
_FIRST_PORT = 20_000
_TRIES = 50


@dataclass(frozen=True)
class Listener:
    """A listening socket and the process that holds it; ``pid`` is None when that process is another user's."""

    port: int
    address: str
    inode: int
    uid: int
    pid: Optional[int]
    command: str

    @property
    def who(self) -> str:
        """The listener by pid and command, as errors name it."""
        return f"pid {self.pid}: {self.command}" if self.pid else self.command


@dataclass(frozen=True)
class _Socket:
    port: int
    address: str
    inode: int
    uid: int


def listeners(port: int, likely: Iterable[int] = ()) -> List[Listener]:
    """Every socket that listens on ``port``, on any address, IPv4 and IPv6.

    Args:
        likely: pids to look at first; when they hold all the sockets, no other process is looked at.
    """
    sockets = [each for each in _listening() if each.port == port]
    if not sockets:
        return []
    owners = _owners({each.inode for each in sockets}, likely)
    return [_listener(each, owners.get(each.inode)) for each in sockets]


def listeners_of(pid: int) -> List[Listener]:
    """Every socket that this very process listens on."""
    own = _socket_inodes(pid)
    return [_listener(each, pid) for each in _listening() if each.inode in own]


def peers(pid: int, ports: Sequence[int]) -> List[str]:
    """``address:port`` of every other machine's port, out of ``ports``, that this process is connected to."""
    own = _socket_inodes(pid)
    found = []
    for fields in _rows():
        address, _, number = fields[2].partition(":")
        if fields[3] == _ESTABLISHED and int(fields[9]) in own and int(number, 16) in ports:
            found.append(f"{_address(address)}:{int(number, 16)}")
    return found


def holds(pid: int, listener: Listener) -> bool:
    """Whether this process has the listener's socket open too (a server's workers share their parent's)."""
    return listener.inode in _socket_inodes(pid)


def port_free(port: int, host: str) -> bool:
    """Whether a server could listen on ``host:port`` now: nobody listens on the port, and the kernel lets us bind it.

    Raises:
        AgentError: ``host`` is no address of this machine (exit code 5).
    """
    if listeners(port):
        return False
    try:
        _bind(port, host).close()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise _not_ours(host, error) from error
    return True


def pick_port(host: str) -> int:
    """A port that is free on ``host`` now, where possible one that the kernel gives to nobody by itself.

    A server listens minutes after its port was picked; until then its own ranks open many connections, whose ports are the kernel's choice. One of
    them took the server's port once.

    Raises:
        AgentError: ``host`` is no address of this machine (exit code 5).
    """
    unasked = range(_FIRST_PORT, _kernels_first_port())
    for port in random.sample(unasked, min(_TRIES, len(unasked))):
        if port_free(port, host):
            return port
    try:
        with _bind(0, host) as sock:
            return int(sock.getsockname()[1])
    except OSError as error:
        raise _not_ours(host, error) from error


def _kernels_first_port() -> int:
    """The lowest port that the kernel gives to who asks for any; 0 where it does not tell."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _listening() -> Iterator[_Socket]:
    for fields in _rows():
        address, _, number = fields[1].partition(":")
        if fields[3] == _LISTEN:
            yield _Socket(int(number, 16), _address(address), inode=int(fields[9]), uid=int(fields[7]))


def _rows() -> Iterator[List[str]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = file.read().splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        yield from (row.split() for row in rows)


def _address(text: str) -> str:
    """Addresses are printed as 32-bit words in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


def _owners(inodes: Set[int], likely: Iterable[int]) -> Dict[int, int]:
    first = list(likely)
    seen = set(first)
    owners: Dict[int, int] = {}
    for candidates in (first, (pid for pid in proc.pids() if pid not in seen)):
        for pid in candidates:
            for inode in _socket_inodes(pid) & inodes:
                owners.setdefault(inode, pid)
            if len(owners) == len(inodes):
                return owners
    return owners


def _socket_inodes(pid: int) -> Set[int]:
    folder = f"/proc/{pid}/fd"
    found: Set[int] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def _listener(sock: _Socket, pid: Optional[int]) -> Listener:
    command = f"a process of uid {sock.uid}" if pid is None else proc.title(pid)
    return Listener(sock.port, sock.address, sock.inode, sock.uid, pid, command)


def _bind(port: int, host: str) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        # Connections of the last server that linger in TIME_WAIT are no reason to say no; servers set this too.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _not_ours(host: str, error: OSError) -> AgentError:
    return AgentError(
        f"cannot listen on {host}",
        evidence=str(error),
        next="set 'bind' in the playbook to an address of this host (ip addr shows them)",
        code=HOST_UNFIT,
        kind="bind",
    )
