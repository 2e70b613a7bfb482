"""Load by AIPerf (NVIDIA's ``aiperf``), in the server's runtime, for an open loop that asks for it: it alone tells when each request was sent.

It sends bodies of our own making, verbatim, to the engine's native route, so that lengths are exact and it is the server that counts tokens; and it
keeps every event of every stream with its time. Those are judged here as our own client judges them: AIPerf's own figures count tokens by a
tokenizer, and the native route repeats the whole text in every event.

Sources, of aiperf 0.13.0: ``dataset/loader/inputs_json.py`` (bodies), ``endpoints/raw_endpoint.py`` (adds neither path nor format),
``post_processors/raw_record_writer_processor.py`` (records), ``common/tokenizer.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional

from . import load_client, own_client
from .load_run import NATIVE, Cell, Request, Run
from .releases import Release
from .server import Server

NAME = "aiperf"

# A file by which a runtime that has it is known, in its packages.
_FILE = "aiperf/cli.py"

MISSING = (
    "AIPerf is not in the server's runtime: `pip install aiperf`, that is, add it to the lock of the playbook's runtime; "
    "without `client` in the cell the engine's own client sends at the rate"
)

_KEY = "OPENAI_API_KEY"
# AIPerf takes a key as an argument alone, and every user of the host can read those of a process.
_START = (
    f"import os, sys; from aiperf.cli import app; key = os.environ.get('{_KEY}'); "
    "sys.exit(app([*sys.argv[1:], *(['--api-key', key] if key else [])]))"
)
# Set, it looks for the model's folder in the cache of downloads, and does not find it there.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def installed(release: Release) -> bool:
    """Whether the release's packages hold it. Raises AgentError when its Python cannot be run."""
    return any((folder / _FILE).is_file() for folder in load_client.packages(release))


class Started(load_client.Process):
    """AIPerf as it runs; the interface is that of ``load_client.Started``."""

    def __init__(
        self, release: Release, server: Server, words: Mapping[str, Any], cell: Cell, seed: int, vocabulary: int, folder: Path
    ) -> None:
        self._redact = server.redact
        self._records = folder / "out" / "profile_export_raw.jsonl"
        bodies = folder / "inputs.json"
        prompts = own_client.prompts(cell, seed, vocabulary)
        asked = [own_client.question(server, words, prompt, cell.output_tokens, NATIVE) for prompt in prompts]
        sessions = [{"session_id": str(at), "payloads": [body]} for at, (_, body) in enumerate(asked)]
        bodies.write_text(json.dumps({"data": sessions}), encoding="utf-8")
        env = {name: value for name, value in load_client.environment(release).items() if name not in _OFFLINE}
        env[_KEY] = server.headers.get("Authorization", "").partition(" ")[2]
        options = _options(server, cell, seed, asked[0][0], bodies, self._records.parent)
        super().__init__([release.document["argv"][0], "-c", _START, *options], env, folder)

    def poll(self) -> Optional[Run]:
        """The run once AIPerf has ended, else None."""
        if not self.ended():
            return None
        try:
            with self._records.open(encoding="utf-8") as lines:
                return parse(map(json.loads, lines), self._redact, self.cpu_s)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return Run(NAME, NATIVE, 0, 0.0, [], cpu_s=self.cpu_s, failure=self._redact(self.failure(error)))


def parse(records: Iterable[Mapping[str, Any]], redact: Callable[[str], str], cpu_s: float = 0.0) -> Run:
    """The run of AIPerf's raw records, its requests in the order of sending. Raises KeyError, TypeError, ValueError for what are none."""
    told = sorted(((record["start_perf_ns"] / 1e9, _request(record, redact)) for record in records), key=lambda pair: pair[0])
    if not told:
        raise ValueError("no records")
    sent, requests = [at for at, _ in told], [request for _, request in told]
    ended = max(at + request.e2e for at, request in told)
    good = sum(not request.error for request in requests)
    return Run(NAME, NATIVE, good, ended - sent[0], requests, cpu_s=cpu_s, sent=sent)


def _request(record: Mapping[str, Any], redact: Callable[[str], str]) -> Request:
    if record.get("error"):
        error = record["error"]
        return Request(0, 0.0, error=redact(f"HTTP {error.get('code')}: {error.get('message')}")[:300])
    stream = own_client.Stream(NATIVE)
    for response in record["responses"]:
        for packet in response["packets"]:
            if packet["name"] == "data":
                stream.take(packet["value"].encode("utf-8"), (response["perf_ns"] - record["start_perf_ns"]) / 1e9)
    return stream.request()


def _options(server: Server, cell: Cell, seed: int, route: str, bodies: Path, out: Path) -> List[str]:
    host = f"[{server.host}]" if ":" in server.host else server.host
    values: Dict[str, Any] = {
        "model": server.served_name,
        "tokenizer": server.model,
        "url": f"http://{host}:{server.port}{route}",
        "endpoint-type": "raw",
        "custom-dataset-type": "inputs-json",
        "input-file": bodies,
        "dataset-sampling-strategy": "sequential",
        "request-count": cell.requests,
        "request-rate": cell.rate,
        "arrival-pattern": "poisson",
        "random-seed": seed,
        "export-level": "raw",
        "output-artifact-dir": out,
        "ui": "none",
    }
    options = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return ["profile", "--streaming", "--no-gpu-telemetry", "--no-server-metrics", *options]
