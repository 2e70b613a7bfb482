"""What an operation says while it runs: its event file, the journal, and its outcome."""

from __future__ import annotations

from typing import Any, Dict, Optional

from . import journal
from .files import append_line, read_json, write_json
from .paths import Service
from .proc import boottime
from .wire import AgentError, event, line

# Changes of state go to the journal too (and wait for the disk); progress only to the operation's own file.
DURABLE = frozenset(
    {
        "op",
        "awaiting",
        "staged",
        "checked",
        "seeded",
        "imported",
        "compiled",
        "warmed",
        "stopping",
        "stopped",
        "server",
        "answered",
        "ready",
        "proof",
        "cache",
        "died",
        "diagnosis",
        "step",
        "restoring",
        "outcome",
    }
)


class Recorder:
    """Writes one operation's events. ``recorder(name, **fields)`` is an :data:`wire.Emit`."""

    def __init__(self, service: Service, op: str) -> None:
        self.service = service
        self.op = op
        self.phases: Dict[str, float] = {}
        self.unwritten = 0  # events that the disk did not take
        self._stopping: Optional[float] = None
        self._answered: Optional[float] = None
        self.began = boottime()
        self._phase: Optional[str] = None
        self._phase_began = self.began

    def __call__(self, name: str, /, **fields: Any) -> None:
        if name == "phase":
            self._enter(fields["phase"])
        elif name == "stopping" and self._stopping is None:
            self._stopping = boottime()
        elif name == "answered":
            self._answered = boottime()
        try:
            if name in DURABLE:
                journal.write(self.service, name, **{**fields, "op": self.op})
            append_line(events_file(self.service, self.op), line(event(name, **fields)), durable=False)
        except AgentError:
            # Events are a view. What must be on disk before a rollout goes on (states, links, documents) is written, and checked, elsewhere.
            self.unwritten += 1

    def finish(self, outcome: Dict[str, Any]) -> None:
        """Close the last phase, then store and tell the outcome; from now on the operation is over."""
        self._enter(None)
        whole = {**outcome, "op": self.op, "seconds": round(boottime() - self.began, 3), "phases": self.phases}
        if self._stopping is not None and self._answered is not None:
            # From the first TERM to the last first answer: what the service's users saw of it.
            whole["outage_s"] = round(self._answered - self._stopping, 3)
        if self.unwritten:
            whole["unwritten_events"] = self.unwritten
        self("outcome", **whole)
        write_json(outcome_file(self.service, self.op), whole)

    def _enter(self, phase: Optional[str]) -> None:
        if phase == self._phase:
            return
        now = boottime()
        if self._phase is not None:
            self.phases[self._phase] = round(self.phases.get(self._phase, 0.0) + now - self._phase_began, 3)
        self._phase, self._phase_began = phase, now


def events_file(service: Service, op: str) -> Any:
    return service.operation(op) / "events.jsonl"


def outcome_file(service: Service, op: str) -> Any:
    return service.operation(op) / "outcome.json"


def outcome(service: Service, op: str) -> Optional[Dict[str, Any]]:
    """The stored outcome, or None while the operation runs (or when it was cut)."""
    return read_json(outcome_file(service, op))
