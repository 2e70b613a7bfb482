"""The glue kernels on a card: against float64, in CUDA graphs whose inputs change between replays, and under torch.compile."""

from __future__ import annotations

import random

import pytest
import torch

from gpuops_kernels.glue import cases, op, reference
from gpuops_kernels.mhc import cases as mhc_cases
from gpuops_kernels.mhc import reference as mhc_reference
from gpuops_kernels.mla_decode import layout
from gpuops_kernels.numerics import poison, relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS = [1, 3, 16, 64, 257]
BF16 = 2**-8
E4M3 = 2**-4 + 2**-9


@pytest.fixture
def seed() -> int:
    return random.SystemRandom().randrange(1 << 30)


def _assert_quantised(ours: op.Quantised, source: torch.Tensor, ue8m0: bool) -> None:
    expected = reference.quantise(source, ue8m0)
    assert torch.allclose(ours.scales, expected.scales, rtol=0 if ue8m0 else 3e-7, atol=0)
    steps = (ours.values.view(torch.uint8).int() - expected.values.view(torch.uint8).int()).abs()
    # A power of two scales exactly; another scale leaves a value that lies between two codes to the last bit of the division.
    assert steps.max() <= (0 if ue8m0 else 1)
    assert steps.double().mean() < 2e-2
    assert relative_error(reference.dequantise(ours), source) < E4M3


def _assert_stored(case: cases.Case) -> None:
    kept = case.rows.slots >= 0
    rows = op.CacheRows(
        case.rows.cache, case.rows.page_size, case.rows.slots[kept], case.rows.positions[kept], case.rows.rotation
    )
    stored, _ = reference.read_cache(rows)
    expected = reference.kv_rows(case.kv[kept], case.kv_weight, cases.EPS, rows)
    nope, rope = slice(0, layout.NOPE_DIM), slice(layout.NOPE_DIM, None)
    assert relative_error(stored[:, nope], expected[:, nope]) < E4M3
    assert relative_error(stored[:, rope], expected[:, rope]) < BF16


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("ue8m0", [False, True])
def test_activations_are_quantised_with_their_producer(rows: int, ue8m0: bool, seed: int) -> None:
    case = cases.make("cuda", rows, seed)
    normed, quantised = op.norm_quantise(
        case.q, case.q_weight, cases.EPS, ue8m0=ue8m0, normed=poison(torch.empty_like(case.q).contiguous())
    )
    assert relative_error(normed, reference.rms_norm(case.q, case.q_weight, cases.EPS)) < BF16
    _assert_quantised(quantised, normed, ue8m0)
    _assert_quantised(op.quantise(normed, ue8m0=ue8m0), normed, ue8m0)
    for limit in (None, 10.0):
        swiglu = op.swiglu_quantise(case.gate_up, limit, ue8m0=ue8m0)
        assert relative_error(reference.dequantise(swiglu), reference.swiglu(case.gate_up, limit)) < E4M3


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("page_size", [2, 64, 256])
@pytest.mark.parametrize("padded", [False, True])
def test_kv_rows_are_stored(rows: int, page_size: int, padded: bool, seed: int) -> None:
    case = cases.make("cuda", rows + padded, seed, page_size=page_size, padded=padded)
    op.kv_store(case.kv, case.kv_weight, cases.EPS, case.rows)
    _assert_stored(case)


@pytest.mark.parametrize("rows", ROWS)
def test_streams_are_updated_and_combined(rows: int, seed: int) -> None:
    case = mhc_cases.make("cuda", rows, seed)
    streams = op.streams_update(case.x, case.residual, case.post, case.comb, streams=poison(torch.empty_like(case.residual)))
    assert relative_error(streams, mhc_reference.post(case.x, case.residual, case.post, case.comb)) < BF16
    expected = (case.residual.double() * case.post.double()[:, :, None]).sum(1)
    assert relative_error(op.streams_combine(case.residual, case.post), expected) < BF16


def test_a_graph_stores_where_the_slots_of_this_replay_say(seed: int) -> None:
    case = cases.make("cuda", 16, seed)
    arguments = (case.qkv, case.q_weight, case.kv_weight, cases.EPS, case.rows)
    op.latents(*arguments)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        op.latents(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        normed, quantised = op.latents(*arguments)
    for offset in range(1, 4):
        other = cases.make("cuda", 16, seed + offset, padded=offset == 2)
        case.qkv.copy_(other.qkv)
        case.rows.slots.copy_(other.rows.slots)
        case.rows.positions.copy_(other.rows.positions)
        case.rows.cache.fill_(cases.UNWRITTEN)
        poison(normed)
        graph.replay()
        eager = op.latents(
            other.qkv,
            case.q_weight,
            case.kv_weight,
            cases.EPS,
            op.CacheRows(other.rows.cache, other.rows.page_size, other.rows.slots, other.rows.positions, case.rows.rotation),
        )
        torch.cuda.synchronize()
        _assert_stored(case)
        assert torch.equal(case.rows.cache, other.rows.cache)
        assert torch.equal(normed, eager[0])
        assert torch.equal(quantised.values.view(torch.uint8), eager[1].values.view(torch.uint8))


def test_it_is_the_same_under_torch_compile(seed: int) -> None:
    case = cases.make("cuda", 16, seed)

    def layer(gate_up: torch.Tensor) -> torch.Tensor:
        quantised = op.swiglu_quantise(gate_up, 10.0)
        return quantised.values.float() * quantised.scales.repeat_interleave(op.GROUP, dim=1)

    assert torch.equal(torch.compile(layer, fullgraph=True)(case.gate_up), layer(case.gate_up))
