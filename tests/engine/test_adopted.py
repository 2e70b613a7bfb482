"""A real server that gpuops did not start: taken over as it runs, and put back when what was to replace it fails."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Lab, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def by_hand(serving: Lab) -> Iterator[tuple[Lab, int]]:
    """A service without any release, and the port of a server that a person started with the arguments of a release of ours."""
    release = serving.release(serving.status()["release"])
    assert serving.run("down").code == 0
    lab = dataclasses.replace(serving, name="by-hand")
    shutil.rmtree(lab.service, ignore_errors=True)
    with (lab.playbooks / "by-hand.log").open("wb") as log:
        # Detached from everything, as after a login that has ended: its parent is init.
        argv = ["setsid", "--fork", *release["argv"]]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=release["env"], cwd=lab.playbooks)
    wait_for(lambda: "fired up" in Path(log.name).read_text(), "the server started by hand is up")
    try:
        yield lab, release["port"]
    finally:
        lab.run("down")
        for pid in lab.servers():  # it was never adopted
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not lab.servers(), "no server is left")
        shutil.rmtree(lab.service, ignore_errors=True)


def test_a_bad_candidate_gives_way_to_the_adopted_server(by_hand: tuple[Lab, int]) -> None:
    lab, port = by_hand
    (pid,) = lab.servers()
    arguments = _arguments(pid)
    adopted = lab.run("adopt", "--json", "--port", str(port))
    assert adopted.code == 0, adopted
    assert (adopted.json["release"], adopted.json["pid"], adopted.json["port"]) == (0, pid, port)
    assert lab.servers() == [pid], "nothing was touched"
    entry = lab.status("--check")
    assert (entry["state"], entry["release"], entry["known_good"], entry["check"]["state"]) == ("running", 0, 0, "serving")

    ran = lab.up(playbook="local-bad.yaml")
    assert ran.code == 10, ran
    assert (ran.json["outcome"], ran.json["release"], ran.json["known_good"]) == ("restored", 0, 0)
    (again,) = lab.servers()
    assert again != pid and _arguments(again) == arguments
    assert lab.status()["server"]["port"] == port
    assert lab.run("smoke").code == 0


def _arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
