"""Errors as part of the interface: what happened, the evidence, and the next command.

Every failure that a user can meet is a :class:`GpuopsError`. The command line prints its three parts and exits with its code;
``--json`` prints :meth:`GpuopsError.as_dict`. The codes are those of ``docs/architecture.md``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Process exit codes of every verb."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    PLAYBOOK = 3
    UNREACHABLE = 4
    HOST_UNFIT = 5
    WRONG_ANSWERS = 6
    RESTORED = 10
    RESTORE_FAILED = 11
    UNKNOWN = 12
    REFUSED = 13
    NOTHING_TO_RESTORE = 14


class GpuopsError(Exception):
    """A failure with its evidence and what to do next.

    Args:
        what: one sentence, what happened.
        evidence: why we think so: a log line, a file and line, an errno text. May be empty.
        next: the command to run or the thing to change. May be empty.
        code: the exit code.
        kind: a stable word for scripts (``host_key_changed``, ``disk_full``, ...).
    """

    def __init__(
        self,
        what: str,
        *,
        evidence: str = "",
        next: str = "",
        code: Exit = Exit.FAILURE,
        kind: str = "failure",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.evidence = evidence
        self.next = next
        self.code = code
        self.kind = kind

    def as_dict(self) -> dict[str, Any]:
        """The error as the wire and ``--json`` carry it."""
        return {
            "code": int(self.code),
            "kind": self.kind,
            "what": self.what,
            "evidence": self.evidence,
            "next": self.next,
        }


class PlaybookError(GpuopsError):
    """The playbook is invalid (exit code 3)."""

    def __init__(self, what: str, *, evidence: str = "", next: str = "", kind: str = "playbook") -> None:
        super().__init__(what, evidence=evidence, next=next, code=Exit.PLAYBOOK, kind=kind)


class TransportError(GpuopsError):
    """The host cannot be reached, or does not let us in (exit code 4)."""

    def __init__(self, what: str, *, evidence: str = "", next: str = "", kind: str = "unreachable") -> None:
        super().__init__(what, evidence=evidence, next=next, code=Exit.UNREACHABLE, kind=kind)


class OutcomeUnknown(GpuopsError):
    """The link was lost while something was going on (exit code 12)."""

    def __init__(self, what: str, *, evidence: str = "", next: str = "", kind: str = "unknown") -> None:
        super().__init__(what, evidence=evidence, next=next, code=Exit.UNKNOWN, kind=kind)
