"""The real engine's profiler, driven by gpuops. Without a card it records operators on the CPU; the trace's way is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import Lab

pytestmark = pytest.mark.slow


def test_a_profile_of_the_running_server_is_taken_fetched_and_added_up(serving: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    words = ("--cpu", "--concurrency", "2", "--input", "32", "--output", "400", "--steps", "4", "--out", str(folder), "--json")
    ran = serving.run("profile", *words)
    assert ran.code == 0, ran
    rank = ran.json["ranks"][0]
    assert rank["cpu"] and abs(rank["steps"] - 4) <= 1
    told = {row["name"]: row["us"] for row in rank["categories"]}
    # A model of 135 million weights multiplies most of its time.
    assert max(told, key=lambda name: told[name]) == "gemm"
    assert rank["covered"] >= 0.97
    assert rank["busy"] <= rank["span"]
    saved = json.loads((folder / "profile.json").read_text())
    assert saved["about"]["concurrency"] == 2
    assert list(folder.glob("*.trace.json.gz"))
    # The server was left as it was, and its lock is free.
    assert serving.status("--check")["check"]["state"] == "serving"


def test_a_load_that_ends_before_the_profiler_is_no_profile(serving: Lab, tmp_path: Path) -> None:
    ran = serving.run(
        "profile",
        "--cpu",
        "--concurrency",
        "1",
        "--output",
        "16",
        "--steps",
        "200",
        "--deadline",
        "60",
        "--out",
        str(tmp_path / "p"),
    )
    assert ran.code != 0
    assert "--output 32" in ran.err or "have written their trace" in ran.err
