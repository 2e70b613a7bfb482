"""The indexer on a card: against float64, in CUDA graphs whose lengths change between replays, and under torch.compile."""

from __future__ import annotations

import random

import pytest
import torch

from gpuops_kernels import numerics
from gpuops_kernels.indexer import cases, op, reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# fp8 products are exact; what is left is the order and width of the tensor cores' accumulation.
WORST_DIFFERENCE = 1e-6

# Neither a slot, nor a position, nor the -1 of an empty place.
UNWRITTEN = 1_234_567_890

LENGTHS = {
    "one short row": [70],
    "page borders": [1, 63, 64, 65, 128, 1],
    "padded rows among others": [0, 300, -7, 0, 64, 0, 1, 0],
    "nothing at all": [0, 0, 0],
    "sixteen of 1,024": [1024] * 16,
    "one long, sixty-three short": cases.skewed(),
    "more rows than one chunk of lengths": [random.Random(0).randrange(-2, 400) for _ in range(700)],
    "one row of 100,000": [100_000],
}


@pytest.fixture
def seed() -> int:
    return random.SystemRandom().randrange(1 << 30)


def _scores(case: cases.Case) -> torch.Tensor:
    out = numerics.poison(torch.empty(case.q.shape[0], case.width, dtype=torch.float32, device="cuda"))
    return op.logits(*case.arguments, out=out)


def _assert_right(case: cases.Case, scores: torch.Tensor) -> None:
    expected = reference.logits(*case.arguments[:-1])
    got = torch.cat([row[: each.numel()] for row, each in zip(scores, expected, strict=True)])
    assert numerics.calc_diff(got, torch.cat(expected)) < WORST_DIFFERENCE
    assert numerics.relative_error(got, torch.cat(expected)) < 2e-3


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("gap", [0, 48])
def test_logits_agree_with_float64_and_nothing_else_is_written(lengths: list[int], gap: int, seed: int) -> None:
    case = cases.make("cuda", lengths, seed, gap=gap)
    scores = _scores(case)
    _assert_right(case, scores)
    columns = torch.arange(case.width, device="cuda")
    assert bool(torch.isnan(scores[columns[None, :] >= case.lengths[:, None]]).all())


@pytest.mark.parametrize("k", [512, 1024])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_topk_takes_the_largest_of_the_valid_entries(lengths: list[int], k: int, seed: int) -> None:
    case = cases.make("cuda", lengths, seed)
    scores = _scores(case)
    slots = torch.full((len(lengths), k), UNWRITTEN, dtype=torch.int32, device="cuda")
    raw = slots.clone()
    op.topk_transform(scores, case.lengths, case.page_table, slots, op.PAGE, raw)
    for row, length in enumerate(lengths):
        assert reference.topk_error(raw[row], scores[row], length) == ""
        assert torch.equal(slots[row], reference.slots(raw[row].long(), case.page_table[row], op.PAGE))


@pytest.mark.parametrize("length", [513, 4096, 4097, 8191, 40_000, 262_144])
@pytest.mark.parametrize("values", ["normal", "few", "zeros", "rising", "infinities"])
def test_topk_takes_the_largest_of_any_scores(length: int, values: str, seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    made = torch.randn(2, length + (-length) % 64, generator=generator, device="cuda")
    scores = {
        "normal": made,
        "few": made.round(),
        "zeros": made.clamp_max(0) + 0.0,
        "rising": made.sort(dim=1).values,
        "infinities": torch.where(made > 1, float("inf"), torch.where(made < -1, -float("inf"), made)),
    }[values].contiguous()
    lengths = torch.tensor([length, length // 2], dtype=torch.int32, device="cuda")
    table = torch.randint(0, 9999, (2, scores.shape[1] // 64), generator=generator, device="cuda", dtype=torch.int32)
    slots = torch.full((2, 512), UNWRITTEN, dtype=torch.int32, device="cuda")
    raw = slots.clone()
    op.topk(scores, lengths, table, slots, raw=raw)
    for row in range(2):
        assert reference.topk_error(raw[row], scores[row], int(lengths[row])) == ""


def _step(case: cases.Case, scores: torch.Tensor, slots: torch.Tensor) -> None:
    op.logits(*case.arguments, out=scores)
    op.topk(scores, case.lengths, case.page_table, slots)


def test_a_graph_follows_lengths_that_change_between_replays_bit_for_bit(seed: int) -> None:
    case = cases.make("cuda", [6000] * 8, seed)
    scores = torch.empty(8, case.width, dtype=torch.float32, device="cuda")
    slots = torch.empty(8, 512, dtype=torch.int32, device="cuda")
    _step(case, scores, slots)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _step(case, scores, slots)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _step(case, scores, slots)
    for lengths in ([6000] * 8, [0] * 8, [1, 64, 65, 512, 513, 4096, 4097, 6000], [-3, 6000, 0, 7, 6000, 0, 0, 5000]):
        case.lengths.copy_(torch.tensor(lengths))
        numerics.poison(scores)
        slots.fill_(UNWRITTEN)
        graph.replay()
        eager_scores, eager_slots = numerics.poison(torch.empty_like(scores)), torch.full_like(slots, UNWRITTEN)
        _step(case, eager_scores, eager_slots)
        torch.cuda.synchronize()
        assert torch.equal(scores.view(torch.int32), eager_scores.view(torch.int32))
        assert torch.equal(slots, eager_slots)
        assert bool((slots != UNWRITTEN).all())
        _assert_right(case, scores)


def test_torch_compile_gives_the_same_bits(seed: int) -> None:
    case = cases.make("cuda", [1000, 0, 5000], seed)
    slots = torch.empty(3, 512, dtype=torch.int32, device="cuda")

    def step(
        q: torch.Tensor, cache: torch.Tensor, weights: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor
    ) -> torch.Tensor:
        scores = op.fp8_paged_mqa_logits(q.unsqueeze(1), cache, weights * 2.0, lengths, table, None, case.width, True)
        op.topk_transform(scores, lengths, table, slots, op.PAGE)
        return scores

    expected = step(*case.arguments[:-1])
    expected_slots = slots.clone()
    slots.fill_(UNWRITTEN)
    got = torch.compile(step, fullgraph=True)(*case.arguments[:-1])
    assert torch.equal(got, expected)
    assert torch.equal(slots, expected_slots)


def test_clean_logits_fills_the_rest_with_minus_infinity(seed: int) -> None:
    case = cases.make("cuda", [70, 0], seed)
    scores = op.fp8_paged_mqa_logits(
        case.q.unsqueeze(1), case.cache, case.weights, case.lengths, case.page_table, None, case.width, True
    )
    assert (
        bool(torch.isfinite(scores[0, :70]).all())
        and bool((scores[0, 70:] == float("-inf")).all())
        and bool((scores[1] == float("-inf")).all())
    )
