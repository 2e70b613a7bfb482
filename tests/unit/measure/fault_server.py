"""A server that streams tokens as SGLang does (native, completions, chat), counts them truly, and fails in the way that it is told.

Real HTTP/1.1 with chunked bodies: a connection that is cut looks different from a body that ends. Faults concern streams; a fault of the model
itself (``garbage``, ``empty``, ``aborted``) concerns every answer.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KINDS = {
    "error_first": "HTTP 200, an error event before the first token, then the end mark",
    "error_midway": "an error event after half of the tokens, then the end mark",
    "cut_first": "the connection is cut before the first token",
    "cut_midway": "the connection is cut after half of the tokens",
    "early_end": "half of the tokens, ended and counted as if that were all",
    "early_end_uncounted": "half of the tokens, and no token count in the stream",
    "overcounted": "half of the tokens, and a count that claims all of them",
    "chunked": "four tokens in a chunk",
    "garbage": "nothing but '!'",
    "empty": "tokens that are no text",
    "http_error": "status 503 for every fourth request",
    "cached": "half of every prompt comes from the prefix cache",
    "restarted": "another server answers from the middle of the run on, with other arguments and counters at zero",
    "aborted": "full length, but the finish reason is that NaN happened",
}

TTFT_S, GAP_S = 0.004, 0.0004
WORDS = (
    *("the", "river", "runs", "past", "an", "old", "mill", "and", "over", "grey"),
    *("stones", "to", "a", "town", "where", "people", "trade", "salt", "for", "iron"),
)
NAN = {"type": "abort", "message": "NaN happened", "err_type": None}


class FaultServer:
    """Serves until :meth:`close`. ``kind`` is one of :data:`KINDS` or "clean"; it may be changed between runs."""

    def __init__(self, kind: str = "clean", port: int = 0, gap_s: float = GAP_S) -> None:
        self.kind, self.gap_s = kind, gap_s
        self.lock = threading.Lock()
        self.streams = 0
        self.running = 0
        self.counted = {"generation": 8.0, "prompt": 5.0, "cached": 0.0, "aborted": 0.0}
        self.arguments: dict[str, Any] = {"model_path": "fake", "stream_interval": 1, "tp_size": 1}
        self._http = _Http(("127.0.0.1", port), _handler(self))
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def begin(self, prompt: int, stream: bool) -> int:
        """A request begins; returns its number among the streams."""
        with self.lock:
            self.streams += stream
            self.running += 1
            self.counted["prompt"] += prompt
            if self.kind == "cached" and stream:
                self.counted["cached"] += prompt // 2
            if self.kind == "restarted" and stream and self.streams % 8 == 4:
                self.arguments = {**self.arguments, "tp_size": self.arguments["tp_size"] + 1}
                self.counted = dict.fromkeys(self.counted, 0.0)
            return self.streams

    def end(self, tokens: int) -> None:
        with self.lock:
            self.running -= 1
            self.counted["generation"] += tokens
            if self.kind == "aborted":
                self.counted["aborted"] += 1

    def word(self, request: int, at: int) -> str:
        if self.kind == "garbage":
            return "!"
        return "" if self.kind == "empty" else f" {WORDS[(request * 7 + at * 3 + at // 5) % len(WORDS)]}"

    def metrics(self) -> str:
        labels = '{engine_type="unified",is_streaming="true",model_name="fake"}'
        gauge = '{model_name="fake",tp_rank="0"}'
        counted = self.counted
        return "".join(
            [
                f"sglang:num_running_reqs{gauge} {float(self.running)}\nsglang:num_queue_reqs{gauge} 0.0\n",
                f"sglang:prompt_tokens_total{labels} {counted['prompt']}\n",
                f"sglang:generation_tokens_total{labels} {counted['generation']}\n",
                f"sglang:cached_tokens_total{labels} {counted['cached']}\n",
                f"sglang:num_aborted_requests_total{labels} {counted['aborted']}\n",
            ]
        )


class _Http(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are what these tests are about."""


@contextmanager
def serving(kind: str = "clean") -> Iterator[FaultServer]:
    server = FaultServer(kind)
    try:
        yield server
    finally:
        server.close()


def _handler(server: FaultServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.body(200, server.metrics().encode(), "text/plain")
            elif self.path == "/server_info":
                self.json(
                    200, {**server.arguments, "version": "0.5.23", "internal_states": [{"last_gen_throughput": time.time()}]}
                )
            elif self.path == "/v1/models":
                self.json(200, {"object": "list", "data": [{"id": "fake", "object": "model", "root": "fake"}]})
            else:
                self.json(200, {"model_path": "fake"})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/generate":
                self.answer(asked, asked["sampling_params"]["max_new_tokens"], _size(asked.get("input_ids", asked.get("text"))))
            elif self.path in ("/v1/completions", "/v1/chat/completions"):
                tokens = asked.get("max_tokens") or asked.get("max_completion_tokens")
                self.answer(asked, tokens, _size(asked.get("prompt", asked.get("messages"))))
            else:
                self.json(200, {})

        def answer(self, asked: dict[str, Any], tokens: int, prompt: int) -> None:
            stream = bool(asked.get("stream"))
            number = server.begin(prompt, stream)
            made = [0]
            try:
                if not stream:
                    made[0] = tokens
                    text = "".join(server.word(number, at) for at in range(tokens))
                    self.json(200, {"text": text, "output_ids": [1] * tokens, "meta_info": _meta(server, tokens, tokens)})
                elif server.kind == "http_error" and number % 4 == 0:
                    self.json(503, {"error": "overloaded"})
                else:
                    self.stream(asked, tokens, number, made)
            finally:
                server.end(made[0])

        def stream(self, asked: dict[str, Any], tokens: int, number: int, made: list[int]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            kind, half = server.kind, tokens // 2
            time.sleep(TTFT_S)
            if kind == "cut_first":
                return self.cut()
            if kind == "error_first":
                return self.fail()
            last = half if kind in ("early_end", "early_end_uncounted", "overcounted") else tokens
            step = 4 if kind == "chunked" else 1
            text = ""
            while made[0] < last:
                fresh = min(step, last - made[0])
                time.sleep(server.gap_s * fresh)
                piece = "".join(server.word(number, made[0] + at) for at in range(fresh))
                text += piece
                made[0] += fresh
                self.event(self.token(asked, text, piece, made[0], last, tokens))
                if kind == "error_midway" and made[0] >= half:
                    return self.fail()
                if kind == "cut_midway" and made[0] >= half:
                    return self.cut()
            if self.path != "/generate":
                self.summary(asked, last, tokens)
            return self.end()

        def token(self, asked: dict[str, Any], text: str, piece: str, made: int, last: int, tokens: int) -> dict[str, Any]:
            if self.path == "/generate":
                return {"text": text, "output_ids": [], "meta_info": _meta(server, made, last, tokens)}
            choice = {"index": 0, "finish_reason": None}
            chat = self.path.startswith("/v1/chat")
            said = {"delta": {"role": "assistant", "content": piece}} if chat else {"text": piece}
            return {"id": "x", "model": "fake", "choices": [{**choice, **said}]}

        def summary(self, asked: dict[str, Any], last: int, tokens: int) -> None:
            chat = self.path.startswith("/v1/chat")
            ended: Any = "length" if last == tokens else "stop"
            ended = "abort" if server.kind == "aborted" else ended
            said: dict[str, Any] = {"delta": {"content": ""}} if chat else {"text": ""}
            self.event({"id": "x", "model": "fake", "choices": [{"index": 0, "finish_reason": ended, **said}]})
            if (asked.get("stream_options") or {}).get("include_usage") and server.kind != "early_end_uncounted":
                claimed = tokens if server.kind == "overcounted" else last
                self.event(
                    {"id": "x", "model": "fake", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": claimed}}
                )

        def fail(self) -> None:
            self.event({"error": {"message": "CUDA error: an illegal memory access was encountered", "code": 500}})
            self.end()

        def event(self, value: dict[str, Any]) -> None:
            self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

        def end(self) -> None:
            self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def cut(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def json(self, status: int, value: Any) -> None:
            self.body(status, json.dumps(value).encode(), "application/json")

        def body(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            pass

    return Handler


def _meta(server: FaultServer, made: int, last: int, tokens: int | None = None) -> dict[str, Any]:
    """``meta_info`` of the native route; a stream that ends before all tokens says that it stopped."""
    whole = last if tokens is None else tokens
    reason: Any = None
    if made >= last:
        reason = {"type": "length", "length": last} if last == whole else {"type": "stop", "matched": 2}
        reason = NAN if server.kind == "aborted" else reason
    meta = {"id": "x", "prompt_tokens": 1, "completion_tokens": made, "cached_tokens": 0, "finish_reason": reason}
    if server.kind == "overcounted" and tokens is not None:
        meta["completion_tokens"] = 2 * made
    if server.kind == "early_end_uncounted" and tokens is not None:
        del meta["completion_tokens"]
    return meta


def _size(prompt: Any) -> int:
    ids = isinstance(prompt, list) and all(isinstance(each, int) for each in prompt)
    return len(prompt) if ids else len(json.dumps(prompt).split())


if __name__ == "__main__":
    running = FaultServer(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else GAP_S)
    print(running.port, flush=True)
    threading.Event().wait()
