"""What every rung of the ladder has at hand: the server, its words, and its verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping

from . import http
from .paths import Service
from .records import ServerRecord
from .releases import Release
from .server import Server, at, filled

RIGHT, WRONG, DOWN, SKIPPED = "right", "wrong", "down", "skipped"


@dataclass(frozen=True)
class Asked:
    """Who is asked: ``words`` is ``load`` of the engine's facts, ``timeout`` the seconds that one answer may take."""

    service: Service
    server: Server
    record: ServerRecord
    release: Release
    words: Mapping[str, Any]
    probes: List[Dict[str, Any]]
    timeout: float

    def native(self, body: Dict[str, Any]) -> http.Answer:
        """A request to the engine's own route."""
        server = self.server
        return http.post(server.host, server.port, server.engine["endpoints"]["generate"][0], body, self.timeout, server.headers)

    def chat(self, body: Dict[str, Any]) -> http.Answer:
        server = self.server
        asked = filled(body, {"@{model}": server.served_name})
        return http.post(server.host, server.port, server.engine["endpoints"]["chat"][0], asked, self.timeout, server.headers)

    def refused(self, answer: http.Answer) -> str:
        """Why an answer is none; empty when it is one."""
        if answer.status == 200:
            return ""
        return answer.error or f"HTTP {answer.status}: {self.server.redact(answer.body.decode('utf-8', 'replace'))[:300]}"

    def prompt_tokens(self, text: str) -> int:
        """How many tokens a text is to this server; 0 when it does not say."""
        answer = self.native({"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 1}})
        told = at(answer.json(), self.words["prompt_tokens"]) if answer.status == 200 else None
        return told if isinstance(told, int) else 0


@dataclass(frozen=True)
class Finding:
    """What a rung found, as it is shown: what was asked, what came, what had to come. ``detail`` is one line beside them."""

    verdict: str
    question: str
    answer: str
    expectation: str
    detail: str = ""


def skipped(why: str) -> Finding:
    return Finding(SKIPPED, "", "", "", why)
