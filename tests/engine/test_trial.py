"""A whole trial on the real engine: a good, a garbage and a crashing change, and the known-good release at the end. Five launches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import Lab

pytestmark = pytest.mark.slow

TRIAL = """\
question: Which of three changes does this engine take?
hypothesis: Fewer requests at a time are fine, random weights answer wrong, and an unknown flag ends the start.
base: {base}
steps:
  - {{name: good, flags: {{max-running-requests: 5}}, bench: [c1], expect: passes}}
  - {{name: garbage, flags: {{load-format: dummy}}, expect: fails}}
  - {{name: crash, flags: {{no-such-flag: 1}}, expect: fails}}
"""


@pytest.mark.failure_mode("trial-steps")
def test_a_trial_tells_a_good_a_garbage_and_a_crashing_change_apart_and_leaves_the_known_good_release(
    serving: Lab, tmp_path: Path
) -> None:
    before = serving.status()
    file = tmp_path / "three.yaml"
    file.write_text(TRIAL.format(base=serving.playbook("local.yaml")))
    records = tmp_path / "records"

    ran = serving.run("trial", str(file), "--records", str(records), "--json")

    assert ran.code == 0, ran
    record = ran.json["record"]
    assert [(step["name"], step["verdict"], step["class"] or step["kind"]) for step in record["steps"]] == [
        ("good", "passed", None),
        ("garbage", "failed", "wrong_answers"),
        ("crash", "failed", "wrong_arguments"),
    ]
    good, garbage, crash = record["steps"]
    assert good["figures"][0]["valid"], good
    assert good["figures"][0]["tok_s"] > 0
    assert "Paris" in garbage["evidence"]
    assert "--no-such-flag" in crash["evidence"]
    assert record["unexpected"] == []
    assert record["fingerprints"][0]["packages"]["sglang"] == "0.5.23"
    # The known-good release is what it was, serves, and answers; it was started once, at the end.
    after = serving.status("--check")
    assert (after["release"], after["known_good"], after["check"]["state"]) == (before["release"], before["release"], "serving")
    assert len([event for event in ran.events if event["event"] == "restoring"]) == 1
    assert len(serving.servers()) == 1
    # gpuops' own part of it: everything outside of the steps and of the way back.
    assert json.loads((records / record["id"] / "record.json").read_text()) == record
    assert not list(records.glob(".*.unfinished.json"))
