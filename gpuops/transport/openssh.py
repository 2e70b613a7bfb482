"""The ssh binary as a transport: whatever the user's ssh can do, this can do.

The first command makes one plain connection, so a verb that needs one call costs no more than ``ssh HOST COMMAND``. From the second on
the commands share a master connection. ssh writes its own messages to a file (``-E``), so they never mix with the command's stderr, and
its debug lines there tell a connection that failed from a command that was sent: after that, what we do not see we do not know.
"""

from __future__ import annotations

import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.errors import GpuopsError, TransportError
from gpuops.transport.base import PushStats
from gpuops.transport.channel import Channel, ChannelTransport, Chunk, command_of, outcome_unknown
from gpuops.transport.failures import fingerprint_in, ssh_failure, unreachable
from gpuops.transport.pipes import PipeProcess
from gpuops.transport.resolve import SshTarget

if TYPE_CHECKING:
    # A push is rare, and reading tar takes a while to import.
    from gpuops.transport import trees

SSH_FAILED = 255
"""ssh's own exit status for everything that went wrong on its side (ssh(1), EXIT STATUS)."""

_LINGER_S = 60  # how long an idle master outlives a client that was killed before it could close it
_SLACK_S = 10.0  # on top of ConnectTimeout, which does not cover key exchange and authentication in every release
_FORWARD_TRIES = 5
_STARTED = ("Authenticated to ", "mux_client_request_session: master session id")
_EXITED_255 = ("Exit status 255", "Received exit status from master 255")


class OpenSshTransport(ChannelTransport):
    """One host through ``ssh``.

    Args:
        target: from :func:`gpuops.transport.resolve.resolve`.
    """

    def __init__(self, target: SshTarget) -> None:
        self.name = target.name
        self._target = target
        # Under /tmp because a Unix socket's path ends at 104 bytes on some systems, and $TMPDIR alone can be longer (mkdtemp: mode 0700).
        self._folder = tempfile.TemporaryDirectory(prefix="gpuops-", dir="/tmp", ignore_cleanup_errors=True)
        self._control = Path(self._folder.name) / "c"
        self._calls = 0
        self._logs = 0
        self._closed = False

    def start(self, argv: Sequence[str], stdin: Iterable[bytes]) -> Channel:
        """See :meth:`gpuops.transport.channel.ChannelTransport.start`."""
        command = command_of(argv)
        self._share_from_second_call()
        log = self._new_log()
        return _SshChannel(self._target, PipeProcess([*self._ssh(log), "--", self._target.alias, command], stdin), log)

    def push(self, source: Path, destination: str, *, link_dest: str | None = None, timeout: float = 600.0) -> PushStats:
        """See :meth:`gpuops.transport.base.Transport.push`."""
        # A push is several calls, so the master pays off from its first one.
        self._calls += 1
        from gpuops.transport import trees

        return trees.push(self, self._remote_shell(), source, destination, link_dest=link_dest, timeout=timeout)

    @contextmanager
    def forward(self, port: int, *, host: str = "127.0.0.1") -> Iterator[int]:
        """See :meth:`gpuops.transport.base.Transport.forward`.

        A connection of its own, whose remote command is ``cat``: its echo says that the forward is up (``ExitOnForwardFailure``), and it
        ends when its stdin does, so a forward never outlives this process.
        """
        for _ in range(_FORWARD_TRIES):
            near = _free_port()
            log = self._new_log()
            options = [
                "-o",
                "ControlPath=none",
                "-o",
                "ExitOnForwardFailure=yes",
                "-L",
                f"127.0.0.1:{near}:{_bracketed(host)}:{port}",
            ]
            words = [*ssh_words(self._target, log, shared=None, clear_forwardings=False), *options]
            process = subprocess.Popen(
                [*words, "--", self._target.alias, "cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
            try:
                if self._echoes(process, log):
                    yield near
                    return
            finally:
                _end(process)
        raise TransportError(f"no port could be forwarded to {self.name}", evidence=_read(log)[-400:], kind="forward")

    def close(self) -> None:
        """End the master, if there is one, and remove its socket."""
        if self._closed:
            return
        self._closed = True
        if self._control.exists():
            argv = ["ssh", *self._target.written, "-o", f"ControlPath={self._control}", "-O", "exit", "--", self._target.alias]
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
        self._folder.cleanup()

    def _ssh(self, log: Path) -> list[str]:
        return ssh_words(self._target, log, shared=self._control if self._control.exists() else None)

    def _share_from_second_call(self) -> None:
        self._calls += 1
        if self._calls > 1 and not self._control.exists():
            self._start_master()

    def _start_master(self) -> None:
        log = self._new_log()
        words = ssh_words(self._target, log, shared=self._control)
        # -f returns when the connection stands. The outputs are not ours: a ProxyJump's process would hold our pipe open for as long as
        # the master lives.
        argv = [*words, "-o", "ControlMaster=yes", "-o", f"ControlPersist={_LINGER_S}", "-f", "-N", "--", self._target.alias]
        deadline = self._target.connect_timeout + _SLACK_S
        with log.open("ab") as said:
            try:
                code = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, timeout=deadline, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                raise unreachable(self._target, f"no connection within {deadline:g} s") from None
        if code != 0:
            raise ssh_failure(self._target, _read(log))
        _announce_new_key(self._target, _read(log))

    def _remote_shell(self) -> "trees.RemoteShell":
        from gpuops.transport import trees

        log = self._new_log()

        def failure() -> GpuopsError:
            return _classify(self._target, _read(log), "the link was lost during a push")

        def words() -> list[str]:
            return self._ssh(log)

        return trees.RemoteShell(words, self._target.alias, failure)

    def _echoes(self, process: subprocess.Popen[bytes], log: Path) -> bool:
        """Whether the forward is up. False when its local port was taken in the meantime."""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(b"\n")
        except BrokenPipeError:
            pass
        deadline = time.monotonic() + self._target.connect_timeout + _SLACK_S
        if not _readable(process.stdout.fileno(), deadline):
            raise unreachable(self._target, "the forwarding connection does not answer")
        if process.stdout.read(1):
            return True
        if "cannot listen to port" in _read(log) or "Address already in use" in _read(log):
            return False
        raise ssh_failure(self._target, _read(log))

    def _new_log(self) -> Path:
        if self._closed:
            raise ValueError("this transport was closed")
        self._logs += 1
        return Path(self._folder.name) / f"log-{self._logs}"


def ssh_words(target: SshTarget, log: Path, *, shared: Path | None, clear_forwardings: bool = True) -> list[str]:
    """``ssh`` with every option except the host: the user's words first, because ssh takes the first value of an option."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(target.connect_timeout),
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
        "StrictHostKeyChecking": target.strict_host_key_checking,
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        # A RemoteCommand in the configuration would make ssh refuse ours.
        "RemoteCommand": "none",
        "ControlPath": str(shared) if shared else "none",
        # A multiplexed client reports the exit status it was given at level 2, a plain one at level 1.
        "LogLevel": "DEBUG2" if shared else "DEBUG1",
    }
    if clear_forwardings:
        options["ClearAllForwardings"] = "yes"
    words = ["ssh", "-T", "-E", str(log), *target.written]
    for key, value in options.items():
        words += ["-o", f"{key}={value}"]
    return words


class _SshChannel:
    def __init__(self, target: SshTarget, pipes: PipeProcess, log: Path) -> None:
        self._target = target
        self._pipes = pipes
        self._log = log
        self._jump_said = bytearray()

    @property
    def fed_at(self) -> float:
        return self._pipes.fed_at

    def read(self, timeout: float) -> Chunk | None:
        chunk = self._pipes.read(timeout)
        if chunk and chunk.is_error and len(self._jump_said) < 4096:
            # Before the command starts, only a ProxyJump's ssh writes here.
            self._jump_said.extend(chunk.data)
        return chunk

    def status(self, timeout: float) -> int:
        code = self._pipes.wait(timeout)
        log = _read(self._log)
        _announce_new_key(self._target, log)
        if code == SSH_FAILED and any(mark in log for mark in _EXITED_255):
            return code
        if 0 <= code < SSH_FAILED:
            return code
        raise self._failure("the link was lost, or the command was ended by a signal")

    def expired(self, waited: str) -> GpuopsError:
        # Ended first, judged after: a client that is still running could send the command while we read that it has not.
        self._end()
        return self._failure(waited)

    def close(self) -> None:
        self._end()
        self._log.unlink(missing_ok=True)

    def _end(self) -> None:
        self._pipes.close_pipes()
        _end(self._pipes.process)

    def _failure(self, why: str) -> GpuopsError:
        return _classify(self._target, _read(self._log), why, self._jump_said.decode("utf-8", "replace"))


def _classify(target: SshTarget, log: str, why: str, jump_said: str = "") -> GpuopsError:
    """A connection that was never made is a TransportError; a command that may have been sent is an unknown outcome."""
    if any(mark in log for mark in _STARTED):
        last = [line for line in log.replace("\r", "").splitlines() if not line.startswith("debug")]
        return outcome_unknown(target.name, why, last[-1] if last else "")
    return ssh_failure(target, f"{jump_said}\n{log}" if jump_said else log, silence=why)


def _announce_new_key(target: SshTarget, log: str) -> None:
    """Say once that a host key was accepted: ssh says so in the log of the connection that recorded it."""
    if target.accept_new_host_key and "Permanently added" in log:
        import logging

        logging.getLogger(__name__).warning(
            "accepted the host key of %s: %s, recorded by ssh", target.known_host_name, fingerprint_in(log)
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an ssh client of ours; it has nothing to finish, and nothing remote is waited for."""
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()
    if process.poll() is None:
        # TERM first: on it ssh ends its ProxyJump process too.
        process.terminate()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _readable(fd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
