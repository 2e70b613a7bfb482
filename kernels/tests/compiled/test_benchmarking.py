"""What the benchmark says of peers, without a card: the timing itself is replaced."""

from __future__ import annotations

import functools

import pytest
import torch

from gpuops_kernels import bench, benchmarking, configs
from gpuops_kernels.mla_decode import bench as mla_decode
from gpuops_kernels.mla_decode import cases, op


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

    told = mla_decode.per_rank(torch.device("cpu"), benchmarking.Ceilings(1e12, 1e15), heads)

    assert [figure.case for figure in told] == [f"MLA decode, {heads} heads, B={batch}, 128+512 tokens" for batch in (1, 16, 64)]
    assert seen == {"ours": {heads}, "stock": {heads, 64}}
