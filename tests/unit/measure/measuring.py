"""What a block is measured on in these tests: a fault server, described as the server of a release."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "remote"))
sys.path.insert(0, str(Path(__file__).parent))

from fault_server import FaultServer
from gpuops_agent import block, proc
from gpuops_agent.files import write_json
from gpuops_agent.load_client import Client
from gpuops_agent.load_run import Cell
from gpuops_agent.paths import Root, Service
from gpuops_agent.records import ServerRecord
from gpuops_agent.releases import Release
from gpuops_agent.server import Server
from gpuops_agent.vault import Redactor

from gpuops.engines import facts
from gpuops.engines.measuring import load_words

CELL = Cell("c4", concurrency=4, input_tokens=16, output_tokens=16, requests=8)


def target(server: FaultServer, folder: Path, client: Client | None = None, python: str = sys.executable) -> block.Target:
    """``client`` None: our own."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text('{"vocab_size": 32000}')
    (folder / "server.log").touch()
    served = Server(
        host="127.0.0.1",
        port=server.port,
        model=str(folder / "model"),
        served_name="fake",
        engine=facts("sglang", "0.5.23").as_order(schedulers=1),
        headers={},
        redact=Redactor(Root(folder)),
    )
    release = Release(1, folder, {"argv": [python], "env": {}})
    return block.Target(served, record(1, server.port), release, folder / "server.log", load_words("sglang"), client)


def measured(at: block.Target, path: str = "native", cell: Cell = CELL, seed: int = 1) -> dict[str, Any]:
    return block.measure(at, cell, seed, 60.0, lambda sample: None, path)


def service(server_port: int, folder: Path, *, good: int = 1, release: int = 1, **document: Any) -> Service:
    """A service on disk whose release ``release`` runs as this very process, and answers at a port."""
    made = Root(folder / "root").service("demo")
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"vocab_size": 32000}')
    made.run.mkdir(parents=True)
    for number in {good, release}:
        made.release(number).mkdir(parents=True)
        made.server_log(number).touch()
        told = {
            "argv": [sys.executable],
            "env": {},
            "bind": "127.0.0.1",
            "port": server_port,
            "model": {"path": str(model)},
            "served_model_name": "fake",
            "engine": facts("sglang", "0.5.23").as_order(schedulers=1),
            "probes": [],
            "deadlines": {"generate_s": 20.0, "probe_s": 20.0},
            **document,
        }
        write_json(made.release(number) / "release.json", told)
    made.good.symlink_to(f"releases/{good}")
    run_as_this_process(made, release, server_port)
    return made


def run_as_this_process(made: Service, release: int, port: int) -> None:
    """Write the PID file of a release."""
    write_json(made.server_file, record(release, port).to_json())


def record(release: int, port: int) -> ServerRecord:
    me = proc.identify(os.getpid())
    assert me is not None
    return ServerRecord(me.pid, me.start, me.boot_id, me.pid_ns, 1, 1, sys.executable, "", release, port, me, "run", 0.0, 0.0)


@contextmanager
def on(folder: Path, kind: str = "clean", client: Client | None = None) -> Iterator[block.Target]:
    server = FaultServer(kind)
    try:
        yield target(server, folder, client)
    finally:
        server.close()
