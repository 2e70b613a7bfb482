"""The running server as its clients on the host see it: identity, one generation, chat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from . import http
from .paths import Service
from .releases import Release
from .vault import Redactor, resolve

# Seconds for answers that need no GPU work. Health probes of SGLang itself take 1 s each; server_info crosses to the scheduler and back.
INFO_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Generation:
    """A greedy completion, or why there was none."""

    text: str = ""
    output_ids: List[int] = field(default_factory=list)
    error: str = ""
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return not self.error


@dataclass(frozen=True)
class Info:
    """What a server says of itself; None when it does not answer, or not in these words."""

    value: Optional[Dict[str, Any]] = None
    timed_out: bool = False


@dataclass(frozen=True)
class Server:
    """Where a release answers, and in which words (``engine`` of the release)."""

    host: str
    port: int
    model: str
    served_name: str
    engine: Dict[str, Any]
    headers: Dict[str, str]
    redact: Redactor  # what the server says may hold a secret that it was given

    def info(self, timeout: float = INFO_TIMEOUT_S) -> Info:
        """What the server says of itself (``/server_info``), by the first path that this version answers. ``timeout`` in seconds."""
        for path in self.engine["endpoints"]["info"]:
            answer = http.get(self.host, self.port, path, timeout, self.headers)
            if answer.timed_out:
                return Info(timed_out=True)
            value = answer.json() if answer.status == 200 else None
            if isinstance(value, dict):
                return Info(value)
        return Info()

    def generate(self, prompt: str, max_tokens: int, timeout: float) -> Generation:
        """One greedy completion through the engine's native endpoint. ``timeout`` in seconds."""
        return self._ask("generate", prompt, max_tokens, timeout)

    def chat(self, question: str, max_tokens: int, timeout: float) -> Generation:
        """One greedy answer through the chat endpoint. ``timeout`` in seconds."""
        return self._ask("chat", question, max_tokens, timeout)

    def _ask(self, use: str, prompt: str, max_tokens: int, timeout: float) -> Generation:
        sampling = self.engine["sampling"][use]
        body = filled(sampling["body"], {"@{prompt}": prompt, "@{max_tokens}": max_tokens, "@{model}": self.served_name})
        answer = http.post(self.host, self.port, self.engine["endpoints"][use][0], body, timeout, self.headers)
        if answer.status == 0:
            return Generation(error=answer.error, timed_out=answer.timed_out)
        if answer.status != 200:
            return Generation(error=f"HTTP {answer.status}: {self.redact(answer.body.decode('utf-8', 'replace'))[:300]}")
        text = at(answer.json(), sampling["text"])
        if not isinstance(text, str):
            return Generation(error=f"an answer without text: {self.redact(answer.body.decode('utf-8', 'replace'))[:200]!r}")
        ids = at(answer.json(), sampling.get("output_ids", [None]))
        return Generation(text=self.redact(text), output_ids=ids if isinstance(ids, list) else [])

    def mismatch(self, info: Dict[str, Any]) -> str:
        """Why ``info`` does not describe this release's server; empty when it does."""
        keys = self.engine["identity"]
        wanted = {
            "model_path": self.model,
            "served_model_name": self.served_name,
            "port": self.port,
            "version": self.engine["version"],
        }
        for name, value in wanted.items():
            key = keys.get(name)
            if key and key in info and str(info[key]) != str(value):
                return self.redact(f"{key} is {info[key]!r}, expected {value!r}")
        if keys["model_path"] not in info:
            return f"the answer has no {keys['model_path']}"
        return ""


def of_release(service: Service, release: Release) -> Server:
    """The server that this release describes, with its credentials."""
    document = release.document
    auth = document.get("auth")
    return Server(
        host=reachable(document["bind"]),
        port=document["port"],
        model=document["model"]["path"],
        served_name=document.get("served_model_name") or document["model"]["path"],
        engine=document["engine"],
        headers={"Authorization": resolve(service.root.secrets, auth)} if auth else {},
        redact=Redactor(service.root),
    )


def reachable(bind: str) -> str:
    """The address under which a server bound to ``bind`` is reached from its own host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)


def filled(template: Any, values: Dict[str, Any]) -> Any:
    """The request's body: every string that is exactly a placeholder becomes its value."""
    if isinstance(template, dict):
        return {key: filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    return values.get(template, template) if isinstance(template, str) else template


def at(value: Any, path: List[Any]) -> Any:
    """The value under a path of keys and indices; None when it is not there."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value
