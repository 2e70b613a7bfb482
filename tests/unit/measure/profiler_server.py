"""A server that streams several answers at once, as SGLang does for a request of several prompts, and has a profiler that writes traces."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TRACE = gzip.compress(json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 1.0}]}).encode())


class ProfilerServer:
    """``kind``: clean; ``short``: answers end, and are read, before the profiler ends; ``refuse``: the profiler does not start; ``cut``: a trace that
    is not written to its end."""

    def __init__(self, kind: str = "clean", ranks: int = 1) -> None:
        self.kind, self.ranks = kind, ranks
        self.asked: dict[str, Any] = {}
        self.gone = threading.Event()
        self._read = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/generate":
                    outer.stream(self, body)
                else:
                    outer.profile(self, body)

            def log_message(self, *words: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stream(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.end_headers()
        count = 0
        pause = threading.Event()
        try:
            while self.kind != "short" or count < 2:
                count += 1
                for index in range(len(body["input_ids"])):
                    event = {"index": index, "text": "x", "meta_info": {"completion_tokens": count}}
                    handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                pause.wait(0.01)
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_WR)
            # The reader hangs up when it has seen the end.
            handler.rfile.read()
            self._read.set()
        except OSError:
            self.gone.set()

    def profile(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.asked = body
        status = 400 if self.kind == "refuse" else 200
        handler.send_response(status)
        handler.end_headers()
        handler.wfile.write(b"Profiling is already in progress" if status == 400 else b"Start profiling.")
        if status == 200:
            if self.kind == "short":
                assert self._read.wait(30), "the load is read to its end"
            for rank in range(self.ranks):
                data = TRACE[:-9] if self.kind == "cut" else TRACE
                (Path(body["output_dir"]) / f"gpuops-1.5-TP-{rank}.trace.json.gz").write_bytes(data)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def profiling(kind: str = "clean", ranks: int = 1) -> Iterator[ProfilerServer]:
    server = ProfilerServer(kind, ranks)
    try:
        yield server
    finally:
        server.close()
