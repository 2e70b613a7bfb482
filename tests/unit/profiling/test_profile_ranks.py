"""Profiles of several ranks: communication on its own, the rank that the others wait for, and why it is late.

The ranks are made from one recorded trace of a card: the same kernels on each, an all-reduce after every layer's experts that ends everywhere at the
same time, and one rank that is slower in some way.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from traces import Json, kernel, step, write

from gpuops.engines.profiling import categories
from gpuops.errors import GpuopsError
from gpuops.profiling import stored
from gpuops.profiling.ranks import explain, slowest
from gpuops.profiling.summary import RankProfile, summarise
from gpuops.profiling.trace import read
from gpuops.report import profile as report

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
RECORDED = TRACES / "dsv4_kernel_pack_h200-TP-0.trace.json.gz"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_US = 5.0

Slower = Callable[[str], float]
"""Microseconds that a kernel of a name takes longer."""


def recorded() -> list[tuple[str, float, float]]:
    """(name, microseconds, idle before it) of the recorded rank's kernels, one after the other."""
    events = [
        event for event in json.loads(gzip.decompress(RECORDED.read_bytes()))["traceEvents"] if event.get("cat") == "kernel"
    ]
    found, last = [], None
    for event in sorted(events, key=lambda event: event["ts"]):
        gap = 0.0 if last is None else max(0.0, event["ts"] - last)
        found.append((event["name"], event["dur"], gap))
        last = event["ts"] + event["dur"]
    return found


def several(
    folder: Path, number: int, late: int, slower: Slower = lambda name: 0.0, idle: Slower = lambda name: 0.0
) -> list[RankProfile]:
    """The profiles of so many ranks of which ``late`` takes longer, by ``slower`` in its kernels and by ``idle`` before them."""
    ready = [0.0] * number
    events: list[list[Json]] = [[] for _ in range(number)]
    experts = 0
    for name, us, gap in recorded():
        for rank in range(number):
            more, pause = (slower(name), idle(name)) if rank == late else (0.0, 0.0)
            start = ready[rank] + gap + pause
            events[rank].append(kernel(name, start, us + more))
            ready[rank] = start + us + more
        experts += name == "fused_moe_kernel"
        # Two products an expert layer; then the ranks' partial results are added up.
        if name == "fused_moe_kernel" and experts % 2 == 0:
            end = max(ready) + REDUCE_US
            for rank in range(number):
                events[rank].append(kernel(ALL_REDUCE, ready[rank], end - ready[rank]))
                ready[rank] = end
    paths = [write(folder / f"gpuops-1-TP-{rank}.trace.json.gz", events[rank]) for rank in range(number)]
    return [summarise(read(path), categories(), 8) for path in paths]


def test_communication_is_a_category_of_its_own_on_every_rank(tmp_path: Path) -> None:
    found = several(tmp_path, 2, late=0)
    assert [(rank.rank, rank.steps) for rank in found] == [("TP-0", 7), ("TP-1", 7)]
    # Six layers, of which each adds up once.
    assert [rank.us("communication") for rank in found] == [pytest.approx(6 * REDUCE_US, abs=0.1)] * 2
    assert all(rank.covered >= 0.97 for rank in found)


def test_two_recorded_ranks_agree_with_a_count_by_hand() -> None:
    """DeepSeek-V4 cut to 6 layers on two cards: an all-reduce after the embedding and two in each layer, then the logits are gathered."""
    found = [summarise(read(TRACES / f"dsv4_kernel_pack_2xh200-TP-{rank}.trace.json.gz"), categories(), 8) for rank in range(2)]
    assert [(each.rank, each.steps) for each in found] == [("TP-0", 7), ("TP-1", 7)]
    for each in found:
        calls = {row.name.partition("(")[0]: row.launches for row in each.kernels if row.category == "communication"}
        assert calls == {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 13, "ncclDevKernel_AllGather_RING_LL": 1}
        assert each.us("attention") > 0 and each.covered >= 0.97
    # In the file TP-0's first all-reduce takes 9,329 us, for TP-1's profiler; of its others the longest takes 569.
    assert found[0].left_out == pytest.approx(9329 - 569, abs=1) and found[1].left_out == 0
    # Summed over the file's NCCL kernels between the first and the seventh clamp_position_kernel: 84 on each rank, that first one among them.
    assert [each.whole for each in found] == [6, 6]
    assert found[0].us("communication") == pytest.approx((12216.5 - found[0].left_out) / 6, abs=0.1)
    assert found[1].us("communication") == pytest.approx(1105.0 / 6, abs=0.1)
    # Those begin 35096.9 and 26313.6 us apart.
    assert [each.span for each in found] == pytest.approx([(35096.9 - found[0].left_out) / 6, 26313.6 / 6], abs=0.1)
    told = explain(found)
    assert told is not None and (told.rank, [reason.category for reason in told.reasons]) == ("TP-1", ["idle"])
    lines = report.lines(found, "x", categories())
    assert lines[-2] == "left out: the first collective's wait for the other ranks' profilers: TP-0 8.8 ms"


def test_the_wait_for_another_ranks_profiler_is_cut_and_gaps_before_it_are_kept(tmp_path: Path) -> None:
    works = [kernel("nvjet_a", 0, 1.0), kernel("fused_moe_kernel", 2, 5.0), kernel("fused_moe_kernel", 10, 2.0)]
    works += [kernel(ALL_REDUCE, 13, 1000.0), kernel("nvjet_a", 1014, 1.0)]
    works += [kernel("fused_moe_kernel", 1016, 5.0), kernel("fused_moe_kernel", 1024, 2.0), kernel(ALL_REDUCE, 1027, 40.0)]
    found = summarise(read(write(tmp_path / "a-TP-0.trace.json.gz", works)), categories(), 2)
    # One whole step, from GEMM to GEMM, with 1-2, 7-10 and 12-13 before the all-reduce and 1013-1014 after it.
    assert (found.left_out, found.us("communication"), found.span) == (960.0, 40.0, 1014 - 960)
    assert (found.gaps.count, found.gaps.most, found.idle) == (4, 3.0, 6)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_the_wait_is_cut_where_other_work_overlaps_its_begin_or_runs_beside_it(
    overlap: float, beside: bool, tmp_path: Path
) -> None:
    works, at = [], 0.0
    for us in (5000.0, 20.0, 20.0):
        # A GEMM that ends within the all-reduce, and the next one 2 us after that.
        works += [kernel("nvjet_a", at, 100.0 + overlap), kernel(ALL_REDUCE, at + 100, us)]
        at += 100 + us + 2
    if beside:
        works.append(kernel("pre_finish", 2000, 10.0, stream=9))
    found = summarise(read(write(tmp_path / "a-TP-0.trace.json.gz", works)), categories(), 3)
    # Two whole steps, each 100 us of GEMM, 20 of all-reduce and 2 without work.
    assert (found.whole, found.left_out) == (2, 4980.0)
    # And the third step, which nothing ends.
    assert found.ends == pytest.approx(120, abs=1e-3)
    assert [found.span, found.busy, found.idle, found.gaps.most] == pytest.approx([122, 120, 2, 2], abs=1e-3)
    assert [found.us("communication"), found.us("mhc")] == pytest.approx([20, 5 if beside else 0], abs=1e-3)


def test_the_rank_that_waits_least_is_the_slowest_with_the_work_that_it_does_longer(tmp_path: Path) -> None:
    found = several(tmp_path, 4, late=2, slower=lambda name: 30.0 if name == "fused_moe_kernel" else 0.0)
    told = explain(found)
    assert told is not None and (told.rank, told.stands_out) == ("TP-2", True)
    assert told.waits == pytest.approx(6 * REDUCE_US, abs=0.1)
    # Twelve products a step, of which each takes 30 us longer.
    assert told.others - told.waits == pytest.approx(12 * 30.0, rel=0.01)
    assert [(reason.category, round(reason.us)) for reason in told.reasons] == [("moe", 360)]
    line = report.lines(found, "x", categories())[-1]
    assert line.startswith("TP-2 is the slowest, the others wait for it") and "MoE: router and experts +360" in line


def test_a_rank_whose_host_is_late_works_no_longer_and_is_idle_longer(tmp_path: Path) -> None:
    found = several(tmp_path, 2, late=1, idle=lambda name: 20.0 if name == "mla_decode_split" else 0.0)
    told = explain(found)
    assert told is not None and (told.rank, [reason.category for reason in told.reasons]) == ("TP-1", ["idle"])
    # By its own work alone it could not be told from the other.
    assert found[0].own == pytest.approx(found[1].own, rel=1e-3)
    assert "idle (its host was late) +" in report.lines(found, "x", categories())[-1]


def test_equal_ranks_have_no_slowest(tmp_path: Path) -> None:
    found = several(tmp_path, 2, late=0, slower=lambda name: 0.01)
    told = explain(found)
    assert told is not None and not told.stands_out
    assert report.lines(found, "x", categories())[-1].startswith("no rank is late")


def test_a_single_rank_and_ranks_without_communication_are_not_explained(tmp_path: Path) -> None:
    alone = summarise(read(write(tmp_path / "a-TP-0.trace.json.gz", step(0))), categories(), 1)
    assert explain([alone]) is None
    quiet = [
        summarise(
            read(write(tmp_path / f"q-TP-{rank}.trace.json.gz", [kernel("fused_moe_kernel", 0, 5.0 + rank)])), categories(), 1
        )
        for rank in range(2)
    ]
    assert explain(quiet) is None and slowest(quiet).rank == "TP-1"


def test_a_kept_profile_names_its_slowest_rank(tmp_path: Path) -> None:
    several(tmp_path, 2, late=1, slower=lambda name: 30.0 if name == "fused_moe_kernel" else 0.0)
    made = stored.load(tmp_path)
    assert made.to_json()["slowest"]["rank"] == "TP-1"
    stored.save(made, tmp_path)
    assert stored.load(tmp_path) == made


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda told: told.update(ranks=[]), "it has no rank"),
        (lambda told: told.update(ranks=[3]), "'int' object has no attribute 'items'"),
        (lambda told: told.update(about="x"), "about: 'x'"),
        (lambda told: told["ranks"][0].update(span="x"), "'x' is no number"),
        (lambda told: told["ranks"][0]["kernels"][0].update(us=None), "None is no number"),
        (lambda told: told["ranks"][0]["kernels"][0].update(name=3), "3 is no name"),
        (lambda told: told["ranks"][0].pop("gaps"), "'gaps'"),
    ],
)
def test_a_damaged_profile_says_what_is_wrong_with_it(change: Callable[[Json], None], why: str, tmp_path: Path) -> None:
    several(tmp_path, 2, late=1)
    path = stored.save(stored.load(tmp_path), tmp_path)
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))
    with pytest.raises(GpuopsError, match="is no profile") as damaged:
        stored.load(tmp_path)
    assert str(path) in damaged.value.evidence and why in damaged.value.evidence


def test_a_category_that_this_gpuops_does_not_know_is_shown_by_its_name(tmp_path: Path) -> None:
    several(tmp_path, 2, late=1)
    path = stored.save(stored.load(tmp_path), tmp_path)
    path.write_text(path.read_text().replace('"communication"', '"telepathy"'))
    assert any(line.startswith("telepathy") for line in report.lines(stored.load(tmp_path).ranks, "x", categories()))


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16",
        "void sglang::cross_device_reduce_2stage<__nv_bfloat16, 2>",
        "void (anonymous namespace)::all_reduce_1shot_push_kernel<__nv_bfloat16, 2u, true>",
        "void (anonymous namespace)::all_reduce_mhc_post_kernel<8>",
        "void at::native::one_shot_all_reduce_kernel<c10::BFloat16, 16, 2, false>",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<0, __nv_bfloat16, 2>",
        "_all_gather_kernel_inner",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>",
    ],
)
def test_what_carries_data_between_cards_is_communication(name: str) -> None:
    assert categories().of(name) == "communication"
