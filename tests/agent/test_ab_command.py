"""`gpuops ab` as a user runs it: real rollouts of a server that can be measured, on this machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import installed
import pytest
from ab_lab import AbLab
from process_lab import eventually


@pytest.fixture
def lab(tmp_path: Path, agent_folder: Path) -> Iterator[AbLab]:
    made = AbLab(tmp_path)
    installed.link(agent_folder, made.root)
    made.up()
    try:
        yield made
    finally:
        made.clean_up()


def serves_home(lab: AbLab, home: int = 1) -> None:
    entry = lab.status()
    assert (entry["state"], entry["release"], entry["known_good"]) == ("running", home, home)


def test_a_comparison_of_equals_is_a_screen_shows_the_noise_and_leaves_the_host_as_it_was(lab: AbLab) -> None:
    ran = lab.run("ab", "known-good", "known-good", "--pairs", "2", "--json")
    assert ran.code == 0, ran
    record = ran.json
    assert [launch["side"] for launch in record["launches"]] == ["A", "B", "B", "A"]
    assert len({launch["launch"] for launch in record["launches"]}) == 4, "each launch is another process"
    assert record["results"][0]["verdict"]["word"] == "screen"
    assert (record["noise"][0]["cell"]["name"], record["noise"][0]["pairs"]) == ("c2", 2)
    assert record["back"] == {**record["back"], "release": 1, "verdict": "right"}
    assert lab.comparison() == {**record, "stack": lab.comparison()["stack"]}
    serves_home(lab)


@pytest.mark.slow
def test_a_build_that_is_four_times_as_slow_has_regressed_after_five_pairs(lab: AbLab) -> None:
    # So slow that a second which a busy machine takes from a run does not turn one into the other.
    lab.playbook["server"]["flags"]["gap-ms"] = 10.0
    lab.write()
    lab.up()
    slow = lab.build("slow", 4.0)
    ran = lab.run("ab", "known-good", slow[:-4])
    assert ran.code == 0, ran
    assert "regressed" in ran.out and f"B {slow} (release 3)" in ran.out
    assert "B has regressed tok/s at c2" in ran.out
    assert "release 2 serves, its probes say: right" in ran.out
    serves_home(lab, 2)


def test_a_dry_run_says_what_would_be_launched_and_touches_nothing(lab: AbLab) -> None:
    pid = lab.status()["server"]["pid"]
    ran = lab.run("ab", "known-good", "none", "--dry-run", "--margin", "3%")
    assert ran.code == 0, ran
    assert "launches    10 of 10: A B B A A B B A A B" in ran.out and "margin      3.0%" in ran.out
    assert "noise       not known: gpuops ab known-good known-good shows it" in ran.out
    assert lab.status()["server"]["pid"] == pid and not (lab.service / "ab").exists()


def test_the_noise_of_the_host_says_how_many_pairs_a_change_takes(lab: AbLab) -> None:
    assert lab.run("ab", "1", "1", "--pairs", "2").code == 0
    plan = lab.run("ab", "known-good", "none", "--dry-run", "--json").json
    assert plan["noise"][0]["cell"] == "c2" and (plan["noise"][0]["needed"] is None or plan["noise"][0]["needed"] >= 5)


def test_a_launch_that_fails_ends_the_comparison_and_the_known_good_release_serves(lab: AbLab) -> None:
    lab.playbook["server"]["flags"]["garbage"] = True
    lab.write()
    ran = lab.run("ab", "known-good", "none", "--pairs", "2")
    assert ran.code == 10, ran
    assert "release 2 failed" in ran.err and "gpuops ab --resume" in ran.err
    assert "A and B differ in more than the build: server.flags.garbage: None and True" in ran.err
    assert lab.comparison()["state"] == "failed"
    serves_home(lab)


def test_figures_that_cannot_be_believed_end_the_comparison_and_the_known_good_release_serves(lab: AbLab) -> None:
    lab.playbook["server"]["flags"]["sick"] = "error_midway"
    lab.write()
    ran = lab.run("ab", "known-good", "none", "--pairs", "2")
    assert ran.code == 1, ran
    assert "cannot be believed" in ran.err
    serves_home(lab)


def until(lab: AbLab, launches: int) -> None:
    eventually(lambda: len(lab.comparison().get("launches", ())) >= launches, f"{launches} launches", 120)


@pytest.mark.failure_mode("ab-cut")
def test_ctrl_c_ends_a_comparison_with_the_known_good_release_serving(lab: AbLab) -> None:
    slow = lab.build("slow", 1.5)
    running = lab.begin("ab", "known-good", slow, "--pairs", "4")
    until(lab, 1)
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 10, err
    assert lab.comparison()["state"] == "interrupted" and lab.comparison()["back"]["release"] == 1
    serves_home(lab)


@pytest.mark.failure_mode("ab-cut")
def test_a_comparison_whose_controller_was_killed_goes_on_and_repeats_no_launch(lab: AbLab) -> None:
    slow = lab.build("slow", 1.5)
    running = lab.begin("ab", "known-good", slow, "--pairs", "2")
    until(lab, 2)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    done = lab.comparison()["launches"]
    ran = lab.run("ab", "--resume", "--json")
    assert ran.code == 0, ran
    record = ran.json
    assert record["launches"][: len(done)] == done and len(record["launches"]) == 4
    assert record["state"] == "done" and record["back"]["verdict"] == "right"
    serves_home(lab)


def test_a_complete_comparison_goes_on_with_more_pairs(lab: AbLab) -> None:
    first = lab.run("ab", "known-good", "known-good", "--pairs", "1", "--json").json
    assert lab.run("ab", "--resume").code == 2
    more = lab.run("ab", "--resume", first["id"], "--pairs", "2", "--json").json
    assert more["id"] == first["id"] and len(more["launches"]) == 4


def test_a_report_is_made_of_what_the_host_has_kept(lab: AbLab) -> None:
    assert lab.run("ab", "known-good", "known-good", "--pairs", "1").code == 0
    page = lab.folder / "ab.html"
    ran = lab.run("report", "--ab", "latest", "-o", str(page))
    assert ran.code == 0, ran
    html = page.read_text()
    assert all(f'id="chart-{name}"' in html for name in ("throughput", "ratios", "latency", "telemetry"))
    ran = lab.run("report", "--json")
    blocks = ran.json["evidence"]["releases"][0]["blocks"]
    assert ran.code == 0 and len(blocks) == 2 and all(block["requests"] and block["telemetry"] for block in blocks)


def test_one_side_is_no_comparison(lab: AbLab) -> None:
    ran = lab.run("ab", "known-good", "--json")
    assert ran.code == 2 and json.loads(ran.out)["error"]["kind"] == "usage"


def test_a_build_that_is_not_there_is_said_before_anything_is_touched(lab: AbLab) -> None:
    ran = lab.run("ab", "known-good", "nobody")
    assert ran.code == 2 and "there is no build nobody" in ran.err
    assert not (lab.service / "ab").exists()
