"""A server that knows what the ladder asks: capitals, sums, hidden numbers, a tool, the probabilities of texts. Each of these can be broken.

Its chats are whole OpenAI answers, so that evaluation tools can ask it too.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROMPT_LIMIT = 5000


class WiseServer:
    """``broken`` names what it gets wrong: identity, capital, loop, sums, needles, mixed, tools, logprobs, decode, dies (after 50 requests),
    silent (nothing is the answer to every third chat)."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.shift = self.drift = self.batch_noise = 0.0
        self.continued: Counter[str] = Counter()
        self.speculates = False
        self.accept_length: float | None = 2.5
        self.asked = 0
        self.running = 0
        self.lock = threading.Lock()
        self.model = ""
        self.short_came = threading.Event()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self.port: int = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def complete(self, prompt: str) -> str:
        needle = re.search(r"The secret number is (\d{5})\.", prompt)
        if needle:
            return self._needle(prompt, needle.group(1))
        added = re.findall(r"(\d+) \+ (\d+)", prompt)
        if added:
            total = 7 if "sums" in self.broken else sum(map(int, added[-1]))
            return f"The answer is \\boxed{{{total}}}." if "boxed" in prompt else f"The answer is {total}."
        self.short_came.set()
        if "loop" in self.broken:
            return "Paris " + "logupload" * 40
        return "I do not know." if "capital" in self.broken else "Paris"

    def _needle(self, prompt: str, key: str) -> str:
        length = self.size(prompt)
        if length > 3500:
            # The long prompt of the mixed rung: it is read until the short question is there.
            self.short_came.clear()
            self.short_came.wait(5)
        return "12345" if "needles" in self.broken and length > 1500 else key

    def size(self, prompt: str) -> int:
        return len(prompt.split())

    def continuation(self, text: str, tokens: int) -> dict[str, Any]:
        """Likely tokens that depend on the text, and from the second on on ``drift``; and, every other time that a text is put (together with others,
        after it was put alone), on ``batch_noise``."""
        with self.lock:
            self.continued[text] += 1
            together = self.continued[text] % 2 == 0
        start = len(text) % 50
        drift = self.drift + (self.batch_noise if together else 0.0)
        ids = [start + at + (100 if "decode" in self.broken and at else 0) for at in range(tokens)]
        top = [[[-0.1 - (drift if at else 0.0), token, None], [-3.0, token + 1, None]] for at, token in enumerate(ids)]
        return {"output_token_logprobs": [place[0] for place in top], "output_top_logprobs": top}

    def scores(self, text: str) -> dict[str, Any]:
        words = text.split()
        tokens = [[None if at == 0 else -1.5 - self.shift * (at % 3), at, word] for at, word in enumerate(words)]
        best = 2 if "logprobs" in self.broken else 1
        top = [None] + [[[-0.2, at + best, None], [-2.0, 0, None]] for at in range(1, len(words))]
        return {"input_token_logprobs": tokens, "input_top_logprobs": top}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    # A rung asks sixteen at once.
    request_queue_size = 64


@contextmanager
def wise() -> Iterator[WiseServer]:
    server = WiseServer()
    try:
        yield server
    finally:
        server.close()


def _handler(server: WiseServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                gauge = f'sglang:num_running_reqs{{tp_rank="0"}} {float(server.running)}\n'
                return self.send(200, ("sglang:generation_tokens_total 1.0\n" + gauge).encode())
            model = "/another/model" if "identity" in server.broken else server.model
            info: dict[str, Any] = {"model_path": model, "served_model_name": "fake", "version": "0.5.23", "port": server.port}
            info["speculative_algorithm"] = "EAGLE" if server.speculates else None
            return self.send(200, json.dumps({**info, "max_req_input_len": PROMPT_LIMIT}).encode())

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                server.asked += 1
                server.running += 1
            try:
                if "dies" in server.broken and server.asked > 50:
                    return self.send(500, b'{"error": "scheduler is dead"}')
                answer = self.chat(asked) if self.path.startswith("/v1/chat") else self.native(asked)
                return self.send(200, json.dumps(answer).encode())
            finally:
                with server.lock:
                    server.running -= 1

        def chat(self, asked: dict[str, Any]) -> dict[str, Any]:
            if "tools" in asked:
                arguments = "{city: Paris" if "tools" in server.broken else '{"city": "Paris"}'
                call = {"function": {"name": "get_weather", "arguments": arguments}}
                return {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}
            text = server.complete(asked["messages"][-1]["content"])
            if "silent" in server.broken and server.asked % 3 == 0:
                text = ""
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            head = {"id": "1", "object": "chat.completion", "created": 1, "model": asked["model"]}
            return {**head, "choices": [choice], "usage": usage}

        def native(self, asked: dict[str, Any]) -> dict[str, Any]:
            text = asked["text"]
            meta: dict[str, Any] = {"prompt_tokens": server.size(text)}
            if server.speculates and server.accept_length is not None:
                meta["spec_accept_length"] = server.accept_length
            if asked.get("return_logprob"):
                tokens = asked["sampling_params"]["max_new_tokens"]
                meta.update(server.scores(text) if asked["logprob_start_len"] == 0 else server.continuation(text, tokens))
            return {"text": server.complete(text), "output_ids": [1], "meta_info": meta}

        def send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            pass

    return Handler
