"""ab and report on the command line: what they refuse before anything is touched, and what they write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import service_status

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from samples import comparison

from gpuops.cli import ab
from gpuops.errors import GpuopsError
from gpuops.measure.paired import FEWEST

HOST = ("--host", "gpu-box")
RELEASE: dict[str, Any] = {
    "release": 3,
    "state": "good",
    "summary": {"flags": {"tp": 8}, "engine": "sglang 0.5.23", "model": "m", "build": None},
    "runtime": "rt-1",
    "base": "b-1",
}
HISTORY = {"service": "svc", "current": 3, "known_good": 3, "releases": [RELEASE], "operations": []}


def test_the_default_number_of_pairs_is_the_fewest_that_make_a_verdict() -> None:
    assert ab.PAIRS == FEWEST


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["known-good"], "two sides are needed"),
        ([], "two sides are needed"),
        (["--resume", "ab-1", "x"], "which comparison shall go on?"),
        (["1", "2", "--margin", "much"], "--margin much is no share"),
        (["1", "2", "--margin", "200%"], "--margin 200% is no share"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_usage_error(words: list[str], what: str, agent: Any, gpuops: Any) -> None:
    fake = agent(history=HISTORY, status=service_status())
    said = gpuops("ab", *words, *HOST)
    assert said.code == 2 and what in said.err
    assert fake.calls == []


def test_without_a_known_good_release_there_is_nothing_to_go_back_to(agent: Any, gpuops: Any) -> None:
    agent(history={**HISTORY, "known_good": None}, status=service_status())
    said = gpuops("ab", "3", "3", *HOST)
    assert said.code == 1 and "has no known-good release to go back to" in said.err


def test_a_dry_run_of_releases_needs_no_playbook_and_starts_nothing(agent: Any, gpuops: Any) -> None:
    other = {**RELEASE, "release": 2, "base": "b-2", "summary": {**RELEASE["summary"], "flags": {"tp": 4}}}
    fake = agent(history={**HISTORY, "releases": [RELEASE, other]}, status=service_status(), **{"ab.list": {"comparisons": []}})
    said = gpuops("ab", "known-good", "2", "--pairs", "2", "--dry-run", *HOST)
    assert said.code == 0, said
    assert "A known-good (release 3), B 2" in said.out and "below 5 pairs it is a screen" in said.out
    assert "A and B differ in more than the build: server.flags.tp: 8 and 4" in said.out
    assert {verb for verb, _ in fake.calls} == {"history", "ab.list"}


def test_a_build_needs_a_playbook(agent: Any, gpuops: Any) -> None:
    agent(history=HISTORY, status=service_status())
    said = gpuops("ab", "known-good", "none", *HOST)
    assert said.code == 2 and "none needs a playbook" in said.err


def reporting(agent: Any) -> Any:
    record, evidence = comparison()
    history = {"service": "svc", "known_good": 3}
    return agent(**{"ab.load": record, "evidence": evidence, "history": history})


def test_a_report_on_a_comparison_is_a_page_with_markdown_beside_it(agent: Any, gpuops: Any, folder: Path) -> None:
    fake = reporting(agent)
    said = gpuops("report", "--ab", "latest", "-o", "ab.html", *HOST)
    assert said.code == 0, said
    assert said.out.splitlines()[-2:] == ["  written     ab.html", "  written     ab.md"]
    assert "<svg" in (folder / "ab.html").read_text() and "## Fingerprints" in (folder / "ab.md").read_text()
    asked = dict(fake.calls)["evidence"]
    assert asked["releases"] == [3, 4] and len(asked["launches"]) == 10
    assert dict(fake.calls)["ab.load"]["id"] is None


def test_without_a_file_the_report_is_shown_in_short(agent: Any, gpuops: Any, folder: Path) -> None:
    reporting(agent)
    said = gpuops("report", "--ab", "ab-1", *HOST)
    assert said.code == 0 and "  B has improved tok/s at c1" in said.out.splitlines()
    assert list(folder.iterdir()) == []


def test_a_report_on_a_release_stands_beside_the_known_good_one(agent: Any, gpuops: Any) -> None:
    fake = reporting(agent)
    _, evidence = comparison()
    fake.answers["evidence"] = {**evidence, "releases": evidence["releases"][::-1]}
    said = gpuops("report", "--release", "4", *HOST)
    assert said.code == 0 and said.out.startswith("Release 4\n") and "  release 3, known-good" in said.out
    assert dict(fake.calls)["evidence"]["releases"] == [4, 3]


def test_a_report_is_on_one_thing(agent: Any, gpuops: Any) -> None:
    reporting(agent)
    assert gpuops("report", "--ab", "x", "--release", "4", *HOST).code == 2


def test_a_file_that_cannot_be_written_is_said(agent: Any, gpuops: Any) -> None:
    reporting(agent)
    said = gpuops("report", "--ab", "latest", "-o", "no/such/folder/x.html", *HOST)
    assert said.code == 1 and "cannot be written" in said.err


def test_a_comparison_that_is_not_there_is_the_hosts_word(agent: Any, gpuops: Any) -> None:
    agent(**{"ab.load": GpuopsError("service svc has no comparison", next="gpuops ab A B", kind="no_comparison")})
    assert "gpuops ab A B" in gpuops("report", "--ab", "latest", *HOST).err
