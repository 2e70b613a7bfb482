"""The agent's `profile`: a steady decode under the engine's profiler, and the traces brought home."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import locks, profile
from gpuops_agent.paths import Root, Service
from gpuops_agent.wire import AgentError
from measuring import service
from profiler_server import TRACE, ProfilerServer, profiling

from gpuops.engines import facts
from gpuops.engines.measuring import load_words
from gpuops.engines.profiling import profiler_words


def taken(made: Service, **more: Any) -> dict[str, Any]:
    args = {
        "service": "demo",
        "by": "t@here",
        "load": load_words(),
        "profiler": profiler_words(),
        "concurrency": 3,
        "input": 4,
        "output": 64,
        "steps": 5,
        "activities": ["GPU"],
        "deadline_s": 30.0,
    }
    return profile.profile(Root(made.root.path), {**args, **more})


def at(server: ProfilerServer, folder: Path, ranks: int = 1) -> Service:
    return service(server.port, folder, engine=facts("sglang", "0.5.23").as_order(schedulers=ranks))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "SETTLE_S", 0.3)


def test_the_traces_of_all_ranks_come_once_they_are_whole(tmp_path: Path) -> None:
    with profiling(ranks=2) as server:
        made = at(server, tmp_path, ranks=2)
        told = taken(made)
        assert [file["rank"] for file in told["files"]] == ["TP-0", "TP-1"]
        assert (told["release"], told["steps"], told["concurrency"]) == (1, 5, 3)
        assert (server.asked["num_steps"], server.asked["activities"], server.asked["with_stack"]) == (5, ["GPU"], False)
        assert server.gone.wait(30), "the load is hung up on"
    assert locks.owner(made) is None


def test_a_trace_is_sent_from_any_offset(tmp_path: Path, capfdbinary: Any) -> None:
    with profiling() as server:
        made = at(server, tmp_path)
        told = taken(made)
    capfdbinary.readouterr()
    place = {"service": "demo", "release": 1, "profile": told["profile"], "name": told["files"][0]["name"]}
    result = profile.get(Root(made.root.path), {**place, "offset": 10})
    chunks = [json.loads(line)["data"] for line in capfdbinary.readouterr().out.splitlines()]
    assert b"".join(map(base64.b64decode, chunks)) == TRACE[10:] and result == {"bytes": len(TRACE)}
    assert gzip.decompress(TRACE)
    with pytest.raises(AgentError, match="no name"):
        profile.get(Root(made.root.path), {**place, "name": "../release.json"})


def test_a_load_that_ends_before_the_profiler_is_no_steady_decode(tmp_path: Path) -> None:
    with profiling("short") as server, pytest.raises(AgentError) as raised:
        taken(at(server, tmp_path))
    assert "no steady decode" in raised.value.what or "before its decode was steady" in raised.value.what


def test_a_profiler_that_does_not_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    with profiling("refuse") as server, pytest.raises(AgentError, match="did not start") as raised:
        taken(at(server, tmp_path))
    assert "Profiling is already in progress" in raised.value.evidence


def test_a_trace_that_is_never_finished_is_waited_for_no_longer_than_the_deadline(tmp_path: Path) -> None:
    with profiling("cut") as server, pytest.raises(AgentError, match="0 of 1 ranks have written") as raised:
        taken(at(server, tmp_path), deadline_s=1.5)
    assert "TP-0.trace.json.gz" in raised.value.evidence


def test_only_the_newest_profiles_of_a_release_are_kept(tmp_path: Path) -> None:
    with profiling() as server:
        made = at(server, tmp_path)
        names = [taken(made)["profile"] for _ in range(2)]
        for number in range(5):
            (made.release(1) / "profiles" / f"2020010{number}-000000-aaaa").mkdir()
        last = taken(made)["profile"]
    left = {path.name for path in (made.release(1) / "profiles").iterdir()}
    assert left == {*names, last}
