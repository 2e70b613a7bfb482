"""A small load generator of our own, for a runtime that has none: one thread a request in flight, streams read as they come.

Loops are closed or open. It counts what the server says and calls a stream good only when it ends as a stream of its kind must: no error in it, a
token count, a finish reason. Threads of one Python process are no match for the engine's own client; at high concurrency it, not the server, is
what is measured.
"""

from __future__ import annotations

import http.client
import json
import queue
import random
import threading
import time
from itertools import accumulate
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from .load_run import CHAT, COMPLETIONS, NATIVE, Cell, Request, Run
from .server import Server, filled

NAME = "gpuops"

# Seconds of silence on a stream.
SILENCE_S = 120.0


class Started:
    """A run that goes on in threads; the interface is that of ``load_client.Started``."""

    def __init__(
        self,
        server: Server,
        words: Mapping[str, Any],
        cell: Cell,
        seed: int,
        vocabulary: int,
        path: str = NATIVE,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._server, self._words, self._cell, self._path, self._silence_s = server, words, cell, path, silence_s
        self._ended: List[Request] = []
        self._sent: List[float] = []
        self._answered: List[float] = []
        self._stopped = threading.Event()
        self._prompts: "queue.SimpleQueue[List[int]]" = queue.SimpleQueue()
        for prompt in prompts(cell, seed, vocabulary):
            self._prompts.put(prompt)
        self._cpu_began = time.process_time()
        self._began = time.monotonic()
        self._threads: List[threading.Thread] = []
        if cell.rate:
            self._begin(self._arrive, arrivals(cell.requests, cell.rate, seed))
        else:
            for _ in range(min(cell.at_most, cell.requests)):
                self._begin(self._work)

    def poll(self) -> Optional[Run]:
        """The run once every request has ended, else None."""
        if any(thread.is_alive() for thread in self._threads):
            return None
        # Until the last answer, and not until somebody asks: who polls looks at counters and cards in between.
        took = max(self._answered, default=self._began) - self._began
        good = sum(not request.error for request in self._ended)
        cpu_s = time.process_time() - self._cpu_began
        return Run(NAME, self._path, good, took, self._ended, self._path == NATIVE, cpu_s, sent=self._sent)

    def stop(self) -> None:
        """Begin no further request. Those in flight end by themselves, or with this process."""
        self._stopped.set()
        while not self._prompts.empty():
            try:
                self._prompts.get_nowait()
            except queue.Empty:
                return

    def _begin(self, work: Callable[..., object], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while self._ask_next():
            pass

    def _arrive(self, times: List[float]) -> None:
        """Send each request at its time, whatever has become of those before it."""
        for at in times:
            if self._stopped.wait(max(0.0, self._began + at - time.monotonic())):
                return
            self._begin(self._ask_next)

    def _ask_next(self) -> bool:
        """Send the next request, and read its answer; False when there is none left."""
        try:
            prompt = self._prompts.get_nowait()
        except queue.Empty:
            return False
        self._sent.append(time.monotonic())
        self._ended.append(ask(self._server, self._words, prompt, self._cell.output_tokens, self._path, self._silence_s))
        self._answered.append(time.monotonic())
        return True


def arrivals(requests: int, rate: float, seed: int) -> List[float]:
    """Seconds after the first request at which each is sent: a Poisson process."""
    draw = random.Random(seed)
    return [0.0, *accumulate(draw.expovariate(rate) for _ in range(requests - 1))]


def prompts(cell: Cell, seed: int, vocabulary: int) -> Iterator[List[int]]:
    """Prompts of token ids, different for every seed, of exactly the cell's length. No two begin alike, as long as the vocabulary lasts: a prefix
    cache has nothing for any of them."""
    draw = random.Random(seed)
    firsts = draw.sample(range(vocabulary), min(cell.requests, vocabulary))
    for number in range(cell.requests):
        yield [firsts[number % len(firsts)], *(draw.randrange(vocabulary) for _ in range(cell.input_tokens - 1))]


def ask(
    server: Server, words: Mapping[str, Any], prompt: List[int], tokens: int, path: str, silence_s: float = SILENCE_S
) -> Request:
    """One streamed request of exactly ``tokens`` tokens."""
    target, body = question(server, words, prompt, tokens, path)
    connection = http.client.HTTPConnection(server.host, server.port, timeout=silence_s)
    stream = Stream(path)
    began = time.monotonic()
    try:
        connection.request("POST", target, json.dumps(body), {"Content-Type": "application/json", **server.headers})
        response = connection.getresponse()
        if response.status != 200:
            said = server.redact(response.read(300).decode("utf-8", "replace"))
            return Request(0, 0.0, error=f"HTTP {response.status}: {said}")
        for line in response:
            if line.startswith(b"data: ") and not stream.take(line[6:].strip(), time.monotonic() - began):
                break
    except (OSError, http.client.HTTPException, ValueError) as error:
        stream.error = stream.error or f"the stream was cut: {error!r}"
    finally:
        connection.close()
    return stream.request()


class Stream:
    """What the events of one stream add up to."""

    def __init__(self, path: str) -> None:
        self.error = ""
        self._path = path
        self._text = ""
        self._tokens: Optional[int] = None
        self._seen = 0
        self._finish: Any = None
        self._ttft = 0.0
        self._last = 0.0
        self._gaps: List[float] = []
        self._done = False

    def take(self, data: bytes, now: float) -> bool:
        """One event; False after the last."""
        if data == b"[DONE]":
            self._done = True
            return False
        event = json.loads(data)
        if "error" in event:
            self.error = f"an error event: {json.dumps(event['error'])[:200]}"
            return True
        text, count, finish = _native(event) if self._path == NATIVE else _openai(event, self._path)
        self._tokens = count if count is not None else self._tokens
        self._finish = finish if finish is not None else self._finish
        if text:
            self._token(text, now)
        return True

    def request(self) -> Request:
        complaint = self.error or self._complaint()
        return Request(self._tokens or 0, self._ttft, self._gaps, self._text, complaint, self._finish)

    def _token(self, text: str, now: float) -> None:
        # The native route repeats the whole text, the others send what is new.
        self._text = text if self._path == NATIVE else self._text + text
        if not self._ttft:
            self._ttft = now
        else:
            new = (self._tokens or 0) - self._seen if self._path == NATIVE else 1
            self._gaps += [(now - self._last) / new] * new if new > 0 else []
        self._last = now
        self._seen = self._tokens or 0

    def _complaint(self) -> str:
        if not self._done:
            return "the stream ended without its end mark"
        if self._tokens is None:
            return "the stream has no token count"
        return "" if self._finish is not None else "the stream has no finish reason"


def question(server: Server, words: Mapping[str, Any], prompt: List[int], tokens: int, path: str) -> Tuple[str, Dict[str, Any]]:
    """The route and the body of a streamed request for exactly ``tokens`` tokens."""
    if path == NATIVE:
        body = filled(words["ids"], {"@{ids}": prompt, "@{max_tokens}": tokens})
        return server.engine["endpoints"]["generate"][0], {**body, "stream": True}
    common = {
        "model": server.served_name,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if path == COMPLETIONS:
        return "/v1/completions", {**common, "prompt": prompt}
    # A chat takes no token ids: numbers are about a token each.
    return "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": " ".join(map(str, prompt))}]}


def _native(event: Mapping[str, Any]) -> Tuple[str, Optional[int], Any]:
    meta = event.get("meta_info") or {}
    reason = meta.get("finish_reason")
    return event.get("text") or "", meta.get("completion_tokens"), reason.get("type") if isinstance(reason, dict) else reason


def _openai(event: Mapping[str, Any], path: str) -> Tuple[str, Optional[int], Any]:
    usage = (event.get("usage") or {}).get("completion_tokens")
    choices = event.get("choices") or []
    if not choices:
        return "", usage, None
    choice = choices[0]
    text = (choice.get("delta") or {}).get("content") if path == CHAT else choice.get("text")
    return text or "", usage, choice.get("finish_reason")
