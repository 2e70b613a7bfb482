"""One question to an OpenAI-compatible server: `POST /v1/chat/completions`, streamed as server-sent events.

The protocol is that of the OpenAI API reference, "Chat completions", which SGLang follows; the model is the first one that `/v1/models` lists.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from gpuops.errors import GpuopsError, OutcomeUnknown

_CONNECT_S = 10.0


@dataclass(frozen=True)
class Question:
    """What to ask, and how. ``timeout`` is the longest silence of the server, in seconds."""

    text: str
    system: str | None
    max_tokens: int
    temperature: float
    stream: bool
    api_key: str | None
    timeout: float


@dataclass(frozen=True)
class Answer:
    """The whole answer; ``seconds`` from the request to its end. ``usage`` counts tokens, where the server says so."""

    answer: str
    finish_reason: str | None
    usage: dict[str, Any] | None
    seconds: float


def ask(port: int, question: Question, on_text: Callable[[str], None]) -> Answer:
    """Ask the server behind a local port; ``on_text`` gets the pieces of a streamed answer.

    Raises:
        GpuopsError: the server does not answer, asks for a key, or refuses.
    """
    headers = {"Authorization": f"Bearer {question.api_key}"} if question.api_key else {}
    timeout = httpx.Timeout(question.timeout, connect=_CONNECT_S)
    # trust_env off: a proxy of this machine leads anywhere but to the host's loopback.
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=timeout, trust_env=False) as client:
        try:
            return _ask(client, question, on_text)
        except httpx.HTTPStatusError as error:
            raise _refused(error.response, question) from error
        except (httpx.HTTPError, ValueError) as error:
            raise GpuopsError(
                "the server does not answer",
                evidence=f"{type(error).__name__}: {error}".rstrip(": "),
                next="gpuops status --check",
                kind="no_answer",
            ) from error
        except (LookupError, TypeError, AttributeError) as error:
            raise GpuopsError(
                "the server's answer is not of the form of the OpenAI API",
                evidence=repr(error),
                next="gpuops logs",
                kind="refused",
            ) from error


def _ask(client: httpx.Client, question: Question, on_text: Callable[[str], None]) -> Answer:
    began = time.monotonic()
    body = _body(_model(client), question)
    if not question.stream:
        response = client.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        told = response.json()
        choice = told["choices"][0]
        return Answer(choice["message"]["content"] or "", choice.get("finish_reason"), told.get("usage"), _since(began))
    pieces, finish, usage = [], None, None
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            response.read()
        response.raise_for_status()
        for chunk in _chunks(response.iter_lines()):
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                finish = choice.get("finish_reason") or finish
                piece = choice["delta"].get("content")
                if piece:
                    pieces.append(piece)
                    on_text(piece)
    return Answer("".join(pieces), finish, usage, _since(began))


def _model(client: httpx.Client) -> str:
    response = client.get("/v1/models")
    response.raise_for_status()
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise GpuopsError(
            "the server names no model",
            evidence=f"/v1/models: {response.status_code} {response.text.strip()[:500]}",
            next="gpuops status --check",
            kind="refused",
        ) from error


def _body(model: str, question: Question) -> dict[str, Any]:
    system = [{"role": "system", "content": question.system}] if question.system else []
    body = {
        "model": model,
        "messages": [*system, {"role": "user", "content": question.text}],
        "max_tokens": question.max_tokens,
        "temperature": question.temperature,
        "stream": question.stream,
    }
    return {**body, "stream_options": {"include_usage": True}} if question.stream else body


def _chunks(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON of every ``data:`` line. Raises OutcomeUnknown when the stream ends without its ``[DONE]``, and GpuopsError for an error in it."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise GpuopsError("the server failed while it answered", evidence=json.dumps(chunk["error"]), next="gpuops logs")
        yield chunk
    raise OutcomeUnknown("the answer was cut", evidence="the stream ended without [DONE]", next="gpuops status --check")


def _refused(response: httpx.Response, question: Question) -> GpuopsError:
    evidence = f"{response.request.url.path}: {response.status_code} {response.text.strip()[:500]}"
    if response.status_code in (401, 403):
        what = "the server does not accept this API key" if question.api_key else "the server asks for an API key"
        return GpuopsError(what, evidence=evidence, next="gpuops chat --api-key-env NAME", kind="api_key")
    return GpuopsError("the server refused the question", evidence=evidence, next="gpuops logs", kind="refused")


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
