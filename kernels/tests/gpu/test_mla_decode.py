"""Sparse MLA decode on a card: against the float64 reference, inside CUDA graphs, under torch.compile."""

from __future__ import annotations

import secrets

import pytest
import torch

from gpuops_kernels import numerics
from gpuops_kernels.mla_decode import cases, op, reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

_RELATIVE = 4e-3
_LSE = 2e-3


@pytest.fixture
def seed() -> int:
    """Fresh at every run; a failure shows it."""
    return secrets.randbits(31)


def call(case: cases.Case) -> tuple[torch.Tensor, torch.Tensor]:
    out = numerics.poison(torch.empty_like(case.q))
    lse = numerics.poison(torch.empty(case.q.shape[:2], device=case.q.device))
    return op.sparse_mla_decode(*case.positional, **case.keywords, out=out, lse=lse)


def check(case: cases.Case, out: torch.Tensor, lse: torch.Tensor) -> None:
    wanted, wanted_lse = reference.sparse_mla_decode(*case.positional, **case.keywords)
    assert numerics.relative_error(out, wanted) < _RELATIVE
    assert torch.equal(torch.isinf(lse), torch.isinf(wanted_lse))
    finite = torch.isfinite(wanted_lse)
    assert torch.equal(out[~finite], torch.zeros_like(out[~finite]))
    assert not finite.any() or (lse[finite] - wanted_lse[finite]).abs().max().item() < _LSE


@pytest.mark.parametrize("heads", [1, 8, 16, 24, 64, 128])
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_compressed_and_sliding_window_tokens_agree_with_the_reference(seed, batch, heads):
    case = cases.make("cuda", batch, heads, seed, lengths=[128, 100, 1, 0], extra_lengths=[512, 3, 0, 400, -1], absent=0.1)
    check(case, *call(case))


@pytest.mark.parametrize(
    ("page_size", "extra_page_size", "extra_topk"), [(256, 2, 1024), (64, 64, 512), (128, 2, 8192), (256, 64, None)]
)
def test_every_page_size_agrees_with_the_reference(seed, page_size, extra_page_size, extra_topk):
    case = cases.make(
        "cuda",
        3,
        8,
        seed,
        page_size=page_size,
        lengths=[128, 17],
        extra_topk=extra_topk,
        extra_page_size=extra_page_size,
        extra_lengths=[extra_topk or 0, 70],
        absent=0.05,
    )
    check(case, *call(case))


def test_without_lengths_and_sink_everything_counts(seed):
    case = cases.make("cuda", 4, 8, seed, with_sink=False)
    check(case, *call(case))


def test_more_rows_than_the_card_holds_agree_with_the_reference(seed):
    case = cases.make("cuda", 700, 8, seed, lengths=[128, 3], extra_topk=128, extra_lengths=[128, 1, 0], pool=20_000)
    check(case, *call(case))


def test_a_replayed_graph_follows_lengths_and_indices_and_equals_the_eager_call(seed):
    case = cases.make("cuda", 5, 8, seed, lengths=[128], extra_lengths=[512])
    out, lse = call(case)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        op.sparse_mla_decode(*case.positional, **case.keywords, out=out, lse=lse)
    assert case.main.lengths is not None
    assert case.extra is not None
    assert case.extra.lengths is not None
    for lengths, extra_lengths in [
        ([128] * 5, [512] * 5),
        ([0, 1, 31, 32, 33], [0, 0, 63, 64, 65]),
        ([-3, 0, 128, 7, 1], [-1, 0, 512, 0, 300]),
    ]:
        case.main.lengths.copy_(torch.tensor(lengths))
        case.extra.lengths.copy_(torch.tensor(extra_lengths))
        case.main.indices.copy_(case.main.indices.roll(1, 1))
        numerics.poison(out)
        numerics.poison(lse)
        graph.replay()
        torch.cuda.synchronize()
        check(case, out, lse)
        eager, eager_lse = call(case)
        assert torch.equal(out, eager)
        assert torch.equal(lse, eager_lse)


def test_a_call_neither_synchronises_nor_compiles_once_warm(seed):
    case = cases.make("cuda", 2, 8, seed, lengths=[128], extra_lengths=[512])
    call(case)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        op.sparse_mla_decode(*case.positional, **case.keywords)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_under_torch_compile_the_result_is_that_of_the_eager_call(seed):
    case = cases.make("cuda", 3, 8, seed, lengths=[128, 9], extra_lengths=[512, 0])

    @torch.compile(fullgraph=True)
    def compiled(case_q, scale):
        keywords = case.keywords | {"scale": scale}
        out, lse = op.sparse_mla_decode(case_q * 1.0, case.main.cache, case.main.indices, **keywords)
        return out + 0.0, lse

    out, lse = compiled(case.q, case.scale)
    eager, eager_lse = call(case)
    assert torch.equal(out, eager)
    assert torch.equal(lse, eager_lse)


def test_the_adapter_leaves_the_padding_of_a_rank_with_few_heads_alone(seed):
    case = cases.make("cuda", 3, 64, seed, lengths=[128, 9], extra_lengths=[512, 0])
    case.q[:, 8:] = float("nan")
    out, _ = op.flash_mla_with_kvcache_sm120(**case.stock, heads=8)
    keywords = case.keywords
    wanted, _ = reference.sparse_mla_decode(case.q[:, :8], case.main.cache, case.main.indices, **keywords)
    assert numerics.relative_error(out[:, 0, :8], wanted) < _RELATIVE
