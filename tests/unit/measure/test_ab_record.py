"""A/B comparisons as records: whose turn it is, what pairs show, and that a stored record is the comparison again."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from comparisons import comparison, launched

from gpuops.measure.ab import Comparison, noise, results, turn, zeros
from gpuops.report import ab as report
from gpuops.report.style import PLAIN


def test_launches_alternate_in_blocks_of_a_b_b_a() -> None:
    assert "".join(turn(at) for at in range(10)) == "ABBAABBAAB"


def test_the_next_side_is_the_one_whose_turn_it_is_until_every_pair_is_there() -> None:
    begun = comparison(pairs=2)
    sides = []
    while (side := begun.next_side) is not None:
        sides.append(side)
        begun = launched(begun, 100.0)
    assert sides == ["A", "B", "B", "A"]


def test_pairs_are_two_neighbours_whatever_their_order() -> None:
    found = results(launched(comparison(pairs=2), 100.0, 110.0, 108.0, 90.0))[0]
    assert (found.a, found.b) == ((100.0, 90.0), (110.0, 108.0))


def test_half_a_pair_counts_for_nothing() -> None:
    assert results(launched(comparison(), 100.0)) == []
    assert len(results(launched(comparison(), 100.0, 110.0, 108.0))[0].a) == 1


def test_one_pair_has_a_change_and_no_verdict() -> None:
    (speed, *_) = results(launched(comparison(), 100.0, 110.0))
    assert speed.verdict is None and speed.change == pytest.approx(0.1)


def test_speed_is_judged_by_its_log_ratios_and_the_margin_that_was_declared() -> None:
    speed = results(launched(comparison(pairs=5, margin=0.05), 100, 121, 120, 100, 100, 119, 121, 100, 101, 121))[0]
    assert speed.verdict is not None
    assert (speed.figure, speed.verdict.word, speed.verdict.pairs, speed.verdict.margin) == ("tok/s", "improved", 5, 0.05)
    assert speed.verdict.mean == pytest.approx(0.2, abs=0.01)


def test_less_time_is_better_and_more_speed_is() -> None:
    told = {each.figure: each.change for each in results(launched(comparison(), 100.0, 80.0))}
    assert told["tok/s"] == pytest.approx(-0.2)
    assert told["TPOT"] == pytest.approx(-0.2), "the time a token grew as the speed fell"


def test_below_five_pairs_it_is_a_screen() -> None:
    speed = results(launched(comparison(pairs=2), 100, 150, 150, 100))[0]
    assert speed.verdict is not None and speed.verdict.word == "screen"


def test_a_prefill_cell_is_judged_by_its_prompt_tokens() -> None:
    told = results(launched(comparison(output_tokens=1), 100.0, 110.0))
    assert [each.figure for each in told] == ["prompt tok/s", "TTFT"]


def test_a_figure_with_a_zero_has_no_ratio_and_is_shown_all_the_same() -> None:
    begun = comparison(pairs=1)
    cells = tuple({**cell, "rate": 2.0} for cell in begun.cells or ())
    done = launched(replace(begun, cells=cells), 100.0, 110.0)
    for launch, good in zip(done.launches, (1.5, 0.0), strict=True):
        launch.blocks[0]["figures"]["goodput"] = {"req_s": good, "share": good / 2}
    assert "goodput" not in {each.figure for each in results(done)}
    assert zeros(done) == [{"cell": "c1", "figure": "goodput", "a": [1.5], "b": [0.0]}]
    assert "  goodput at c1 has no ratio: A 1.5; B 0" in report.lines(done.to_json(), PLAIN)


def test_only_equals_show_the_noise_of_a_host() -> None:
    assert noise(launched(comparison(), 100, 101, 99, 100)) is None
    (told,) = noise(launched(comparison(equal=True), 100, 101, 99, 100)) or []
    values = [math.log(101 / 100), math.log(99 / 100)]
    assert told["pairs"] == 2 and told["mean"] == pytest.approx(sum(values) / 2)
    assert told["sd"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    assert (told["cell"]["name"], told["client"]) == ("c1", "client")


def test_equal_sides_become_the_same_release() -> None:
    assert comparison(equal=True).became("A", 7).b.release == 7
    assert comparison().became("A", 7).b.release is None


def test_a_stored_record_is_the_comparison_again() -> None:
    whole = launched(comparison(pairs=3, equal=True).became("A", 4), 100, 101, 99, 100)
    stored = json.loads(json.dumps(whole.to_json()))
    assert Comparison.from_json(stored) == whole
    assert stored["results"][0]["verdict"]["word"] == "screen" and stored["noise"][0]["pairs"] == 2


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        Comparison.from_json({**comparison().to_json(), "version": 2})
