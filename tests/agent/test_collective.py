"""Ranks that add up numbers: what their stages say, that nothing of them outlives the limit, and when the doctor lets them.

The Python that these ranks are run by is a shell script; tests/engine has the real one, with its PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import check_collective, collective, releases
from gpuops_agent.check import FAIL, OK, Finding, Subject
from gpuops_agent.collective import Ask, Rank
from gpuops_agent.paths import Root, Service
from process_lab import gone
from rollouts import Lab
from test_gpus import PRINTED, Tools

from gpuops.engines import facts

ON_CARDS, ON_CPU = Ask("python", 2, (0, 1), {}, 90.0), Ask("python", 2, (), {}, 90.0)


def rank(*stages: str, status: int | None = 0, words: str = "", **told: Any) -> Rank:
    made: dict[str, dict[str, Any]] = {stage: {} for stage in stages}
    for stage, value in told.items():
        made[stage] = value
    return Rank(made, status, words)


JOINED = ("started", "imported", "joined")
RIGHT = rank(*JOINED, "done", added={"right": True}, measured={"bytes": 64 << 20, "seconds": 0.001})
HUNG = rank(*JOINED, status=None)


@pytest.mark.parametrize(
    ("ask", "ranks", "name", "what", "next"),
    [
        (ON_CARDS, [RIGHT, RIGHT], "", "2 ranks (NCCL) add up to the right sum, 67.1 GB/s a card", ""),
        (ON_CPU, [rank(*JOINED, "done", added={"right": True})] * 2, "", "2 ranks (gloo) add up to the right sum", ""),
        (ON_CARDS, [HUNG, HUNG], "nccl_p2p_hang", "their all-reduce did not end within 90 s", "NCCL_P2P_DISABLE=1"),
        (ON_CARDS, [RIGHT, HUNG], "nccl_p2p_hang", "did not end", "NCCL_P2P_DISABLE=1"),
        (
            Ask("python", 2, (0, 1), {"NCCL_P2P_DISABLE": "1"}, 90.0),
            [HUNG, HUNG],
            "nccl_p2p_hang",
            "did not end",
            "NCCL_P2P_DISABLE=1 is set already",
        ),
        (ON_CPU, [HUNG, HUNG], "collective_hang", "their all-reduce did not end within 90 s", "once more"),
        (ON_CARDS, [HUNG, rank("started", "imported", status=None)], "rendezvous_hang", "did not meet", "NCCL_DEBUG=INFO"),
        (ON_CARDS, [HUNG, rank("started", status=None)], "slow_import", "PyTorch was not imported", "in memory"),
        (ON_CARDS, [RIGHT, rank(*JOINED, added={"right": False})], "wrong_sum", "add up to a wrong sum", "NCCL_P2P_DISABLE=1"),
        (ON_CARDS, [HUNG, rank("started", status=1, words="No module")], "collective_failed", "cannot add up", "NCCL_DEBUG=INFO"),
    ],
)
@pytest.mark.failure_mode("collective-hangs")
def test_how_far_the_ranks_came_says_what_is_wrong(ask: Ask, ranks: list[Rank], name: str, what: str, next: str) -> None:
    verdict = collective.judge(ask, ranks)
    assert verdict.name == name and what in verdict.what and next in verdict.next


def python(folder: Path, body: str) -> str:
    """An interpreter that runs a shell script: ``$3`` is the rank."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return str(program)


def tell(*stages: str) -> str:
    return "".join(f'echo \'{{"stage": "{stage}"}}\';' for stage in stages)


WELL = f"""{tell(*JOINED)} echo '{{"stage": "added", "right": true}}'; {tell("done")}"""
STUCK = f"{tell(*JOINED)} sleep 600"


@pytest.mark.failure_mode("collective-hangs")
def test_ranks_that_hang_are_killed_with_all_that_they_forked(tmp_path: Path) -> None:
    ask = Ask(python(tmp_path, f"{tell(*JOINED)} sleep 600 & echo $! > {tmp_path}/child$3; wait"), 2, (0, 1), {}, limit_s=1.0)
    ranks = collective.run(ask)
    assert collective.judge(ask, ranks).name == "nccl_p2p_hang"
    assert all(gone(int((tmp_path / f"child{number}").read_text())) for number in range(2))


def test_a_rank_that_fails_is_named_with_its_last_words_and_the_others_are_not_waited_for(tmp_path: Path) -> None:
    body = f'[ "$3" = 1 ] && echo "RuntimeError: NCCL error: unhandled system error" >&2 && exit 1; {STUCK}'
    ask = Ask(python(tmp_path, body), 2, (0, 1), {}, limit_s=600.0)
    verdict = collective.judge(ask, collective.run(ask))
    assert verdict.name == "collective_failed"
    assert verdict.evidence.startswith("rank 1 ended with status 1: RuntimeError: NCCL error: unhandled system error")


# The doctor's check.


def service(root: Path, ranks: int, program: str, **env: str) -> Service:
    """A service that has a release, and no server."""
    made = Root(root).service("demo")
    engine = facts("sglang", "0.5.23").as_order(schedulers=ranks)
    releases.stage(made, {"env": env, "engine": engine, "runtime": {"python": program}})
    made.current.symlink_to("releases/1")
    return made


def checked(of: Service, *, asked: bool = False) -> Finding:
    return check_collective.all_reduce(Subject(of.root, [of], collective=asked), of)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(tmp_path / "tools", monkeypatch)


def free_cards(tools: Tools) -> None:
    tools.add_cards()
    for name in ("cards", "apps"):
        text = (PRINTED / f"h200x2_{name}.csv").read_text().replace("2575 MiB", "4 MiB")
        (tools.folder / f"{name}.csv").write_text(text if name == "cards" else text.splitlines()[0] + "\n")
        program = tools.folder / "nvidia-smi"
        program.write_text(program.read_text().replace(str(PRINTED / f"h200x2_{name}.csv"), str(tools.folder / f"{name}.csv")))


def test_on_free_cards_the_ranks_of_a_service_are_tried_by_themselves(tmp_path: Path, tools: Tools) -> None:
    free_cards(tools)
    found = checked(service(tmp_path, 2, python(tmp_path, WELL)))
    assert (found.state, found.what) == (OK, "2 ranks (NCCL) add up to the right sum")


def test_on_cards_in_use_nothing_is_tried_unless_somebody_asks(tmp_path: Path, tools: Tools) -> None:
    tools.add_cards()
    of = service(tmp_path, 2, python(tmp_path, WELL))
    found = checked(of)
    assert (found.state, found.what, found.next) == (OK, "not made: somebody is on card 0", "gpuops doctor --collective")
    assert checked(of, asked=True).what == "2 ranks (NCCL) add up to the right sum"


def test_while_a_server_runs_nothing_is_tried_unless_somebody_asks(lab: Lab, tools: Tools) -> None:
    free_cards(tools)
    made = lab.order("--tp", "2")
    made["engine"] = facts("sglang", "0.5.23").as_order(schedulers=2)
    assert lab.play(made).name == "promoted"
    assert checked(lab.service).what == "not made: somebody is on cards 0 and 1"


def test_without_cards_or_a_second_rank_there_is_nothing_to_try(tmp_path: Path, tools: Tools) -> None:
    program = python(tmp_path, WELL)
    assert checked(service(tmp_path / "one", 1, program)).what == "one rank: nothing to add up"
    assert checked(service(tmp_path / "two", 2, program)).what == "not made: there are no cards"
    assert checked(service(tmp_path / "asked", 1, program), asked=True).what == "2 ranks (gloo) add up to the right sum"


@pytest.mark.failure_mode("collective-hangs")
def test_a_hang_is_tried_again_without_direct_copies_between_the_cards(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_cards(tools)
    monkeypatch.setattr(collective, "LIMIT_S", 1.0)
    found = checked(service(tmp_path, 2, python(tmp_path, f'[ "$NCCL_P2P_DISABLE" = 1 ] || {{ {STUCK}; }}; {WELL}')))
    assert found.state == FAIL and "(nccl_p2p_hang)" in found.what
    assert "with NCCL_P2P_DISABLE=1: 2 ranks (NCCL) add up to the right sum" in found.evidence
    assert found.next.startswith("gpuops up --set server.env.NCCL_P2P_DISABLE=1")
