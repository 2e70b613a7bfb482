"""What every transport promises: run a command, stream one, push a tree, forward a port.

A transport moves bytes; it knows nothing of agents, orders or services. Every implementation passes the same contract
test-suite (``tests/ssh/test_contract.py``). Rules that hold for all of them:

* Over ssh, ``argv`` words hold only characters that no login shell (sh, fish, csh) interprets; see :func:`plain_command`. Data goes over stdin.
* Both output streams are drained concurrently, whatever their size.
* Every wait has a deadline. A deadline that passes, or a link that is cut, raises :class:`gpuops.errors.OutcomeUnknown`: the remote
  command may still be running, so nobody guesses. A command that was ended by a signal has no exit status and counts as unknown too.
* A remote command outlives whoever stops listening to it: neither a deadline nor the end of a block kills it.
* A host that cannot be reached, or that refuses us, raises :class:`gpuops.errors.TransportError` with what ``ssh`` said as evidence.
* A transport is used by one thread at a time, closed once, and usable as a context manager.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuops.errors import Exit, GpuopsError

# bash and zsh expand "~" after "=" and ":", zsh a leading "=", fish a leading "%self". A leading "~/" is the home folder to every shell
# and may be meant.
_PLAIN = re.compile(r"(?![=%]|~(?!/)|.*[=:]~)[A-Za-z0-9_./=:@%+,~-]+\Z")


@dataclass(frozen=True)
class Completed:
    """A remote command that ended: its exit status (never unknown) and both streams."""

    status: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class PushStats:
    """What a push moved: files in the tree, and bytes of file data that crossed the link (compressed or not, as counted by the tool)."""

    files: int
    bytes_sent: int
    tool: str


@dataclass(frozen=True)
class Address:
    """Where to connect, as the user wrote it.

    Args:
        name: ssh alias, ``host``, ``user@host``, ``user@host:port``, or ``local``.
        ssh_config: a config file used instead of the user's own (``ssh -F``), or None.
        accept_new_host_key: trust a host key that is in no known_hosts file, and record it.
        options: further ``ssh -o`` options, for tests and special cases.
        when_unreachable: the command that would make the host reachable, where one is known.
    """

    name: str
    ssh_config: Path | None = None
    accept_new_host_key: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    when_unreachable: str = ""


class RemoteStream(Protocol):
    """A remote command that is running: iterate its stdout lines (bytes, without the newline)."""

    def __iter__(self) -> Iterator[bytes]: ...

    def finish(self) -> Completed:
        """The exit status and stderr, once stdout has ended (stdout is empty here). Raises OutcomeUnknown when the link was lost."""
        ...


class Transport(Protocol):
    """One connection to one host."""

    name: str

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a command to its end. Raises TransportError, OutcomeUnknown."""
        ...

    def stream(
        self, argv: Sequence[str], *, stdin: bytes = b"", idle_timeout: float = 60.0
    ) -> AbstractContextManager[RemoteStream]:
        """Run a command and read its stdout line by line; leaving the block early closes the channel, and never waits for the command.

        ``idle_timeout`` is the longest silence on stdout that is believed, in seconds; then OutcomeUnknown is raised.
        """
        ...

    def push(self, source: Path, destination: str, *, link_dest: str | None = None, timeout: float = 600.0) -> PushStats:
        """Make the remote folder ``destination`` (absolute) equal to the local tree ``source``.

        rsync over this transport's own ssh settings, with ``--link-dest`` when given; a tar stream where rsync is missing on either side
        (``PushStats.tool`` says which), which sends everything. Raises TransportError, OutcomeUnknown, and GpuopsError when the tool fails;
        pushing again is always right.
        """
        ...

    def forward(self, port: int, *, host: str = "127.0.0.1") -> AbstractContextManager[int]:
        """A local port that leads to ``host:port`` as seen from the remote side, while the block runs."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> "Transport": ...

    def __exit__(self, *exc: object) -> None: ...


def plain_command(argv: Sequence[str]) -> str:
    """The command string for a login shell of any kind.

    Raises:
        GpuopsError: a word is empty or holds a character that some shell would interpret.
    """
    for word in argv:
        if not is_plain(word):
            raise GpuopsError(
                f"{word!r} cannot be passed to an unknown login shell",
                evidence="a path on the host may hold letters, digits and _./=:@%+,~- only",
                next="set host.root (or host.python) in the playbook to a path of these",
                code=Exit.HOST_UNFIT,
                kind="host_word",
            )
    return " ".join(argv)


def is_plain(word: str) -> bool:
    """Whether every login shell passes a word through as it is."""
    return _PLAIN.match(word) is not None
