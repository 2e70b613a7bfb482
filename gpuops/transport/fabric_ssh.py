"""Fabric as a transport: one connection, held open, for every command.

:class:`HostConnection` is Fabric's connection made strict: built from what ``ssh -G`` said, host keys checked, keepalive on, every wait
bounded. Of Fabric's verbs none is used that puts text into a shell (``env=``, ``sudo``), moves trees file by file (``put``) or decodes
bytes (``run``): commands go over plain session channels.

Importing this module imports Paramiko, which takes a good part of a second: only :func:`gpuops.transport.open_transport` does, when needed.
"""

from __future__ import annotations

import logging
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fabric
import paramiko

from gpuops.errors import GpuopsError, TransportError
from gpuops.transport.base import PushStats
from gpuops.transport.channel import CHUNK, Channel, ChannelTransport, Chunk, command_of, outcome_unknown
from gpuops.transport.failures import auth_refused, ssh_failure, unreachable
from gpuops.transport.host_keys import HostKeyCheck, known_keys
from gpuops.transport.openssh import ssh_words
from gpuops.transport.relay import relay
from gpuops.transport.resolve import SshTarget, parse_name

_KEEPALIVE_S = 15  # as ServerAliveInterval in the OpenSSH transport
_CHANNEL_OPEN_S = 20.0  # Paramiko's own is an hour
_AUTH_S = 30.0

# Paramiko logs the exceptions that it also raises; without a handler Python would print them on stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class FabricTransport(ChannelTransport):
    """One host through Fabric. The connection is made by the first command, and made again after it was lost between two of them."""

    def __init__(self, target: SshTarget) -> None:
        self.name = target.name
        self._target = target
        self._connection = HostConnection(target)
        self._closed = False

    def start(self, argv: Sequence[str], stdin: Iterable[bytes]) -> Channel:
        """See :meth:`gpuops.transport.channel.ChannelTransport.start`."""
        command = command_of(argv)
        return _FabricChannel(self.name, self._session(), command, stdin)

    def push(self, source: Path, destination: str, *, link_dest: str | None = None, timeout: float = 600.0) -> PushStats:
        """See :meth:`gpuops.transport.base.Transport.push`. rsync's own connection is made by the ssh binary, to the same target."""
        from gpuops.transport import trees

        with tempfile.NamedTemporaryFile(prefix="gpuops-rsync-") as log:
            path = Path(log.name)
            shell = trees.RemoteShell(
                lambda: ssh_words(self._target, path, shared=None),
                self._target.alias,
                lambda: ssh_failure(self._target, path.read_text(encoding="utf-8", errors="replace")),
            )
            return trees.push(self, shell, source, destination, link_dest=link_dest, timeout=timeout)

    @contextmanager
    def forward(self, port: int, *, host: str = "127.0.0.1") -> Iterator[int]:
        """See :meth:`gpuops.transport.base.Transport.forward`."""
        transport = self._open()

        def dial() -> paramiko.Channel:
            return transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=_CHANNEL_OPEN_S)

        with relay(dial) as near:
            yield near

    def close(self) -> None:
        """End the connection."""
        self._closed = True
        self._connection.close()

    def _open(self) -> paramiko.Transport:
        if self._closed:
            raise ValueError("this transport was closed")
        return self._connection.open_checked()

    def _session(self) -> paramiko.Channel:
        transport = self._open()
        try:
            return transport.open_session(timeout=_CHANNEL_OPEN_S)
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._connection.close()
            raise unreachable(self._target, f"no session could be opened: {error or type(error).__name__}") from error


class HostConnection(fabric.Connection):  # type: ignore[misc]  # Fabric has no type information
    """Fabric's connection for exactly one :class:`SshTarget`; no ssh or Fabric configuration file is read here."""

    def __init__(self, target: SshTarget) -> None:
        agent = target.raw.get("identityagent") != "none" and target.raw.get("identitiesonly") != "yes"
        config = fabric.Config(overrides={"load_ssh_configs": False}, lazy=True)
        known = known_keys(target)
        super().__init__(
            host=target.hostname,
            user=target.user,
            port=target.port,
            config=config,
            gateway=False,
            forward_agent=False,
            connect_timeout=target.connect_timeout,
            connect_kwargs={
                "key_filename": [str(path) for path in target.identity_files if path.is_file()],
                "allow_agent": agent,
                "look_for_keys": False,
                "banner_timeout": float(target.connect_timeout),
                "auth_timeout": _AUTH_S,
                "channel_timeout": _CHANNEL_OPEN_S,
                "transport_factory": lambda sock, **kwargs: _transport(sock, known.preferred, kwargs),
            },
        )
        self._set(target=target, proxy=None)
        self.client.set_missing_host_key_policy(HostKeyCheck(target, known))

    def derive_shorthand(self, host_string: str) -> dict[str, str | None]:
        """The host is resolved already: an IPv6 address is not to be taken apart at its colons."""
        return {"user": None, "host": host_string, "port": None}

    def open_checked(self) -> paramiko.Transport:
        """The live connection, made now if need be.

        Raises:
            TransportError: of every kind.
        """
        try:
            self.open()
        except TransportError:
            self._hang_up()
            raise
        except paramiko.AuthenticationException as error:
            self._hang_up()
            raise auth_refused(self.target, str(error)) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            said = self.proxy.said() if self.proxy else ""
            self._hang_up()
            if "No authentication methods available" in str(error):
                raise auth_refused(self.target, "there is no key to offer") from error
            if said:
                raise ssh_failure(self.target, said) from error
            raise unreachable(self.target, _detail(error)) from error
        transport: paramiko.Transport = self.transport
        transport.set_keepalive(_KEEPALIVE_S)
        return transport

    def open(self) -> Any:
        """See :meth:`fabric.Connection.open`; with a proxy, over the proxy's pipe."""
        if self.is_connected:
            return None
        command = proxy_command(self.target)
        if command is not None:
            self._set(proxy=_Proxy(command))
            self.connect_kwargs["sock"] = self.proxy.socket
        return super().open()

    def close(self) -> None:
        """See :meth:`fabric.Connection.close`."""
        super().close()
        self._hang_up()

    def _hang_up(self) -> None:
        self.client.close()
        if self.proxy is not None:
            self.proxy.close()
            self._set(proxy=None)


def proxy_command(target: SshTarget) -> list[str] | None:
    """The command that carries the connection, as ssh itself would make it (ssh.c: a ProxyJump is ``ssh -W`` to the last hop).

    Only ``-F`` goes along: options given for the host are not meant for the hops before it.
    """
    if target.proxyjump:
        *before, last = target.proxyjump.split(",")
        user, host, port = parse_name(last.removeprefix("ssh://"))
        words = ["ssh", *_config_file(target), "-o", "BatchMode=yes", "-o", f"ConnectTimeout={target.connect_timeout}"]
        words += ["-l", user] if user else []
        words += ["-p", str(port)] if port else []
        words += ["-J", ",".join(before)] if before else []
        where = f"[{target.hostname}]:{target.port}"
        return [*words, "-W", where, "--", host]
    if target.proxycommand:
        tokens = {"%h": target.hostname, "%p": str(target.port), "%r": target.user, "%n": target.alias, "%%": "%"}
        line = target.proxycommand
        for token, value in tokens.items():
            line = line.replace(token, value)
        # As ssh does: the user's shell, which the command replaces.
        return ["/bin/sh", "-c", f"exec {line}"]
    return None


def _detail(error: Exception) -> str:
    """What went wrong, in the system's words: Paramiko's own text for a refused connection does not say so."""
    inner = getattr(error, "errors", None)
    if isinstance(inner, dict) and inner:
        return "; ".join(f"{host}:{port}: {reason}" for (host, port, *_), reason in inner.items())
    return str(error) or type(error).__name__


def _config_file(target: SshTarget) -> list[str]:
    return list(target.written[:2]) if target.written[:1] == ("-F",) else []


def _transport(sock: Any, preferred: Callable[[tuple[str, ...]], tuple[str, ...]], kwargs: dict[str, Any]) -> paramiko.Transport:
    transport = paramiko.Transport(sock, **kwargs)
    options = transport.get_security_options()
    options.key_types = preferred(tuple(options.key_types))
    return transport


class _Proxy:
    """A proxy process behind a socket pair.

    Paramiko's own ProxyCommand never notices that its process has ended: at end of file it reads on, in a loop. A socket does.
    """

    def __init__(self, command: list[str]) -> None:
        self.socket, far = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        with far:
            self._process = subprocess.Popen(
                command, stdin=far.fileno(), stdout=far.fileno(), stderr=self._said, start_new_session=True
            )

    def said(self) -> str:
        """What the proxy wrote on stderr."""
        self._said.seek(0)
        return self._said.read().decode("utf-8", "replace").strip()

    def close(self) -> None:
        self.socket.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._said.close()


class _FabricChannel:
    def __init__(self, host: str, channel: paramiko.Channel, command: str, stdin: Iterable[bytes]) -> None:
        self._host = host
        self._channel = channel
        self.fed_at = time.monotonic()
        with self._bounded(_CHANNEL_OPEN_S):
            try:
                channel.exec_command(command.encode("ascii"))
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise outcome_unknown(host, "the link was lost when the command was sent", str(error)) from error
        self._ready = select.poll()
        self._ready.register(channel.fileno(), select.POLLIN)
        # The one thing a Paramiko channel cannot signal is that it takes input again, so a thread waits for that.
        threading.Thread(target=self._feed, args=(stdin,), name="gpuops-stdin", daemon=True).start()

    def read(self, timeout: float) -> Chunk | None:
        deadline = time.monotonic() + timeout
        channel = self._channel
        while True:
            # Asked before looking: what arrives in between is then seen in the next round.
            ended = channel.eof_received or channel.closed
            if channel.recv_stderr_ready():
                return Chunk(channel.recv_stderr(CHUNK), True)
            if channel.recv_ready():
                return Chunk(channel.recv(CHUNK), False)
            if ended:
                return None
            if not self._ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError

    def status(self, timeout: float) -> int:
        if not self._channel.status_event.wait(max(0.0, timeout)):
            raise TimeoutError
        status = self._channel.exit_status
        if status < 0:
            raise outcome_unknown(self._host, "the link was lost, or the command was ended by a signal")
        return status

    def expired(self, waited: str) -> GpuopsError:
        return outcome_unknown(self._host, waited)

    def close(self) -> None:
        self._channel.close()

    def _feed(self, stdin: Iterable[bytes]) -> None:
        # A closed channel means that the command, or the link, has ended: the reading side finds out which.
        with suppress(OSError, EOFError, paramiko.SSHException):
            for chunk in stdin:
                view = memoryview(chunk)
                while view:
                    sent = self._channel.send(bytes(view[:CHUNK]))
                    self.fed_at = time.monotonic()
                    view = view[sent:]
            self._channel.shutdown_write()

    @contextmanager
    def _bounded(self, seconds: float) -> Iterator[None]:
        """Paramiko waits for the answer to a request without a limit; closing the connection ends that wait."""
        timer = threading.Timer(seconds, self._channel.get_transport().close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
