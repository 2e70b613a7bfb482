"""Hooks: real scripts, run as a rollout runs them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import hooks
from gpuops_agent.paths import Root, Service
from gpuops_agent.releases import Release
from process_lab import eventually, gone

SECRET = "s3cr3t-v4lue"


class Stage:
    """A service with one release, one operation, and one hook."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service: Service = Root(folder / "root").service("demo")
        self.operation = self.service.operation("op-1")
        self.operation.mkdir(parents=True)
        self.service.root.secrets.mkdir()
        (self.service.root.secrets / "API_KEY").write_text(SECRET)
        self.events: list[dict[str, Any]] = []

    def run(self, text: str, timeout: float = 30.0, **env: str) -> str | None:
        document = {"port": 30000, "hooks": {"before-stop": {"name": "drain.sh", "text": text}}}
        release = Release(7, self.service.release(7), document)
        told = {"GPUOPS_OPERATION": "op-1", **env}
        return hooks.run(self.service, release, "before-stop", self._hear, told, timeout)

    def _hear(self, name: str, /, **fields: Any) -> None:
        self.events.append({"event": name, **fields})

    @property
    def told(self) -> dict[str, Any]:
        (event,) = self.events
        assert event["event"] == "hook"
        return event

    @property
    def log(self) -> str:
        return (self.operation / "hook-before-stop.log").read_text()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_hook_that_succeeds_is_told_without_its_output_which_is_kept(stage: Stage) -> None:
    assert stage.run("#!/bin/sh\necho drained\n") is None
    assert (stage.told["name"], stage.told["status"], stage.told["output"]) == ("before-stop", 0, "")
    assert stage.log == "drained\n"


def test_a_moment_without_a_hook_is_silent(stage: Stage) -> None:
    release = Release(7, stage.service.release(7), {})
    assert hooks.run(stage.service, release, "before-stop", stage._hear, {"GPUOPS_OPERATION": "op-1"}, 1.0) is None
    assert (stage.events, list(stage.operation.iterdir())) == ([], [])


def test_a_hook_that_fails_is_shown_whole_and_its_last_line_is_the_reason(stage: Stage) -> None:
    trouble = stage.run("#!/bin/sh\necho to stdout\necho 3 requests left >&2\nexit 3\n")
    assert trouble == "hook before-stop (drain.sh) ended with status 3: 3 requests left"
    assert (stage.told["status"], stage.told["output"]) == (3, "to stdout\n3 requests left\n")


def test_a_hook_is_executed_by_the_interpreter_that_it_names(stage: Stage) -> None:
    assert stage.run("#!/usr/bin/env python3\nimport sys\nprint('by', sys.version_info.major)\n") is None
    assert stage.log == "by 3\n"


def test_a_hook_is_told_what_goes_on_and_sees_nothing_else_of_ours(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", SECRET)
    assert stage.run("#!/bin/sh\nenv\n", GPUOPS_REASON=f"it said {SECRET}", GPUOPS_KNOWN_GOOD="6") is None
    seen = dict(line.split("=", 1) for line in stage.log.splitlines())
    # sh sets the last three itself.
    assert seen.keys() - set(hooks.INHERITED) - {"PWD", "SHLVL", "_"} == set(hooks.VARIABLES)
    expected = {
        "GPUOPS_SERVICE": "demo",
        "GPUOPS_RELEASE": "7",
        "GPUOPS_KNOWN_GOOD": "6",
        "GPUOPS_PREVIOUS_RELEASE": "",
        "GPUOPS_OPERATION": "op-1",
        "GPUOPS_HOOK": "before-stop",
        "GPUOPS_PORT": "30000",
        "GPUOPS_REASON": "it said <secret API_KEY>",
        "GPUOPS_ROOT": str(stage.service.root.path),
    }
    assert expected.items() <= seen.items()
    assert SECRET not in stage.log


def test_a_hook_that_does_not_end_is_ended_with_its_children(stage: Stage) -> None:
    pids = stage.folder / "pids"
    trouble = stage.run(f"#!/bin/sh\nsleep 600 & echo $! $$ > {pids}\necho waiting\nwait\n", timeout=0.5)
    assert trouble == "hook before-stop (drain.sh) did not end in 0.5 s: waiting"
    assert stage.told["status"] is None
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_a_child_that_a_hook_leaves_behind_holds_nobody_up(stage: Stage) -> None:
    pids = stage.folder / "pids"
    assert stage.run(f"#!/bin/sh\nsleep 600 & echo $! > {pids}\n") is None
    left = int(pids.read_text())
    assert not gone(left)
    os.kill(left, signal.SIGKILL)
    eventually(lambda: gone(left))


def test_a_hook_that_was_killed_says_by_which_signal(stage: Stage) -> None:
    assert stage.run("#!/bin/sh\nkill -KILL $$\n") == "hook before-stop (drain.sh) was ended by signal 9"
    assert stage.told["status"] == 137


def test_a_hook_whose_interpreter_is_missing_says_so(stage: Stage) -> None:
    trouble = stage.run("#!/no/such/interpreter\n")
    assert trouble == "hook before-stop (drain.sh) could not be run: No such file or directory"
    assert stage.told["status"] is None


def test_the_output_that_is_shown_holds_no_secret(stage: Stage) -> None:
    trouble = stage.run(f"#!/bin/sh\necho the key is {SECRET}\nexit 1\n")
    assert trouble is not None and trouble.endswith("the key is <secret API_KEY>")
    assert stage.told["output"] == "the key is <secret API_KEY>\n"


def test_long_output_is_cut_at_its_beginning_and_says_so(stage: Stage) -> None:
    # A secret lies across the place where the shown part begins.
    before = hooks.SHOWN_BYTES - len("end\n")
    script = f"#!/usr/bin/env python3\nprint('x' * 9999 + {SECRET!r}[:6], end={SECRET!r}[6:] + 'y' * {before - 6})\nprint('end')\nexit(1)\n"
    stage.run(script)
    head, _, shown = stage.told["output"].partition("\n")
    assert head.endswith(f"bytes in all; the last 64 kB of them; the whole lies in {stage.operation}/hook-before-stop.log]")
    assert shown.endswith("end\n") and len(shown) <= hooks.SHOWN_BYTES
    assert SECRET[6:] not in shown


def test_the_script_is_kept_and_only_ours_to_read(stage: Stage) -> None:
    stage.run("#!/bin/sh\n")
    assert (stage.operation / "hook-before-stop").stat().st_mode & 0o777 == 0o700
