"""What stands in for an engine: deterministic answers, greedy and streamed, and a trace; dies when it is told to."""

import gzip
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def answer(prompt, tokens):
    # LAB_PLANT moves the logprobs, and the third token and those after it.
    shift = 0.5 if os.environ.get("LAB_PLANT") else 0.0
    chosen = [sum(prompt) % 100 + (n + 1 if shift and n > 1 else n) for n in range(tokens)]
    return {
        "meta_info": {
            "completion_tokens": tokens,
            "output_token_logprobs": [[-1.0 - shift, token, None] for token in chosen],
            "output_top_logprobs": [[[-1.0 - shift, token, None], [-2.0, 7777, None]] for token in chosen],
        }
    }


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply(b"")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/start_profile":
            events = [{"ph": "X", "cat": "kernel", "name": f"split({n})", "dur": 2.0} for n in range(body["num_steps"] * 3)]
            path = Path(body["output_dir"]) / "1-TP-0.trace.json.gz"
            path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
            return self.reply(b"Start profiling.\n")
        prompts, tokens = body["input_ids"], body["sampling_params"]["max_new_tokens"]
        many = isinstance(prompts[0], list)
        if body.get("stream"):
            return self.reply(b"".join(self.events(prompts, tokens)))
        found = [answer(each, tokens) for each in (prompts if many else [prompts])]
        return self.reply(json.dumps(found if many else found[0]).encode())

    def events(self, prompts, tokens):
        for count in (1, tokens):
            for index in range(len(prompts)):
                yield f"data: {json.dumps({'index': index, 'meta_info': {'completion_tokens': count}})}\n\n".encode()
        yield b"data: [DONE]\n\n"

    def reply(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if os.environ.get("LAB_SHADOW") == "1":
    right = {"worst": 1e-9, "median": 1e-10, "largest": 1e-4, "calls": 3}
    wrong = {**right, "median": 0.1}
    keys = ("mla_decode.out", "indexer.logits", "mhc.input", "mhc.post", "mhc.comb")
    (Path(os.environ["LAB_FOLDER"]) / "shadow.json").write_text(
        json.dumps({key: {"right": right, "scale": wrong} for key in keys})
    )
if "--enable-torch-compile" in sys.argv or os.environ.get("FAKE_DIES"):
    sys.exit("Exception: Capture cuda graph failed: SubprocException")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
