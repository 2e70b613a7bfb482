"""chat against a real HTTP server that speaks the protocol, well and badly."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cli_fakes import service_status

HOST = ("--host", "gpu-box")


class Server(ThreadingHTTPServer):
    """Answers with what ``stream`` or ``whole`` hold; asks for ``key`` when there is one."""

    key: str | None = None
    done = True
    odd: Any = None
    models: Any = {"data": [{"id": "llm"}]}
    pieces = ("The capital ", "is Paris.")
    requests: list[dict[str, Any]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._allowed():
            self._send(self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        if not self._allowed():
            return
        if self.server.odd is not None:
            self._send(self.server.odd)
            return
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        if not body["stream"]:
            message = {"content": "".join(self.server.pieces)}
            self._send({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in self.server.pieces:
            self._event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": usage})
        if self.server.done:
            self.wfile.write(b"data: [DONE]\n\n")

    def _allowed(self) -> bool:
        if self.server.key is None or self.headers["Authorization"] == f"Bearer {self.server.key}":
            return True
        self.send_error(401)
        return False

    def _send(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _event(self, value: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")


@pytest.fixture
def server(agent: Any) -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.requests = []
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    agent(port=made.server_port, status=service_status())
    yield made
    made.shutdown()
    made.server_close()


def test_the_answer_is_printed_and_the_counts_go_to_standard_error(server, gpuops):
    said = gpuops("chat", "capital?", *HOST)
    assert (said.code, said.out) == (0, "The capital is Paris.\n")
    assert "3 + 2 tokens, finished by stop" in said.err


def test_json_gives_answer_usage_and_seconds(server, gpuops):
    [told] = gpuops("chat", "capital?", "--json", *HOST).objects
    assert told["answer"] == "The capital is Paris."
    assert told["usage"] == {"prompt_tokens": 3, "completion_tokens": 2}
    assert told["seconds"] >= 0


def test_without_streaming_the_answer_comes_in_one_piece(server, gpuops):
    assert gpuops("chat", "capital?", "--no-stream", *HOST).out == "The capital is Paris.\n"
    assert server.requests[0]["stream"] is False


def test_the_request_carries_model_system_message_and_options(server, gpuops):
    gpuops("chat", "capital?", "--system", "be short", "--max-tokens", "9", "--temperature", "0.5", *HOST)
    body = server.requests[0]
    assert body["messages"] == [{"role": "system", "content": "be short"}, {"role": "user", "content": "capital?"}]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("llm", 9, 0.5)


@pytest.mark.parametrize("models", [{}, {"data": []}, {"data": None}, [], "words"])
def test_a_server_that_names_no_model_is_said_with_its_words(server, gpuops, models):
    server.models = models
    said = gpuops("chat", "capital?", *HOST)
    assert said.code == 1
    assert said.err.splitlines()[:2] == ["error: the server names no model", f"  because: /v1/models: 200 {json.dumps(models)}"]


@pytest.mark.parametrize("odd", [{}, {"choices": []}, {"choices": [{"message": None}]}, []])
def test_an_answer_of_another_form_is_said(server, gpuops, odd):
    server.odd = odd
    said = gpuops("chat", "capital?", "--no-stream", *HOST)
    assert (said.code, said.err.splitlines()[0]) == (1, "error: the server's answer is not of the form of the OpenAI API")


def test_a_missing_key_is_an_error_that_names_the_option(server, gpuops):
    server.key = "k"
    said = gpuops("chat", "capital?", *HOST)
    assert said.code == 1
    assert "asks for an API key" in said.err and "--api-key-env" in said.err


def test_the_key_comes_from_the_named_variable(server, gpuops, monkeypatch):
    server.key = "k"
    monkeypatch.setenv("MY_KEY", "k")
    assert gpuops("chat", "capital?", "--api-key-env", "MY_KEY", *HOST).out == "The capital is Paris.\n"


def test_a_named_variable_that_is_not_set_is_a_usage_error(server, gpuops, monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    said = gpuops("chat", "capital?", "--api-key-env", "MY_KEY", *HOST)
    assert (said.code, server.requests) == (2, [])


def test_an_answer_that_is_cut_is_no_answer(server, gpuops):
    server.done = False
    said = gpuops("chat", "capital?", *HOST)
    assert said.code == 12
    assert "the answer was cut" in said.err


def test_a_server_that_is_down_is_said_so_before_it_is_asked(agent, gpuops):
    agent(status=service_status(state="stopped", server=None))
    said = gpuops("chat", "capital?", *HOST)
    assert said.code == 1
    assert said.err.splitlines()[:2] == ["error: svc runs no server", "  because: its state is stopped"]


def test_a_server_that_does_not_listen_is_an_error_with_the_next_command(server, gpuops):
    server.shutdown()
    server.server_close()
    said = gpuops("chat", "capital?", *HOST)
    assert said.code == 1
    assert "gpuops status --check" in said.err
