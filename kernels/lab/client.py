"""Questions to a running server: greedy answers with logprobs, decode throughput, kernels of a decode step. Token ids only, no tokenizer."""

from __future__ import annotations

import gzip
import json
import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VOCABULARY = (1000, 129_000)
_PATIENCE_S = 400
_TOP = 5
_STREAM_INTERVAL = 16

# 24 prompts that fit into the sliding window and a few compressed pages, and 8 with more than 512 compressed tokens, where the top-k selects; and 32
# more short ones: positions beyond the first difference are lost, so that many prompts with short answers say more than a few with long ones.
LENGTHS = tuple(40 + 29 * n for n in range(24)) + tuple(2100 + 120 * n for n in range(8)) + tuple(55 + 19 * n for n in range(32))
ANSWER = 12
DECODE_PROMPT = 512
DECODE_TOKENS = 128
CONCURRENCIES = (1, 16, 64)


@dataclass(frozen=True)
class Answer:
    """A greedy answer.

    Args:
        tokens: the chosen token ids.
        top: for each position, logprobs by token id of the most likely tokens.
    """

    tokens: tuple[int, ...]
    top: tuple[dict[int, float], ...]


def prompts() -> list[list[int]]:
    """The 64 prompts, the same at every call."""
    return [_tokens(length, seed) for seed, length in enumerate(LENGTHS)]


def ask_one_by_one(url: str, chosen: slice = slice(None)) -> list[Answer]:
    """Each prompt alone: decode under the graph of batch 1."""
    return [_answer(_generate(url, {"input_ids": prompt, **_greedy()})) for prompt in prompts()[chosen]]


def ask_together(url: str, chosen: slice = slice(None)) -> list[Answer]:
    """All prompts in one request: decode in a batch of 64, under the graph of that batch."""
    return [_answer(each) for each in _generate(url, {"input_ids": prompts()[chosen], **_greedy()})]


def decode_rate(url: str, concurrency: int, seed: int) -> float:
    """Decoded tokens a second at a concurrency.

    Counted from the moment when the last request has its first token until the end, so that prefill is left out.
    """
    request = {"input_ids": [_tokens(DECODE_PROMPT, 1000 * seed + n) for n in range(concurrency)], **_forced(DECODE_TOKENS)}
    seen: dict[int, int] = {}
    begin = begin_tokens = None
    end = 0.0
    for event in _stream(url, request):
        seen[event.get("index", 0)] = event["meta_info"]["completion_tokens"]
        end = time.monotonic()
        if begin is None and len(seen) == concurrency:
            begin, begin_tokens = end, sum(seen.values())
    if begin is None or begin_tokens is None or sum(seen.values()) != concurrency * DECODE_TOKENS:
        raise RuntimeError(f"{sum(seen.values())} tokens came of {concurrency * DECODE_TOKENS}")
    return (sum(seen.values()) - begin_tokens) / (end - begin)


def kernels_of_a_step(url: str, concurrency: int, folder: Path, steps: int = 8) -> dict[str, Any]:
    """Kernels, copies and GPU microseconds of one decode step, from a trace of some steps in the middle of a generation."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.trace.json.gz"):
        old.unlink()
    request = {"input_ids": [_tokens(DECODE_PROMPT, seed) for seed in range(concurrency)], **_forced(400)}
    started = threading.Event()

    def generate() -> None:
        # Until every prompt has its first token there are steps that prefill.
        seen = set()
        for event in _stream(url, request):
            seen.add(event.get("index", 0))
            if len(seen) == concurrency:
                started.set()

    generation = threading.Thread(target=generate, daemon=True)
    generation.start()
    if not started.wait(_PATIENCE_S):
        raise TimeoutError("no first token to profile after")
    # Stacks would slow the steps down, and CPU events are not counted.
    _post(
        url + "/start_profile",
        {"output_dir": str(folder), "num_steps": steps, "activities": ["GPU"], "with_stack": False, "record_shapes": False},
    )
    generation.join(_PATIENCE_S)
    return count_kernels(_trace(folder), steps)


def count_kernels(trace: Path, asked: int) -> dict[str, Any]:
    """What a Chrome trace says of one decode step. A profiler asked for N steps may record N - 1 (SGLang 0.5.15 does)."""
    text = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    events = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    copies = [event for event in events if event.get("cat") in ("gpu_memcpy", "gpu_memset")]
    time_us: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in kernels:
        name = event["name"].split("(")[0][:80]
        time_us[name] += event["dur"]
        calls[name] += 1
    # Every layer's kernels run the same number of times in each step.
    steps = max((asked, asked - 1), key=lambda number: sum(count % number == 0 for count in calls.values()))
    busiest = [
        {"kernel": name, "us": round(us / steps, 1), "calls": round(calls[name] / steps, 1)}
        for name, us in time_us.most_common(20)
    ]
    total = sum(event["dur"] for event in kernels)
    return {
        "steps": steps,
        "kernels": len(kernels) / steps,
        "copies": len(copies) / steps,
        "gpu_us": round(total / steps, 1),
        "busiest": busiest,
    }


def _greedy() -> dict[str, Any]:
    return {**_forced(ANSWER, interval=None), "return_logprob": True, "top_logprobs_num": _TOP}


def _forced(tokens: int, interval: int | None = _STREAM_INTERVAL) -> dict[str, Any]:
    parameters: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    if interval is not None:
        parameters["stream_interval"] = interval
    return {"sampling_params": parameters}


def _answer(raw: dict[str, Any]) -> Answer:
    information = raw["meta_info"]
    chosen = tuple(int(token) for _, token, *_ in information["output_token_logprobs"])
    top = tuple(
        {int(token): float(logprob) for logprob, token, *_ in position} for position in information["output_top_logprobs"]
    )
    return Answer(chosen, top)


def _tokens(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(*_VOCABULARY), k=length)


def _generate(url: str, body: dict[str, Any]) -> Any:
    return json.loads(_post(url + "/generate", body))


def _post(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
        content: bytes = answer.read()
    return content


def _stream(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    request = urllib.request.Request(
        url + "/generate", json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
        for line in answer:
            text = line.decode().strip()
            if text.startswith("data:") and text != "data: [DONE]":
                yield json.loads(text[len("data:") :])


def _trace(folder: Path) -> Path:
    begin = time.monotonic()
    while time.monotonic() - begin < _PATIENCE_S:
        found = sorted(folder.glob("*.trace.json.gz"))
        if found and _whole(found[0]):
            return found[0]
        time.sleep(0.5)
    raise TimeoutError(f"no trace in {folder}")


def _whole(path: Path) -> bool:
    try:
        with gzip.open(path, "rb") as file:
            while file.read(1 << 20):
                pass
    except (EOFError, OSError):
        return False
    return True


def as_json(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Answers as plain data."""
    return [
        {"tokens": list(each.tokens), "top": [[[token, logprob] for token, logprob in position.items()] for position in each.top]}
        for each in answers
    ]


def from_json(raw: Sequence[dict[str, Any]]) -> list[Answer]:
    """The inverse of :func:`as_json`."""
    return [Answer(tuple(each["tokens"]), tuple(dict(position) for position in each["top"])) for each in raw]
