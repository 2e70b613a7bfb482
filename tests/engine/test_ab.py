"""An A/B comparison of equals on the real engine: cut after its first pair, it goes on, and the host ends as it began."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab import GPUOPS, PATIENCE_S, Lab, wait_for

pytestmark = pytest.mark.slow

CELL = "{name: small, concurrency: 2, input: 32, output: 8, requests: 4}"


class SmallLab(Lab):
    """The lab with a cell that costs a second."""

    def playbook(self, name: str) -> Path:
        path = super().playbook(name)
        path.write_text(f"{path.read_text()}bench: {{cells: [{CELL}]}}\n")
        return path

    def comparison(self) -> dict[str, Any]:
        records = [json.loads(path.read_text()) for path in (self.service / "ab").glob("*.json")]
        return max(records, key=lambda record: float(record["began"]), default={"launches": []})


def test_a_cut_comparison_of_equals_goes_on_and_is_a_screen_and_the_host_is_as_before(serving: Lab) -> None:
    lab = SmallLab(serving.sandbox, serving.playbooks, serving.state)
    home = lab.status()["release"]
    argv = [GPUOPS, "ab", "-p", str(lab.playbook("local.yaml")), "known-good", "known-good", "--pairs", "2", "--quiet"]
    begun = subprocess.Popen(argv, env=lab.environment(), start_new_session=True)
    try:
        wait_for(lambda: len(lab.comparison()["launches"]) >= 2, "the first pair")
    finally:
        os.killpg(begun.pid, signal.SIGKILL)
        begun.wait(PATIENCE_S)
    done = lab.comparison()["launches"]

    ran = lab.run("ab", "--resume", "--json")

    assert ran.code == 0, ran
    record = ran.json
    assert record["launches"][: len(done)] == done and [each["side"] for each in record["launches"]] == ["A", "B", "B", "A"]
    assert len({each["launch"] for each in record["launches"]}) == 4
    assert record["results"][0]["verdict"]["word"] == "screen" and record["noise"][0]["pairs"] == 2
    assert (record["back"]["release"], record["back"]["verdict"]) == (home, "right")
    entry = lab.status()
    assert (entry["state"], entry["release"], entry["known_good"]) == ("running", home, home)
