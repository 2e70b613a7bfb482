"""What the benchmark says of peers, without a card: the timing itself is replaced."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from gpuops_kernels import bench, benchmarking, configs
from gpuops_kernels.indexer import bench as indexer
from gpuops_kernels.indexer import cases as indexer_cases
from gpuops_kernels.mhc import bench as mhc
from gpuops_kernels.mla_decode import bench as mla_decode
from gpuops_kernels.mla_decode import cases, op

CEILINGS = benchmarking.Ceilings(1e12, 1e15)


@pytest.fixture(autouse=True)
def timing(monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(calls: list[benchmarking.Call]) -> list[object]:
        return [call() for call in calls]

    monkeypatch.setattr(benchmarking, "_captured", captured)
    monkeypatch.setattr(benchmarking, "_replayed", lambda graphs: dict.fromkeys(graphs, 1.0))


def test_a_peer_that_is_not_there_or_fails_is_named_with_its_reason_and_the_others_are_timed() -> None:
    def absent() -> list[benchmarking.Call]:
        raise AttributeError("libcudart_stub.so: undefined symbol: cudaDeviceReset\nand more")

    def fails() -> object:
        raise RuntimeError

    times, missing = benchmarking.against([lambda: 0], {"torch": absent, "fast": lambda: [lambda: 0], "broken": lambda: [fails]})
    assert set(times) == {"ours", "fast"}
    assert missing == [
        "peer not available: torch (AttributeError: libcudart_stub.so: undefined symbol: cudaDeviceReset)",
        "peer not available: broken (RuntimeError)",
    ]


def test_an_error_of_ours_is_an_error() -> None:
    def fails() -> object:
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        benchmarking.against([fails], {})


@pytest.mark.parametrize("heads", bench.HEADS)
@pytest.mark.parametrize("capability", [(9, 0), (12, 0)])
def test_every_share_of_the_heads_has_a_configuration(heads: int, capability: configs.Capability) -> None:
    assert configs.of(capability, "mla_decode.split", op.shape_key(heads)).constants["BLOCK_H"] <= max(heads, 32)


@pytest.mark.parametrize("heads", [8, 16, 32, 64])
def test_a_rank_is_measured_with_its_own_heads_and_stock_with_as_many_as_the_engine_pads_it_to(
    heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[int]] = {"ours": set(), "stock": set()}
    monkeypatch.setattr(mla_decode, "_ours", lambda case: seen["ours"].add(case.q.shape[1]))
    monkeypatch.setattr(mla_decode, "_error", lambda case: 0.0)
    monkeypatch.setattr(mla_decode, "_make", lambda device, batch, heads: [cases.make(device, batch, heads, 0, lengths=[128])])

    def stock(case: cases.Case) -> benchmarking.Call:
        return functools.partial(seen["stock"].add, case.q.shape[1])

    monkeypatch.setattr(mla_decode, "_stock", stock)
    monkeypatch.setitem(mla_decode._PEERS, "stock", stock)

    told = mla_decode.per_rank(torch.device("cpu"), CEILINGS, heads)

    assert [figure.case for figure in told] == [f"MLA decode, {heads} heads, B={batch}, 128+512 tokens" for batch in (1, 16, 64)]
    assert seen == {"ours": {heads}, "stock": {heads, 64}}


@pytest.mark.parametrize(
    ("error", "met", "words"), [(1e-3, True, "error 1.0e-03"), (5e-3, False, "WRONG"), (float("nan"), False, "error nan: WRONG")]
)
def test_a_decode_that_is_wrong_meets_no_goal_however_fast_it_is(
    error: float, met: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mla_decode, "_ours", lambda case: None)
    monkeypatch.setattr(mla_decode, "_error", lambda case: error)
    made = [cases.make("cpu", 1, 8, 0, lengths=[128])]
    goal = "<= 14 us", lambda ours, peers: ours <= 14
    figure = mla_decode._figure("a decode", made, (), goal, CEILINGS)
    assert figure.met is met and words in figure.note
    missing = mla_decode._figure("a decode", made, (), ("<= 2.5x FlashMLA", lambda ours, peers: None), CEILINGS)
    assert missing.met is (None if met else False)
    untold = mla_decode._figure("a decode", made, (), ("", lambda ours, peers: None), CEILINGS)
    assert untold.met is None and words in untold.note


@pytest.fixture
def indexer_times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    times = {"ours": 6.0, "unbalanced": 70.0, "deep_gemm": 6.0}
    monkeypatch.setattr(indexer, "_times", lambda made, peers: (dict(times), ""))
    monkeypatch.setattr(indexer, "_difference", lambda case: 1e-8)
    return times


@pytest.mark.parametrize("absent", ["deep_gemm", "unbalanced"])
def test_without_a_peer_that_the_goal_names_the_indexer_is_not_judged(absent: str, indexer_times: dict[str, float]) -> None:
    made = [indexer_cases.make("cpu", [64], 0)]
    assert indexer._skewed(made, CEILINGS).met is True
    del indexer_times[absent]
    assert indexer._skewed(made, CEILINGS).met is None


@pytest.mark.parametrize("figure", [indexer._short, indexer._skewed, indexer._full])
def test_logits_that_are_wrong_meet_no_goal_however_fast_they_are(
    figure: Callable[..., benchmarking.Figure], indexer_times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [indexer_cases.make("cpu", [64], 0)]
    assert figure(made, CEILINGS).met is not False and "calc_diff 1.0e-08" in figure(made, CEILINGS).note
    monkeypatch.setattr(indexer, "_difference", lambda case: float("nan"))
    assert figure(made, CEILINGS).met in (False, None) and "calc_diff nan: WRONG" in figure(made, CEILINGS).note
    assert (figure(made, CEILINGS).met is None) == (figure is indexer._full)


def test_the_difference_of_the_logits_is_over_what_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    case = indexer_cases.make("cpu", [64, 3], 0, width=128)
    rows = indexer.reference.logits(*case.arguments[:-1])

    def logits(*arguments: object, out: torch.Tensor) -> torch.Tensor:
        for row, each in enumerate(rows):
            out[row, : each.numel()] = each
        return out

    monkeypatch.setattr(indexer.op, "logits", logits)
    assert indexer._difference(case) < 1e-12
    rows = [each + 1 for each in rows]
    assert not indexer._difference(case) < indexer.reference.WORST_DIFFERENCE


L2 = 128_000_000


@pytest.fixture
def l2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarking, "l2_bytes", lambda device: L2)


@pytest.mark.parametrize(("touched", "sets"), [(147_000_000, 2), (100_000_000, 3), (2_000_000, 128), (300_000, 200)])
def test_inputs_in_turn_touch_twice_the_l2_of_the_card_or_are_said_to_be_in_it(touched: int, sets: int, l2: None) -> None:
    device = torch.device("cpu")
    assert benchmarking.rotating(device, lambda seed: seed, lambda _: touched) == list(range(sets))
    note = benchmarking.warmth(device, sets, touched)
    assert note == ("" if sets * touched >= 2 * L2 else "L2-warm: 200 sets of inputs touch 60.0 MB, the L2 holds 128 MB")


def test_no_more_inputs_are_made_than_the_card_has_room_for(l2: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = iter([True, True, False])
    monkeypatch.setattr(benchmarking, "_has_room", lambda device: next(rooms))
    made = benchmarking.rotating(torch.device("cpu"), lambda seed: seed, lambda _: 2_000_000)
    assert made == [0, 1, 2, 3] and benchmarking.warmth(torch.device("cpu"), len(made), 2_000_000).startswith("L2-warm: 4 sets")


@pytest.mark.parametrize("rows", mhc.ROWS)
def test_every_contestant_of_the_mhc_linear_reads_twice_the_l2(rows: int, l2: None, monkeypatch: pytest.MonkeyPatch) -> None:
    case = mhc.cases.make("cpu", rows, 0)
    monkeypatch.setattr(mhc.cases, "make", lambda device, rows, seed: case)
    sets = len(mhc._rotating(torch.device("cpu"), rows))
    reads = case.residual.nbytes + case.weight.nbytes, 2 * case.residual.nbytes + case.fn.nbytes
    assert all(sets * each >= 2 * L2 * 0.99 for each in reads) and sets < 200


def test_a_decode_of_one_row_is_said_to_be_timed_in_the_l2(l2: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mla_decode, "_ours", lambda case: None)
    monkeypatch.setattr(mla_decode, "_error", lambda case: 0.0)
    one = cases.make("cpu", 1, 8, 0, lengths=[128], extra_lengths=[512])
    monkeypatch.setattr(mla_decode.cases, "make", lambda *arguments, **options: one)
    made = mla_decode._make(torch.device("cpu"), 1, 8)
    figure = mla_decode._figure("a decode", made, (), ("", lambda ours, peers: None), CEILINGS)
    assert len(made) == 200 and "L2-warm: 200 sets" in figure.note
