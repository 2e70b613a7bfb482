"""A session whose agent answers from a table, and what a verb printed and returned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.playbook.targets import Target
from gpuops.rollout.session import Session
from gpuops.transport.base import Address

RECORDED = Path(__file__).parent / "recorded"


@dataclass(frozen=True)
class Said:
    """What a verb left behind."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class FakeTransport:
    port: int = 0
    closed: int = 0

    @contextmanager
    def forward(self, port: int, *, host: str = "127.0.0.1") -> Iterator[int]:
        yield self.port

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeAgent:
    """Answers verbs. An answer is a result, an error to raise, or a function of (arguments, on_event)."""

    answers: dict[str, Any]
    transport: FakeTransport = field(default_factory=FakeTransport)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def call(self, verb: str, *, on_event: Any = None, payload: bytes = b"", silence_s: float = 30.0, **args: Any) -> Any:
        self.calls.append((verb, args))
        answer = self.answers[verb]
        if isinstance(answer, BaseException):
            raise answer
        return answer(args, on_event) if callable(answer) else answer


def session(answers: dict[str, Any], service: str = "svc", port: int = 0) -> Session:
    target = Target(service, Address("gpu-box"), "~/.gpuops", "python3", "auto")
    return Session(target, FakeAgent(answers, FakeTransport(port)))  # type: ignore[arg-type]


def recorded(name: str) -> list[dict[str, Any]]:
    """The events of a real rollout, the outcome last."""
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def replay(name: str) -> Callable[[Any, Any], dict[str, Any]]:
    """An answer to `run` or `follow`: a recorded operation."""

    def answer(args: dict[str, Any], on_event: Callable[[Any], None]) -> dict[str, Any]:
        events = recorded(name)
        for event in events:
            on_event({**event, "op": events[0]["op"]})
        return {key: value for key, value in events[-1].items() if key not in ("event", "t")}

    return answer


def service_status(**changes: Any) -> dict[str, Any]:
    """The agent's status of one running service."""
    entry: dict[str, Any] = {
        "service": "svc",
        "state": "running",
        "release": 3,
        "release_state": {"state": "good", "reason": "", "at": 1000.0},
        "known_good": 3,
        "summary": {"engine": "sglang 0.5.23", "model": "llm", "build": None, "flags": {}},
        "server": {
            "pid": 77,
            "release": 3,
            "port": 30000,
            "listening": True,
            "supervised": True,
            "uptime_s": 7380.0,
            "processes": [{"pid": 78, "title": "sglang::scheduler"}],
            "lost": [],
        },
        "exit": None,
        "operation": None,
        "last_operation": None,
        "port": 30000,
        "foreign": None,
    }
    return {"host": {"disk_free": 5_000_000_000, "root": "/root/.gpuops"}, "services": [{**entry, **changes}]}
