"""What a report says: from a comparison's record, from a release's evidence, as Markdown and in short."""

from __future__ import annotations

import pytest
from samples import comparison, release_told

from gpuops.report import ab as report
from gpuops.report import page, sheet
from gpuops.report.style import PLAIN


def table(shown: sheet.Sheet, title: str) -> sheet.Table:
    return next(each for each in shown.tables if each.title == title)


def test_a_comparison_has_its_verdict_its_sides_and_how_the_host_was_left() -> None:
    shown = sheet.of_comparison(*comparison(), "gpu-box")
    assert shown.said == ("B has improved tok/s at c1",)
    assert [each.name for each in shown.subjects] == ["A: known-good (release 3)", "B: gpuops-kernels-3f9c81aa02d4 (release 4)"]
    assert dict(shown.about)["afterwards"] == "release 3 was restored, its probes say: right"


def test_the_speed_of_a_cell_is_the_geometric_mean_over_launches_with_a_t_interval() -> None:
    shown = sheet.of_comparison(*comparison(), "gpu-box")
    c1 = next(point for point in sheet.points(shown.subjects[0]) if point.cell == "c1")
    assert c1.launches == 5 and c1.speed == pytest.approx(30, rel=0.02)
    assert c1.low is not None and c1.high is not None and c1.low < c1.speed < c1.high


def test_an_open_loop_has_latencies_and_no_speed() -> None:
    _, evidence = comparison()
    told = evidence["releases"][0]
    users = {**told["blocks"][0]["cell"], "name": "users", "rate": 2.0}
    del users["concurrency"]
    blocks = [*told["blocks"], {**told["blocks"][0], "cell": users}]
    shown = sheet.of_release({**evidence, "releases": [{**told, "blocks": blocks}]}, 3, "gpu-box")
    assert "users" in [row[0] for row in table(shown, "Latency (p50/p95/p99; median over launches)").rows]
    assert "users" not in [point.cell for point in sheet.points(shown.subjects[0])]


def test_an_open_loop_shows_its_rate_and_its_goodput() -> None:
    _, evidence = comparison()
    told = evidence["releases"][0]
    first = told["blocks"][0]
    users = {**first["cell"], "name": "users", "rate": 2.0, "goodput": {"ttft_ms": 500, "itl_ms": 30}}
    blocks = []
    for req_s, share in ((1.4, 0.8), (1.6, 0.9), (1.5, 0.85)):
        achieved = {"asked": 2.0, "achieved": 1.8, "at_least": True}
        figures = {**first["figures"], "rate": achieved, "goodput": {"req_s": req_s, "share": share}}
        blocks.append({**first, "cell": users, "figures": figures})
    shown = sheet.of_release({**evidence, "releases": [{**told, "blocks": blocks}]}, 3, "gpu-box")
    (row,) = table(shown, "Open loops and goodput (median over launches)").rows
    assert row == ("users", "release 3, known-good", "≥ 1.8 of 2", "1.5/s (85%)", "TTFT 500 ms, ITL 30 ms")
    assert sheet.short(shown)[-1] == "    users: sent/s ≥ 1.8 of 2, goodput 1.5/s (85%)"


def test_a_single_launch_has_no_interval() -> None:
    shown = sheet.of_comparison(*comparison(pairs=1), "gpu-box")
    assert all(point.low is None for point in sheet.points(shown.subjects[0]))
    assert shown.said == ("no verdict: fewer than two whole pairs",)


def test_rungs_gates_and_fingerprints_are_in_it() -> None:
    shown = sheet.of_comparison(*comparison(), "gpu-box")
    assert ("4 needles (wanted)", "wrong", "8 of 9 found") in [row[2:5] for row in table(shown, "Ladder").rows]
    assert table(shown, "Gates of the rollout").rows[0][1:3] == ("probe capital (required)", "passed")
    prints = {row[0]: row[1:] for row in table(shown, "Fingerprints").rows}
    assert prints["build"] == ("none", "gpuops-kernels-3f9c81aa02d4") and prints["card"] == ("RTX PRO 6000 Blackwell",) * 2


def test_a_release_is_held_against_the_known_good_one_as_a_hint() -> None:
    _, evidence = comparison()
    shown = sheet.of_release(evidence, 4, "gpu-box")
    assert [each.name for each in shown.subjects] == ["release 4", "release 3, known-good"]
    assert "c1 against release 3, known-good: tok/s +" in shown.said[0] and "a hint, no verdict" in shown.said[0]


def test_the_known_good_release_stands_alone() -> None:
    _, evidence = comparison()
    shown = sheet.of_release({**evidence, "releases": evidence["releases"][:1]}, 3, "gpu-box")
    assert [each.name for each in shown.subjects] == ["release 3, known-good"] and shown.said == ()


def test_a_release_that_was_never_measured_has_its_gates_and_fingerprint_all_the_same() -> None:
    evidence = {"service": "s", "current": 1, "known_good": 1, "releases": [release_told(1, None, [])]}
    shown = sheet.of_release(evidence, 1, "gpu-box")
    assert [each.title for each in shown.tables] == ["Ladder", "Gates of the rollout", "Fingerprints"]
    assert "    nothing was measured" in sheet.short(shown)


def test_markdown_has_every_table_and_no_cell_opens_another() -> None:
    shown = sheet.of_comparison(*comparison(), "gpu-box")
    text = page.markdown(shown)
    assert all(f"## {each.title}" in text for each in shown.tables)
    rows = [line for line in text.splitlines() if "probe capital" in line]
    assert rows and all(r"Paris \<b>\|\</b>" in row for row in rows)


@pytest.mark.parametrize(
    ("pairs", "gain", "said"),
    [
        (5, 0.08, "B has improved tok/s at c1"),
        (5, -0.2, "B has regressed tok/s at c1"),
        (2, 0.08, "a screen of 2 pairs, no verdict on tok/s at c1: gpuops ab --resume ab-20260105-101500-3f9c81aa --pairs 5"),
        (1, 0.08, "no verdict: fewer than two whole pairs"),
        (40, 0.0, "A and B are equivalent in tok/s at c1"),
    ],
)
def test_the_conclusion_is_one_sentence_on_the_primary_figure(pairs: int, gain: float, said: str) -> None:
    record, _ = comparison(pairs=pairs, gain=gain)
    assert report.conclusion(record) == [said]


def test_an_inconclusive_comparison_says_how_many_pairs_are_missing_and_how_to_go_on() -> None:
    record, _ = comparison(pairs=5, gain=0.012)
    (said,) = report.conclusion(record)
    more = record["results"][0]["verdict"]["more"]
    assert said.startswith(f"inconclusive in tok/s at c1: about {more} more pairs are needed") and said.endswith(
        f"--pairs {5 + more}"
    )


def test_on_a_terminal_every_figure_has_its_change_and_its_word() -> None:
    record, _ = comparison()
    lines = report.lines(record, PLAIN)
    assert lines[1].split() == ["cell", "figure", "A", "B", "change", "verdict"]
    assert lines[2].split()[:2] == ["c1", "tok/s"] and lines[2].endswith("improved")
    assert lines[-1] == "  release 3 serves, its probes say: right"
