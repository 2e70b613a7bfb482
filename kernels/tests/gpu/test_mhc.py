"""mHC on a card: against float64, in CUDA graphs whose inputs change between replays, and under torch.compile."""

from __future__ import annotations

import random

import pytest
import torch

from gpuops_kernels.mhc import adapters, cases, op, reference
from gpuops_kernels.numerics import calc_diff, poison, relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS = [1, 2, 3, 16, 17, 32, 33, 64, 65, 128, 256, 257, 1024, 4099]
# The mixes differ from float64 by the rounding of fp32 sums; bf16 results are rounded twice, 1.1e-3 each.
MIXES, BF16 = 2e-5, 3e-3


@pytest.fixture
def seed() -> int:
    return random.SystemRandom().randrange(1 << 30)


def _arguments(case: cases.Case, norm: bool = True) -> tuple[torch.Tensor, torch.Tensor, op.Constants, op.Norm | None]:
    return case.scale, case.base, case.constants, case.norm if norm else None


def _poisoned(case: cases.Case) -> dict[str, torch.Tensor]:
    return {"streams": poison(torch.empty_like(case.residual)), "layer_input": poison(torch.empty_like(case.x))} | {
        f"next_{name}": poison(torch.empty_like(getattr(case, name))) for name in ("post", "comb")
    }


def _boundary(case: cases.Case, norm: bool = True) -> tuple[torch.Tensor, ...]:
    return op.post_pre(case.x, case.residual, case.post, case.comb, case.weight, *_arguments(case, norm), **_poisoned(case))


def _assert_right(case: cases.Case, results: tuple[torch.Tensor, ...], norm: bool = True) -> None:
    assert relative_error(results[0], reference.post(case.x, case.residual, case.post, case.comb)) < BF16
    expected = reference.pre(results[0], case.fn, *_arguments(case, norm))
    for ours, theirs, bound in zip(results[1:], expected, (MIXES, MIXES, BF16), strict=True):
        assert relative_error(ours, theirs) < bound


@pytest.mark.parametrize("rows", ROWS)
def test_the_linear_is_that_of_the_fp32_weight(rows: int, seed: int) -> None:
    case = cases.make("cuda", rows, seed)
    out, squares = poison(torch.empty(rows, 24, device="cuda")), poison(torch.empty(rows, device="cuda"))
    op.linear(case.flat, case.weight, out=out, square_sums=squares)
    expected, expected_squares = reference.linear(case.flat, case.fn)
    assert calc_diff(out, expected) < 1e-8
    assert relative_error(squares, expected_squares) < 1e-6


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("norm", [False, True])
def test_pre_and_the_boundary_agree_with_float64(rows: int, norm: bool, seed: int) -> None:
    case = cases.make("cuda", rows, seed)
    _assert_right(case, _boundary(case, norm), norm)
    results = op.pre(case.residual, case.weight, *_arguments(case, norm))
    expected = reference.pre(case.residual, case.fn, *_arguments(case, norm))
    for ours, theirs, bound in zip(results, expected, (MIXES, MIXES, BF16), strict=True):
        assert relative_error(ours, theirs) < bound


def test_the_same_inputs_give_the_same_bits(seed: int) -> None:
    case = cases.make("cuda", 64, seed)
    first = _boundary(case)
    for _ in range(20):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(_boundary(case), first, strict=True))


def test_a_graph_replays_what_eager_computes_bit_for_bit(seed: int) -> None:
    case = cases.make("cuda", 16, seed)
    _boundary(case)
    torch.cuda.synchronize()
    outputs = _poisoned(case)
    arguments = (case.x, case.residual, case.post, case.comb, case.weight, *_arguments(case))
    torch.cuda.set_sync_debug_mode("error")
    try:
        op.post_pre(*arguments, **outputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):  # one after another, as layers are: the second kernel of each pair is launched early
            results = op.post_pre(*arguments, **outputs)
    for offset in range(1, 4):
        other = cases.make("cuda", 16, seed + offset)
        case.x.copy_(other.x)
        case.residual.copy_(other.residual)
        for each in outputs.values():
            poison(each)
        graph.replay()
        torch.cuda.synchronize()
        _assert_right(case, results)
        assert all(torch.equal(ours, eager) for ours, eager in zip(results, _boundary(case), strict=True))


def test_layers_in_a_row_read_what_the_layer_before_them_wrote(seed: int) -> None:
    case = cases.make("cuda", 8, seed)

    def layers(case: cases.Case) -> torch.Tensor:
        streams, post, comb, x = op.post_pre(case.x, case.residual, case.post, case.comb, case.weight, *_arguments(case))
        for _ in range(5):
            streams, post, comb, x = op.post_pre(x, streams, post, comb, case.weight, *_arguments(case))
        return x

    layers(case)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = layers(case)
    graph.replay()
    streams, post, comb, x = case.residual, case.post, case.comb, case.x
    for _ in range(6):
        streams = reference.post(x, streams, post, comb).to(torch.bfloat16)
        post, comb, x = reference.pre(streams, case.fn, *_arguments(case))
        x = x.to(torch.bfloat16)
    torch.cuda.synchronize()
    assert relative_error(result, x) < 2e-2


def test_it_is_the_same_under_torch_compile(seed: int) -> None:
    case = cases.make("cuda", 16, seed)

    def layer(residual: torch.Tensor) -> torch.Tensor:
        return op.pre(residual, case.weight, *_arguments(case))[2] * 2

    compiled = torch.compile(layer, fullgraph=True)(case.residual)
    assert torch.equal(compiled, layer(case.residual))


def test_a_weight_cannot_be_prepared_inside_a_capture() -> None:
    fn = torch.randn(24, 4 * 4096, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="run one forward pass before the capture"), torch.cuda.graph(graph):
        adapters.prepared(fn)


def test_a_weight_that_was_split_just_before_the_call_is_the_one_that_is_read(seed: int) -> None:
    case = cases.make("cuda", 16, seed)
    others = [torch.randn_like(case.fn) for _ in range(20)]
    weight = case.weight.clone()
    results = []
    for fn in others:  # nothing is waited for: the call's first loads come before its wait for the kernel in front of it
        weight.copy_(op.split_weight(fn))
        results.append(op.linear(case.flat, weight)[0])
    for fn, result in zip(others, results, strict=True):
        assert calc_diff(result, reference.linear(case.flat, fn)[0]) < 1e-8


def test_pre_reads_streams_that_the_call_before_it_wrote(seed: int) -> None:
    case = cases.make("cuda", 64, seed)
    pairs = []
    for _ in range(20):
        streams = _boundary(case)[0]
        pairs.append((streams, op.pre(streams, case.weight, *_arguments(case))))
        case.residual.copy_(streams)
    for streams, results in pairs:
        expected = reference.pre(streams, case.fn, *_arguments(case))
        for ours, theirs, bound in zip(results, expected, (MIXES, MIXES, BF16), strict=True):
            assert relative_error(ours, theirs) < bound
