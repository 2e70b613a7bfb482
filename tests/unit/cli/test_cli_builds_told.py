"""How caches, proofs and what is done ahead of a stop are told: status, the lines of a rollout, and its end."""

from __future__ import annotations

from typing import Any

import pytest
from cli_fakes import service_status

from gpuops.report import narrate, outcome, status
from gpuops.report.style import PLAIN

CACHE: dict[str, Any] = {
    "path": "/root/.gpuops/caches/ab12",
    "build": "pack-1",
    "card": "cpu",
    "created": 900.0,
    "last_used": 950.0,
    "seeded_from": None,
    "reset": None,
    "entries": 412,
    "bytes": 3_400_000,
    "misses": 0,
    "missed": {},
}
PROOF: dict[str, Any] = {
    "build": "pack-1",
    "state": "active",
    "passed": True,
    "text": "8 of 8 ranks, mla_decode, indexer active",
    "evidence": ["rank tp0"],
    "families": ["indexer", "mla_decode"],
    "ranks": [8, 8],
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "ab12: 412 entries, 3.4 MB, warm: the last start added nothing"),
        ({"entries": 1, "misses": 1}, "ab12: 1 entry, 3.4 MB, the last start added 1"),
        ({"entries": 0}, "ab12: empty: nothing was compiled"),
        ({"entries": None, "bytes": None, "misses": None}, "ab12: not used yet"),
        (
            {"seeded_from": {"build": "stock", "files": 30}, "misses": 2},
            "ab12: 412 entries, 3.4 MB, the last start added 2; seeded from that of stock (30 files)",
        ),
        (
            {"reset": {"because": "cut"}},
            "ab12: 412 entries, 3.4 MB, warm: the last start added nothing; fresh since 1 min 40 s ago: the old one was damaged",
        ),
    ],
)
def test_status_tells_the_cache_in_one_line(changes: dict[str, Any], line: str) -> None:
    told = status.lines(service_status(cache={**CACHE, **changes}), "gpu-box", 1000.0, PLAIN)
    assert f"  cache       {line}" in told


def test_status_tells_what_the_ranks_prove() -> None:
    told = status.lines(service_status(proof=PROOF), "gpu-box", 1000.0, PLAIN)
    assert "  kernels     pack-1: 8 of 8 ranks, mla_decode, indexer active" in told


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        ({"event": "proof", **PROOF}, ["✓ kernel pack pack-1: 8 of 8 ranks, mla_decode, indexer active"]),
        (
            {
                "event": "proof",
                **PROOF,
                "state": "failed",
                "passed": False,
                "text": "7 of 8 ranks: rank tp3: no",
                "evidence": ["rank tp3: no"],
            },
            ["✗ kernel pack pack-1: 7 of 8 ranks: rank tp3: no", "    rank tp3: no"],
        ),
        (
            {
                "event": "compiled",
                "build": "pack-1",
                "capability": "12.0",
                "kernels": 40,
                "compiled": 38,
                "cached": 2,
                "seconds": 61.0,
            },
            ["kernels for capability 12.0: 38 compiled, 2 in the cache, 61.0 s"],
        ),
        (
            {
                "event": "seeded",
                "from": "cd",
                "build": "stock",
                "parts": ["triton", "inductor"],
                "files": 30,
                "bytes": 12_000_000,
            },
            ["the new cache begins with 30 files of that of stock (12.0 MB: triton, inductor)"],
        ),
        (
            {
                "event": "warmed",
                "bytes": 5_000_000_000,
                "from_disk": 4_000_000_000,
                "total": 9_000_000_000,
                "seconds": 9.0,
                "why": "memory is short",
            },
            ["weights in the page cache: 5.0 GB of 9.0 GB, 4.0 GB of them from disk in 9.0 s; stopped: memory is short"],
        ),
        ({"event": "cache", "misses": 0, "missed": {}}, []),
        ({"event": "cache", "misses": 3, "missed": {"triton": 3}}, ["the start added 3 files to its compile cache: triton 3"]),
        (
            {"event": "cache_reset", "kept": "/c/ab.poisoned-op", "because": "EOFError"},
            [
                "a file of the compile cache is damaged: starting once more with a fresh one; the old one is kept as /c/ab.poisoned-op",
                "    EOFError",
            ],
        ),
    ],
    ids=lambda value: value["event"] if isinstance(value, dict) else "",
)
def test_what_happens_around_a_build_has_its_line(event: dict[str, Any], lines: list[str]) -> None:
    assert narrate.lines(event, PLAIN) == lines


def test_a_stop_is_told_with_what_is_left_on_each_card() -> None:
    cards = [{"card": index, "free": True, "text": f"card {index} is free, 4 MiB used"} for index in (0, 1)]
    assert narrate.lines({"event": "stopped", "release": 1, "proof": {"cards": cards}}, PLAIN) == [
        "release 1 is stopped: its processes are gone and its port is free",
        "    card 0 is free, 4 MiB used",
        "    card 1 is free, 4 MiB used",
    ]


def test_the_end_of_a_rollout_names_the_proof_and_the_outage() -> None:
    ended = {"outcome": "promoted", "release": 2, "pid": 7, "port": 8, "seconds": 60.0, "phases": {"stop": 4.0}, "outage_s": 34.2}
    told = outcome.lines({**ended, "proof": PROOF}, "svc", "gpu-box", PLAIN)
    assert "  kernels     pack-1: 8 of 8 ranks, mla_decode, indexer active" in told
    assert "  outage      34 s from the old server's stop to the first answer" in told
