"""What a profile says of a step, against a count by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from traces import Json, kernel, operator, step, write

from gpuops.engines.profiling import categories
from gpuops.errors import GpuopsError
from gpuops.profiling import stored
from gpuops.profiling.compare import compare
from gpuops.profiling.ranks import slowest
from gpuops.profiling.summary import RankProfile, count_steps, from_json, summarise
from gpuops.profiling.trace import KERNEL, Work, read
from gpuops.report import profile as report


def profile(tmp_path: Path, events: list[Json], steps: int | None = None, name: str = "run-TP-0.trace.json.gz") -> RankProfile:
    return summarise(read(write(tmp_path / name, events)), categories(), steps)


def us(found: RankProfile) -> dict[str, float]:
    return {row.name: pytest.approx(row.us, abs=1e-3) for row in found.categories}


def test_the_time_of_a_step_is_added_up_by_category(tmp_path):
    found = profile(tmp_path, [*step(0), *step(40), *step(80)], steps=3)
    assert us(found) == {"attention": 8, "gemm": 10, "mhc": 6, "copies": 1, "communication": 6}
    assert (found.steps, found.launches, found.copies, found.streams) == (3, 4, 1, 2)


def test_work_of_several_streams_at_a_time_is_busy_once_and_told_as_overlap(tmp_path):
    found = profile(tmp_path, [*step(0), *step(40)], steps=2)
    assert found.summed == pytest.approx(31, abs=1e-3)
    assert found.busy == pytest.approx(27, abs=1e-3)
    assert found.overlap == pytest.approx(4, abs=1e-3)
    # From the first GEMM's start, 0, to the second's, 40: one whole step.
    assert found.span == pytest.approx(40, abs=1e-3)
    assert found.idle == pytest.approx(13, abs=1e-3)


def test_the_gaps_are_those_in_which_no_stream_works(tmp_path):
    found = profile(tmp_path, [*step(0), *step(40)], steps=2)
    # 26-30 before the copy, and 31-40 before the next step.
    assert found.gaps.count == 2
    assert found.gaps.p50 == pytest.approx(4, abs=1e-3)
    assert found.gaps.most == pytest.approx(9, abs=1e-3)
    assert found.gaps.longest == "after Memcpy DtoD, before nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"


def test_only_whole_steps_are_summed_and_what_is_left_out_is_told(tmp_path):
    # The profiler begins within a step, and holds the host up for 900 us; then three whole steps, and the first kernels of a fourth.
    events = [*step(-940)[3:], *step(0), *step(40), *step(80), *step(120)[:2]]
    found = profile(tmp_path, events, steps=4)
    assert (found.steps, found.whole, found.launches, found.copies) == (4, 3, 4, 1)
    assert us(found) == {"attention": 8, "gemm": 10, "mhc": 6, "copies": 1, "communication": 6}
    assert [found.span, found.busy, found.idle, found.overlap] == pytest.approx([40, 27, 13, 4], abs=1e-3)
    # 26-30 and 31-40 in each step, and nothing of the 909 us before the first.
    assert (found.gaps.count, found.gaps.most) == (2, pytest.approx(9, abs=1e-3))
    # The all-reduce begins at -920, the last GEMM 120, and what runs beside that ends at 134.
    assert found.ends == pytest.approx(920 + 14, abs=1e-3)
    shown = report.lines([found], "x", categories())
    # Attention ran three times, and the other three kernels four times.
    assert found.agree == 0.75 and shown[0].startswith("x: about 3 whole steps of 4, NVIDIA H200")
    assert shown[1] == "left out: the ends of the trace, in which steps are cut: 0.9 ms"


def test_work_across_the_end_of_whole_steps_counts_as_far_as_it_lies_in_them(tmp_path):
    # Each step's GEMM takes 0-10; beside it and across its start, from -5 to 4, a kernel of another stream.
    events = [each for at in (0, 20, 40) for each in (kernel("pre_finish", at - 5, 9, stream=9), kernel("nvjet_a", at, 10))]
    found = profile(tmp_path, events[1:], steps=3)
    # From GEMM to GEMM: the first step lacks the kernel's first launch, the second has all of one: 5 us each at its end, and 4 at the second's start.
    assert us(found) == {"gemm": 10, "mhc": (5 + 4 + 5) / 2}
    assert (found.whole, found.launches) == (2, 2)
    assert [found.span, found.busy, found.overlap] == pytest.approx([20, 15, 2], abs=1e-3)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="two of its only kernel in each"),
        pytest.param([kernel("zz9", 100 + at, 0.5) for at in range(3)], id="three of another at its end"),
    ],
)
def test_a_trace_without_a_kernel_that_marks_its_steps_is_summed_with_its_ends_and_says_so(tmp_path, more):
    events = [kernel("nvjet_a", 10 * at, 5) for at in range(6)]
    found = profile(tmp_path, [*events, *more], steps=3)
    assert (found.steps, found.whole, found.ends) == (3, 0, 0)
    assert found.span == pytest.approx((102.5 if more else 55) / 3, abs=1e-3)
    shown = report.lines([found], "x", categories())
    assert shown[0].startswith("x: 3 steps with cut ends") and shown[1].startswith("not left out: the ends of the trace")


def test_work_that_no_rule_knows_has_a_row_of_its_own(tmp_path):
    found = profile(tmp_path, [*step(0), kernel("zz9_plural_z_alpha", 32, 69)], steps=1)
    assert us(found)["unclassified"] == 69
    assert found.covered == pytest.approx(0.31, abs=1e-4)
    shown = report.lines([found], "x", categories())
    assert any(line.startswith("unclassified") and "69.0%" in line for line in shown)


def test_a_profiler_that_records_one_step_less_than_it_was_asked_for_is_noticed(tmp_path):
    events = [event for number in range(7) for event in step(40 * number)]
    assert profile(tmp_path, events, steps=8).steps == 7


def test_the_number_of_steps_is_found_when_nobody_knows_it():
    calls = {"layer": 12 * 7, "half": 6 * 7, "sampler": 7, "logits": 7, "graph": 7}
    work = [Work(name, KERNEL, 0.0, 1.0, "7") for name, count in calls.items() for _ in range(count)]
    assert count_steps(work) == (7, 1.0)


@pytest.mark.parametrize(("asked", "steps", "found"), [(None, 4, 4), (3, 4, 4), (4, 3, 3), (4, 4, 4), (8, 7, 7), (None, 6, 6)])
def test_the_number_of_steps_is_neither_layers_times_it_nor_its_half(asked, steps, found):
    # Twenty kernels in each of 61 layers, and three once a step.
    calls = {**{f"layer{number}": 61 * steps for number in range(20)}, **{f"once{number}": steps for number in range(3)}}
    work = [Work(name, KERNEL, 0.0, 1.0, "7") for name, count in calls.items() for _ in range(count)]
    assert count_steps(work, asked) == (found, 1.0)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "fixtures" / "traces").iterdir()), ids=lambda path: path.name
)
def test_the_steps_of_every_recorded_trace_are_found_without_asking(path):
    """Its sampler runs once a step: seven times on a card, twice on the CPU."""
    trace = read(path)
    sampler = "aten::argmax" if trace.cpu else "ArgMaxOps"
    ran = sum(sampler in work.name for work in trace.work)
    assert count_steps(trace.work)[0] == ran == (2 if trace.cpu else 7)


def test_what_repeats_in_no_order_counts_as_one_step():
    work = [Work(f"k{number}", KERNEL, 0.0, 1.0, "7") for number in range(7) for _ in range(number + 1)]
    assert count_steps(work)[0] == 1


def test_a_number_of_steps_that_does_not_divide_the_launches_is_called_a_guess(tmp_path):
    events = [kernel(f"k{number}", 10 * at, 1) for number in range(4) for at in range(11 + 2 * number)]
    found = profile(tmp_path, events, steps=8)
    assert "about 8 steps" in report.lines([found], "x", categories())[0]


def test_without_gpu_work_the_outermost_operators_are_counted(tmp_path):
    events = [
        operator("aten::linear", 0, 10),
        operator("aten::addmm", 1, 8),
        operator("aten::silu", 20, 5),
        operator("aten::mm", 0, 3, 101),
    ]
    found = profile(tmp_path, events, steps=1)
    assert found.cpu and us(found) == {"gemm": 13, "glue": 5}


def test_the_slowest_rank_is_the_one_that_works_while_the_others_wait(tmp_path):
    waits = profile(tmp_path, [kernel("nvjet_a", 0, 10), kernel("ncclDevKernel_AllReduce", 10, 30)], 1, "r-TP-0.trace.json.gz")
    works = profile(tmp_path, [kernel("nvjet_a", 0, 35), kernel("ncclDevKernel_AllReduce", 35, 5)], 1, "r-TP-1.trace.json.gz")
    assert slowest([waits, works]).rank == "TP-1"
    assert "TP-1 is the slowest" in report.lines([waits, works], "x", categories())[-1]


def test_a_comparison_tells_what_a_step_spends_more_and_less_on(tmp_path):
    before = profile(tmp_path, step(0), 1, "a-TP-0.trace.json.gz")
    after = profile(tmp_path, [*step(0)[:3], kernel("topk_transform_kernel", 40, 5)], 1, "b-TP-0.trace.json.gz")
    found = compare([before], [after])
    assert {change.name: round(change.delta, 3) for change in found.categories} == {
        "attention": 0,
        "gemm": 0,
        "mhc": 0,
        "copies": -1,
        "communication": -6,
        "indexer": 5,
    }
    assert found.kernels[0].name.startswith("ncclDevKernel")
    assert (found.kernels[0].us[1], found.kernels[1].us[0]) == (None, None)


def test_a_comparison_says_how_many_steps_of_how_many_requests_it_rests_on(tmp_path):
    whole = profile(tmp_path, [*step(0), *step(40), *step(80)], 3, "a-TP-0.trace.json.gz")
    events = [kernel(f"k{number}", 10 * at, 1) for number in range(4) for at in range(11 + 2 * number)]
    guess = profile(tmp_path, events, 8, "b-TP-1.trace.json.gz")
    found = compare([whole], [guess])
    assert report.difference(found, ("a", "b"), categories(), concurrency=(64, None))[:2] == [
        "A a (TP-0): 2 whole steps of 3, 64 at once",
        "B b (TP-1): about 8 steps with cut ends",
    ]
    told = found.to_json()
    assert (told["ranks"], told["steps"], told["whole"], told["agree"]) == (["TP-0", "TP-1"], [3, 8], [2, 0], [1.0, 0.0])


def test_a_profile_that_was_kept_before_whole_steps_were_told_is_one_with_its_ends(tmp_path):
    told = profile(tmp_path, [*step(0), *step(40)], 2).to_json()
    del told["whole"], told["ends"]
    found = from_json(told)
    assert report.lines([found], "x", categories())[0].startswith("x: 2 steps with cut ends")


def test_a_profile_is_read_again_as_it_was_saved(tmp_path):
    made = stored.summed([write(tmp_path / "run-TP-0.trace.json.gz", step(0))], {"steps": 1})
    stored.save(made, tmp_path)
    assert stored.load(tmp_path) == made
    assert from_json(json.loads(json.dumps(made.ranks[0].to_json()))) == made.ranks[0]


def test_the_ranks_of_a_folder_are_read_together(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"run-TP-{rank}.trace.json.gz", step(0))
    assert [rank.rank for rank in stored.load(tmp_path).ranks] == ["TP-0", "TP-1"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"traceEvents": []}', b"\x1f\x8bno", b'{"traceEvents": 3}'])
def test_what_is_no_trace_is_said_so(tmp_path, content):
    path = tmp_path / "x.trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(GpuopsError, match="is no trace of PyTorch's profiler"):
        read(path)


def test_a_compressed_trace_that_was_damaged_is_said_so(tmp_path):
    data = bytearray(gzip.compress(json.dumps(step(0)).encode()))
    data[20] ^= 0xFF
    path = tmp_path / "x.trace.json.gz"
    path.write_bytes(data)
    with pytest.raises(GpuopsError, match="is no trace of PyTorch's profiler"):
        read(path)


@pytest.mark.parametrize("odd", [{"ts": "x"}, {"ts": None}, {"name": None}, {"name": ["a"]}, {"tid": [7]}, {"dur": "2"}])
def test_an_event_that_does_not_say_what_worked_when_and_where_is_left_out(tmp_path, odd):
    path = tmp_path / "x.trace.json"
    path.write_text(json.dumps([*step(0), {**step(1)[0], **odd}]))
    assert len(read(path).work) == 5


def test_a_trace_whose_clock_was_too_coarse_is_shown_without_shares(tmp_path):
    path = tmp_path / "x.trace.json"
    path.write_text(json.dumps([{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 0, "tid": 7}]))
    told = report.lines((summarise(read(path), categories()),), "x", categories())
    assert any("launches" in line for line in told) and not any("%" in line for line in told if line.startswith("busy"))


def test_a_bare_list_of_events_is_a_trace_too(tmp_path):
    path = tmp_path / "x.trace.json"
    path.write_text(json.dumps(step(0)))
    assert len(read(path).work) == 5


def test_a_recorded_trace_of_the_real_engine_agrees_with_a_count_by_hand():
    """SmolLM2 has 30 layers: four products, one attention for each of two requests, and two norms in each; one product and one norm at the end."""
    path = Path(__file__).parents[2] / "fixtures" / "traces" / "smollm2_cpu-TP-0.trace.json.gz"
    found = summarise(read(path), categories())
    calls = {row.name: row.launches for row in found.kernels}
    # From one embedding to the next.
    assert (found.cpu, found.steps, found.whole, found.rank) == (True, 2, 1, "TP-0")
    assert calls["aten::linear"] == 30 * 4
    assert calls["aten::scaled_dot_product_attention"] == 30 * 2
    assert calls["aten::mean"] == 30 * 2 + 1
    assert calls["aten::matmul"] == 1
    assert found.covered >= 0.97


def test_a_recorded_trace_of_a_card_agrees_with_a_count_by_hand():
    """DeepSeek-V4 cut to 6 layers, each with an mHC before attention and one before its experts, all asked of 8 steps: SGLang recorded 7."""
    path = Path(__file__).parents[2] / "fixtures" / "traces" / "dsv4_kernel_pack_h200-TP-0.trace.json.gz"
    found = summarise(read(path), categories(), steps=8)
    calls = {row.name: (row.launches, row.category) for row in found.kernels}
    assert (found.cpu, found.steps, found.rank) == (False, 7, "TP-0")
    assert calls["mla_decode_split"] == calls["mla_decode_combine"] == (6, "attention")
    assert calls["linear_partials"] == calls["pre_finish"] == (12, "mhc")
    assert calls["fused_moe_kernel"] == (12, "moe")
    # Counted in the file's events: 1812 of its 2126 kernels, and 30 copies, begin between the first and the seventh clamp_position_kernel, which
    # begin 21190.4 us apart; a sweep over the events there finds 12762.2 us without work, at most 827.4 at a time.
    assert (found.whole, found.launches, found.copies) == (6, 1812 / 6, 30 / 6)
    assert [found.span, found.idle] == pytest.approx([21190.4 / 6, 12762.2 / 6], abs=0.1)
    assert found.gaps.most == pytest.approx(827.4, abs=0.1)


def test_a_recorded_trace_whose_profiler_held_the_card_up_tells_its_whole_steps():
    """The same of stock at 64 requests: after the last kernels of a cut step, 28.6 ms pass until the first whole one begins its work."""
    path = Path(__file__).parents[2] / "fixtures" / "traces" / "dsv4_stock_h200-TP-0.trace.json.gz"
    found = summarise(read(path), categories(), steps=8)
    # Counted as above: 3564 kernels and 24 copies in 203549.6 us, 1168.3 of them without work, at most 4.6 at a time.
    assert (found.steps, found.whole, found.launches, found.copies) == (7, 6, 3564 / 6, 24 / 6)
    assert [found.span, found.idle] == pytest.approx([203549.6 / 6, 1168.3 / 6], abs=0.1)
    assert found.gaps.most == pytest.approx(4.6, abs=0.1)
    assert found.ends == pytest.approx(63572.5, abs=0.1)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "fixtures" / "traces").iterdir()), ids=lambda path: path.name
)
def test_the_categories_cover_every_recorded_trace(path):
    found = summarise(read(path), categories())
    unknown = [row.name for row in found.kernels if row.category == "unclassified"]
    assert found.covered >= 0.97, unknown
