"""The `profile` verbs: the engine's own profiler, during a steady decode on the running server, and fetching what it wrote.

The load is one streamed request of several prompts, so that all of them decode together in one batch; the profiler begins once each has its first
token. The traces stay beside the release until newer ones replace them.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import re
import secrets
import shutil
import socket
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set

from . import http as ask
from . import load_client, locks, proc
from .beats import alongside
from .bench import running
from .files import disk_error
from .paths import Root, Service
from .server import Server, at, filled, of_release
from .wire import AgentError, emit, send_file

FOLDER = "profiles"

# So many profiles of a release are kept: each may be hundreds of megabytes.
KEPT = 3

# How often traces and the load are looked at, in seconds.
LOOK_S = 0.2

# Ranks write their traces at about the same time: a folder in which nothing new appears for so long is complete, in seconds.
SETTLE_S = 2.0

# Seconds of silence on the load's stream.
SILENCE_S = 300.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z")


@dataclass(frozen=True)
class Load:
    """A decode at a concurrency: so many prompts of so many tokens at once, each answered by so many tokens."""

    concurrency: int
    input_tokens: int
    output_tokens: int


def profile(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Profile ``steps`` decode steps at a concurrency, holding the service's lock: nothing may change the server meanwhile.

    Args (of the request): ``service``, ``by``, ``load`` and ``profiler`` (the engine's words), ``concurrency``, ``input``, ``output``, ``steps``,
        ``activities``, ``deadline_s``.
    Returns:
        ``{release, profile, steps, concurrency, folder, files: [{name, rank, bytes, sha256}]}``
    Raises:
        AgentError: there is no server; the service is busy (13); the load failed, or ended before the profiler; no traces came.
    """
    service = root.service(args["service"])
    record, release = running(service)
    server = of_release(service, release)
    folder = _new_folder(service, release.number)
    load = Load(int(args["concurrency"]), int(args["input"]), int(args["output"]))
    deadline = proc.boottime() + float(args["deadline_s"])
    with _locked(service, args["by"]), alongside():
        emit("phase", phase="load", progress=None, detail=f"{load.concurrency} prompts of {load.input_tokens} tokens")
        stream = _Stream(server, args["load"], args["profiler"], load)
        try:
            _until_steady(stream, load, deadline)
            emit("phase", phase="profile", progress=None, detail=f"{args['steps']} steps")
            _start(server, args, folder, deadline)
            expected = int(release.document["engine"]["ranks"].get("schedulers") or 1)
            traces = _Traces(folder, args["profiler"]["traces"], expected, record.identity).wait(stream, load, deadline)
        finally:
            stream.close()
    files = [_file(path, args["profiler"]["rank"]) for path in traces]
    return {
        "service": service.name,
        "release": release.number,
        "profile": folder.name,
        "folder": str(folder),
        "steps": int(args["steps"]),
        "concurrency": load.concurrency,
        "files": files,
    }


def get(root: Root, args: Dict[str, Any]) -> Dict[str, Any]:
    """Send a trace from ``offset`` on, as ``chunk`` events of base64.

    Returns:
        ``{bytes}``: the file's size.
    Raises:
        AgentError: there is no such file.
    """
    service = root.service(args["service"])
    for word in (args["profile"], args["name"]):
        if not _NAME.match(word):
            raise AgentError(f"{word!r} is no name of a profile's file", code=2, kind="usage")
    path = service.release(int(args["release"])) / FOLDER / args["profile"] / args["name"]
    try:
        return {"bytes": send_file(path, int(args.get("offset") or 0))}
    except OSError as error:
        raise AgentError("the trace cannot be read", evidence=str(error), next="gpuops profile", kind="no_trace") from error


@contextmanager
def _locked(service: Service, by: str) -> Iterator[None]:
    locks.refuse_if_locked(service)
    me = proc.identify(os.getpid())
    assert me is not None, "we live"
    owner = {"op": f"profile-{secrets.token_hex(4)}", "kind": "profile", "by": by, "at": time.time(), "runner": me.to_json()}
    try:
        lock = locks.acquire(service, owner)
    except locks.Held as held:
        raise locks.busy(service, held.owner) from held
    try:
        yield
    finally:
        service.lock_owner.unlink(missing_ok=True)
        os.close(lock)


def _new_folder(service: Service, release: int) -> Path:
    """A folder for the traces; all but the newest others are removed."""
    parent = service.release(release) / FOLDER
    folder = parent / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise disk_error(error, folder) from error
    for old in sorted(parent.iterdir())[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _until_steady(stream: "_Stream", load: Load, deadline: float) -> None:
    """Wait until every prompt has been read and is being answered. Raises AgentError."""
    while len(stream.begun) < load.concurrency:
        if stream.ended:
            raise AgentError("the load failed before its decode was steady", evidence=stream.error or "it ended", kind="load")
        if proc.boottime() > deadline:
            raise AgentError(
                "the decode did not become steady in time",
                evidence=f"{len(stream.begun)} of {load.concurrency} prompts have their first token",
                next="a smaller --concurrency, which the server runs at once; or a longer --deadline",
                kind="load",
            )
        time.sleep(LOOK_S / 4)


def _start(server: Server, args: Dict[str, Any], folder: Path, deadline: float) -> None:
    words = args["profiler"]
    values = {"@{folder}": str(folder), "@{steps}": int(args["steps"]), "@{activities}": list(args["activities"])}
    patience = max(1.0, deadline - proc.boottime())
    # Some versions answer only when the traces are written.
    answer = ask.post(server.host, server.port, words["start"], filled(words["body"], values), patience, server.headers)
    if answer.status != 200:
        said = answer.error or f"HTTP {answer.status}: {server.redact(answer.body.decode('utf-8', 'replace'))[:300]}"
        raise AgentError(
            "the engine's profiler did not start",
            evidence=f"POST {words['start']}: {said}",
            next="gpuops logs -n 50",
            kind="profiler",
        )


class _Traces:
    """The traces that the ranks of a server (``identity``) write into a folder: so many are ``expected``."""

    def __init__(self, folder: Path, pattern: str, expected: int, identity: proc.Identity) -> None:
        self._folder, self._pattern, self._expected, self._identity = folder, pattern, expected, identity
        self._sizes: Dict[Path, int] = {}
        self._whole: Set[Path] = set()
        self._changed = self._began = proc.boottime()

    def wait(self, stream: "_Stream", load: Load, deadline: float) -> List[Path]:
        """All of them, once they are written to their ends. Raises AgentError."""
        steady: Optional[bool] = None
        while not self._complete():
            if self._sizes and steady is None:
                # The engine stops to write: an answer that goes on now went on during every step that was profiled.
                steady = not stream.ended
            if proc.boottime() > deadline or not proc.alive(self._identity):
                raise self._missing()
            time.sleep(LOOK_S)
        if not steady:
            raise AgentError(
                "the load ended before the profiler did: what was profiled is no steady decode",
                evidence=stream.error or f"every answer has its {load.output_tokens} tokens",
                next=f"--output {load.output_tokens * 2}, or fewer --steps",
                kind="load",
            )
        return sorted(self._whole)

    def _complete(self) -> bool:
        found = sorted(self._folder.glob(self._pattern))
        for path in found:
            size = path.stat().st_size
            # Only one that has stopped to grow is worth reading through.
            if path not in self._whole and self._sizes.get(path) == size and _is_whole(path):
                self._whole.add(path)
                self._changed = proc.boottime()
                share = min(1.0, len(self._whole) / self._expected)
                emit("phase", phase="traces", progress=share, detail=f"{len(self._whole)} of {self._expected} ranks")
            self._sizes[path] = size
        settled = proc.boottime() - self._changed > SETTLE_S
        return settled and len(self._whole) >= self._expected and len(self._whole) == len(found)

    def _missing(self) -> AgentError:
        there = ", ".join(sorted(each.name for each in self._folder.iterdir())) or "nothing"
        lives = "" if proc.alive(self._identity) else "; the server has ended"
        return AgentError(
            f"{len(self._whole)} of {self._expected} ranks have written their trace after {proc.boottime() - self._began:.0f} s",
            evidence=f"in {self._folder}: {there}{lives}",
            next="gpuops logs -n 50; a longer --deadline, or fewer --steps",
            kind="no_trace",
        )


def _is_whole(path: Path) -> bool:
    """Whether a gzip file is complete. It is read through, since only its end tells."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        with path.open("rb") as file:
            while not unpack.eof:
                data = file.read(1 << 20)
                if not data:
                    return False
                while data:
                    unpack.decompress(data, 1 << 22)
                    data = unpack.unconsumed_tail
    except (OSError, zlib.error):
        return False
    return True


def _file(path: Path, rank: str) -> Dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for data in iter(lambda: file.read(1 << 20), b""):
            digest.update(data)
    named = re.search(rank, path.name)
    return {
        "name": path.name,
        "rank": named.group(1) if named else path.name,
        "bytes": path.stat().st_size,
        "sha256": digest.hexdigest(),
    }


class _Stream:
    """The load: one request of several prompts, read in a thread."""

    def __init__(self, server: Server, words: Mapping[str, Any], profiler: Mapping[str, Any], load: Load) -> None:
        self.begun: Set[int] = set()
        self.ended = False
        self.error = ""
        self._server = server
        self._profiler = profiler
        draw, vocabulary = random.Random(secrets.randbits(63)), load_client.vocabulary(Path(server.model))
        prompts = [[draw.randrange(vocabulary) for _ in range(load.input_tokens)] for _ in range(load.concurrency)]
        body = filled(words["ids"], {"@{ids}": prompts, "@{max_tokens}": load.output_tokens})
        body["sampling_params"] = {**body["sampling_params"], **profiler["sampling"]}
        self._body = json.dumps({**body, "stream": True})
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=SILENCE_S)
        self._socket: Optional[socket.socket] = None
        threading.Thread(target=self._read, daemon=True).start()

    def close(self) -> None:
        """Hang up: the engine ends requests whose client has gone."""
        self.ended = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            self._connection.connect()
            # The connection may forget it when the answer begins, and hanging up is done from another thread.
            self._socket = self._connection.sock
            path = self._server.engine["endpoints"]["generate"][0]
            headers = {"Content-Type": "application/json", **self._server.headers}
            self._connection.request("POST", path, self._body, headers)
            response = self._connection.getresponse()
            if response.status != 200:
                self.error = f"HTTP {response.status}: {self._server.redact(response.read(300).decode('utf-8', 'replace'))}"
                return
            for line in response:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    self._take(json.loads(line[6:]))
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # AttributeError: http.client reads on from a connection that has just been closed.
            self.error = self.error or f"the stream was cut: {error!r}"
        finally:
            self.ended = True
            self._connection.close()

    def _take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            self.error = self._server.redact(f"an error event: {json.dumps(event['error'])}")[:300]
            return
        if at(event, self._profiler["tokens"]):
            # A request of one prompt may be answered without an index.
            self.begun.add(int(at(event, self._profiler["index"]) or 0))
