"""The indexer's kernels in the interpreter: any lengths, any page stride, any scores."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops_kernels import numerics
from gpuops_kernels.indexer import cases, kernel, op, reference

PROGRAMS = 3

few = settings(max_examples=8, deadline=None)


@pytest.fixture(autouse=True)
def _small_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of three multiprocessors, lengths read eight at a time, and rows of more than 64 entries treated as long."""
    options = {
        "indexer.logits": {"ROWS": 8, "num_warps": 4, "num_stages": 1},
        "indexer.topk": {"CAP": 64, "TILE": 32, "num_warps": 4, "num_stages": 1},
    }
    monkeypatch.setattr(op, "_limits", lambda device, kernel, shape: (PROGRAMS, options[kernel]))


def _scores(case: cases.Case) -> torch.Tensor:
    return op.logits(*case.arguments, out=numerics.poison(torch.empty(case.q.shape[0], case.width)))


def _assert_right(case: cases.Case, scores: torch.Tensor) -> None:
    for row, expected in zip(scores, reference.logits(*case.arguments[:-1]), strict=True):
        assert numerics.relative_error(row[: expected.numel()], expected) < 1e-5
        assert bool(torch.isnan(row[expected.numel() :]).all())


@few
@given(
    lengths=st.lists(st.integers(-3, 200), min_size=1, max_size=20), gap=st.sampled_from([0, 16]), seed=st.integers(0, 1 << 30)
)
def test_logits_agree_with_float64_and_nothing_else_is_written_or_read(lengths: list[int], gap: int, seed: int) -> None:
    case = cases.make("cpu", lengths, seed, gap=gap)
    _assert_right(case, _scores(case))


@pytest.mark.parametrize("lengths", [[0], [0] * 9, [0] * 17 + [130], [64, 128, 1], [900] + [5] * 7], ids=str)
def test_logits_of_batches_at_the_borders_of_the_search(lengths: list[int]) -> None:
    case = cases.make("cpu", lengths, seed=1)
    _assert_right(case, _scores(case))


def test_a_negative_page_is_read_as_page_0() -> None:
    case = cases.make("cpu", [64], seed=2)
    case.page_table.fill_(-1)
    scores = _scores(case)
    expected = reference.logits(*case.arguments[:3], case.lengths, torch.zeros_like(case.page_table))[0]
    torch.testing.assert_close(scores[0].double(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_lengths_beyond_the_page_table_and_the_output_are_cut() -> None:
    case = cases.make("cpu", [128, 70], seed=3)
    case.lengths.fill_(10_000)
    out = numerics.poison(torch.empty(2, 100))
    op.logits(*case.arguments[:-1], 96, out=out[:, :96])
    assert bool(torch.isnan(out[:, 96:]).all())
    assert numerics.relative_error(out[0, :96], reference.logits(*case.arguments[:-1])[0][:96]) < 1e-5


def test_the_same_launch_follows_lengths_that_change_in_place() -> None:
    case = cases.make("cpu", [200, 200, 200], seed=4)
    for lengths in ([200, 200, 200], [0, 0, 0], [1, 200, -5], [64, 65, 0]):
        case.lengths.copy_(torch.tensor(lengths))
        _assert_right(case, _scores(case))


def test_the_operators_are_what_torch_compile_takes_them_for() -> None:
    case = cases.make("cpu", [200, 70, 0], seed=7)
    out, slots = torch.zeros(3, case.width), torch.zeros(3, 16, dtype=torch.int32)
    # That nothing else is written cannot be checked of the first: opcheck does arithmetic that torch has not for float8 on the CPU.
    torch.library.opcheck(torch.ops.gpuops.indexer_logits, (*case.arguments[:-1], out), test_utils="test_faketensor")
    arguments = (out, case.lengths, case.page_table, slots, slots.clone(), op.PAGE)
    torch.library.opcheck(torch.ops.gpuops.indexer_topk, arguments, test_utils=("test_schema", "test_faketensor"))


@few
@given(lengths=st.lists(st.integers(-3, 2000), min_size=1, max_size=20))
def test_every_page_belongs_to_one_program_and_shares_are_even(lengths: list[int]) -> None:
    done: dict[int, list[tuple[int, int]]] = {}

    def noting(q, cache, weights, table, logits, row, first, last, *rest):  # type: ignore[no-untyped-def]
        program, row, first, last = (int(value.handle.data.item()) for value in (tl.program_id(0), row, first, last))
        done.setdefault(program, []).extend((row, page) for page in range(first, last))

    case = cases.make("cpu", lengths, seed=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "score_pages", noting)
        _scores(case)
    expected = [(row, page) for row, length in enumerate(lengths) for page in range(-(-max(length, 0) // op.PAGE))]
    assert [unit for program in sorted(done) for unit in done[program]] == expected
    share = -(-len(expected) // PROGRAMS)
    assert all(len(units) <= share for units in done.values())


def _selected(scores: torch.Tensor, lengths: list[int], page_size: int = 64) -> None:
    rows, width = scores.shape
    generator = torch.Generator().manual_seed(6)
    table = torch.randint(0, 1000, (rows, -(-width // page_size)), generator=generator, dtype=torch.int32)
    slots = numerics.poison(torch.empty(rows, 16, dtype=torch.int32)) - 6
    raw = slots.clone()
    poisoned = scores.clone()
    for row, length in enumerate(lengths):
        poisoned[row, max(length, 0) :] = float("nan")
    op.topk(poisoned, torch.tensor(lengths, dtype=torch.int32), table, slots, page_size, raw)
    for row, length in enumerate(lengths):
        assert reference.topk_error(raw[row], scores[row], length) == ""
        assert torch.equal(slots[row], reference.slots(raw[row].long(), table[row], page_size))


@few
@given(
    lengths=st.lists(st.integers(-2, 400), min_size=1, max_size=6),
    distinct=st.sampled_from([2, 9, 1 << 20]),
    seed=st.integers(0, 1 << 30),
)
def test_topk_takes_the_largest_valid_entries(lengths: list[int], distinct: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-distinct, distinct + 1, (len(lengths), 400), generator=generator) / 7.0
    _selected(scores, lengths)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 63, 64, 65, 128, 129, 1000])
def test_topk_at_the_borders_of_its_three_ways(length: int) -> None:
    _selected(torch.randn(1, 1000, generator=torch.Generator().manual_seed(length)), [length])


@pytest.mark.parametrize("value", [0.0, -1.5, float("inf"), -float("inf")])
def test_topk_of_a_long_row_of_equals_takes_the_first(value: float) -> None:
    scores = torch.full((1, 400), value)
    slots = torch.empty(1, 16, dtype=torch.int32)
    op.topk(scores, torch.tensor([400], dtype=torch.int32), torch.arange(7, dtype=torch.int32)[None], slots)
    assert slots[0].tolist() == list(range(16))


def test_topk_of_a_long_row_whose_few_largest_hide_among_equals() -> None:
    scores = torch.zeros(1, 1000)
    scores[0, [3, 500, 998]] = torch.tensor([1.0, 2.0, 3.0])
    scores[0, ::7] -= 1
    _selected(scores, [1000])


def test_topk_of_a_rising_row() -> None:
    _selected(torch.arange(1000.0)[None], [1000])


def test_topk_with_other_pages() -> None:
    _selected(torch.randn(1, 320, generator=torch.Generator().manual_seed(7)), [300], page_size=2)


def test_wrong_inputs_are_named() -> None:
    case = cases.make("cpu", [64], seed=8)
    with pytest.raises(ValueError, match="lengths: contiguous int32"):
        op.logits(case.q, case.cache, case.weights, case.lengths.long(), case.page_table, case.width)
    with pytest.raises(ValueError, match="q: contiguous"):
        op.logits(case.q[:, :32], case.cache, case.weights, case.lengths, case.page_table, case.width)
    with pytest.raises(ValueError, match="cache: pages of 8448 bytes"):
        op.logits(case.q, case.cache.view(-1)[: 8448 - 16].view(1, -1), case.weights, case.lengths, case.page_table, case.width)
    with pytest.raises(ValueError, match="rows that start 16 bytes aligned"):
        op.topk(torch.zeros(1, 63), case.lengths, case.page_table, torch.empty(1, 16, dtype=torch.int32))
