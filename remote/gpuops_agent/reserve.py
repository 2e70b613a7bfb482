"""Disk space that is kept back for the way back.

A candidate can fill the disk (a log that runs away, a cache) and die of it. The known-good release needs a little room to start: its log,
its PID file, the journal. That room is taken before the old server is touched and given back when it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path

from .files import disk_error

# A start writes a few hundred kB of records and log before it serves.
RESERVE_BYTES = 4 << 20


class Reserve:
    """A file of :data:`RESERVE_BYTES` that exists to be removed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> None:
        """Raises AgentError (exit code 5) when the disk has not even this much."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            self.give_back()
            raise disk_error(error, self._path) from error

    def give_back(self) -> None:
        """Free the room; harmless when done twice."""
        self._path.unlink(missing_ok=True)
