"""mHC in the interpreter against float64, with small hidden sizes, for any number of rows and of splits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops_kernels import configs, devices
from gpuops_kernels.mhc import cases, op, reference
from gpuops_kernels.numerics import calc_diff, poison, relative_error

HIDDEN = 128
BF16 = 3e-3
"""Frobenius bound for bf16 results: rounding to nearest is 1.1e-3 of a value, and the result is rounded twice."""


@pytest.fixture(autouse=True)
def _small_configurations(monkeypatch):
    """As many splits as the drawn number of multiprocessors allows: with seventeen, a share of one block for a single row tile."""
    small = {
        "mhc.linear_partials": {"BLOCK_M": 16, "BLOCK_K": 64, "SPLITS": 8, "PROGRAMS": 1},
        "mhc.boundary_partials": {"BLOCK_M": 16, "BLOCK_K": 64, "SPLITS": 8, "PROGRAMS": 1},
        "mhc.linear_reduce": {"BLOCK_S": 4},
        "mhc.pre_finish": {"BLOCK_S": 4},
    }
    monkeypatch.setattr(op, "HIDDENS", (HIDDEN,))
    monkeypatch.setattr(configs, "lookup", lambda device, name, shape: configs.Configuration(small[name], 4, 1))


calls = settings(max_examples=3, deadline=None)
rows = st.sampled_from([1, 3, 18])
multiprocessors = st.sampled_from([1, 6, 17])
seeds = st.integers(0, 2**31)


def _case(rows: int, seed: int) -> cases.Case:
    return cases.make("cpu", rows, seed, hidden=HIDDEN)


def test_a_split_weight_takes_as_many_bytes_and_keeps_sixteen_bits():
    fn = torch.randn(24, 512)
    weight = op.split_weight(fn)
    high, low = torch.cat([weight[:16], weight[32:40]]), torch.cat([weight[16:32], weight[40:]])
    assert weight.numel() * weight.element_size() == fn.numel() * fn.element_size()
    assert ((high.double() + low.double() - fn.double()).abs() <= fn.abs().double() * 2**-16).all()


@calls
@given(rows, multiprocessors, seeds)
def test_the_linear_is_that_of_the_fp32_weight(rows, multiprocessors, seed):
    case = _case(rows, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "multiprocessors", lambda device: multiprocessors)
        out, squares = op.linear(case.flat, case.weight, out=poison(torch.empty(rows, 24)), square_sums=poison(torch.empty(rows)))
    expected, expected_squares = reference.linear(case.flat, case.fn)
    assert calc_diff(out, expected) < 1e-8
    assert relative_error(squares, expected_squares) < 1e-6


def test_a_single_bf16_weight_would_not_do():
    case = _case(32, 0)
    single = torch.cat(
        [case.weight[:16], torch.zeros_like(case.weight[:16]), case.weight[32:40], torch.zeros_like(case.weight[40:])]
    )
    assert calc_diff(op.linear(case.flat, single)[0], reference.linear(case.flat, case.fn)[0]) > 1e-8


@calls
@given(rows, multiprocessors, seeds, st.booleans(), st.sampled_from([1, 2, 20]))
def test_pre_gives_the_layer_input_and_the_mixes(rows, multiprocessors, seed, norm, repeat):
    case = _case(rows, seed)
    constants = op.Constants(sinkhorn_repeat=repeat)
    outputs = {
        "post": torch.empty(rows, 4),
        "comb": torch.empty(rows, 4, 4),
        "layer_input": torch.empty(rows, HIDDEN, dtype=torch.bfloat16),
    }
    arguments = (case.scale, case.base, constants, case.norm if norm else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "multiprocessors", lambda device: multiprocessors)
        post, comb, layer_input = op.pre(
            case.residual, case.weight, *arguments, **{name: poison(each) for name, each in outputs.items()}
        )
    expected = reference.pre(case.residual, case.fn, *arguments)
    assert relative_error(post, expected[0]) < 1e-5
    assert relative_error(comb, expected[1]) < 1e-5
    assert relative_error(layer_input, expected[2]) < BF16


@calls
@given(rows, multiprocessors, seeds, st.booleans())
def test_a_boundary_is_post_then_pre(rows, multiprocessors, seed, norm):
    case = _case(rows, seed)
    arguments = (case.scale, case.base, case.constants, case.norm if norm else None)
    streams = poison(torch.empty_like(case.residual))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "multiprocessors", lambda device: multiprocessors)
        got = op.post_pre(case.x, case.residual, case.post, case.comb, case.weight, *arguments, streams=streams)
    assert relative_error(got[0], reference.post(case.x, case.residual, case.post, case.comb)) < BF16
    expected = reference.pre(got[0], case.fn, *arguments)
    for ours, theirs, bound in zip(got[1:], expected, (1e-5, 1e-5, BF16), strict=True):
        assert relative_error(ours, theirs) < bound


def test_the_columns_of_comb_sum_to_one():
    case = _case(8, 1)
    _, comb, _ = op.pre(case.residual, case.weight, case.scale, case.base, case.constants)
    assert torch.allclose(comb.sum(1), torch.ones(8, 4), atol=1e-4)


def test_the_same_rows_give_the_same_bits_whatever_rows_are_beside_them():
    case = _case(16, 2)
    alone = op.linear(case.flat[:3].contiguous(), case.weight)[0]
    assert torch.equal(op.linear(case.flat, case.weight)[0][:3], alone)


def test_no_rows_are_no_launch():
    case = _case(1, 0)
    post, comb, layer_input = op.pre(case.residual[:0], case.weight, case.scale, case.base, case.constants, case.norm)
    assert (post.shape, comb.shape, layer_input.shape) == ((0, 4), (0, 4, 4), (0, HIDDEN))


def test_an_unprepared_weight_is_refused():
    case = _case(2, 0)
    with pytest.raises(
        ValueError, match=r"weight is not a contiguous \[48, 512\] tensor of torch.bfloat16 but \[24, 512\] of torch.float32"
    ):
        op.linear(case.flat, case.fn)


def test_strided_streams_are_refused():
    case = _case(2, 0)
    with pytest.raises(ValueError, match="residual is not a contiguous"):
        op.pre(case.residual.transpose(1, 2).contiguous().transpose(1, 2), case.weight, case.scale, case.base, case.constants)


def test_a_hidden_size_without_a_configuration_is_refused_by_name():
    case = _case(2, 0)
    wide = torch.zeros(2, 4, 192, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="no configuration for a hidden size of 192, only for 128"):
        op.pre(wide, case.weight, case.scale, case.base, case.constants)
    with pytest.raises(ValueError, match="hidden size of 192"):
        op.linear(wide.flatten(1), case.weight)
    with pytest.raises(ValueError, match="hidden size of 192"):
        op.post_pre(wide[:, 0], wide, case.post, case.comb, case.weight, case.scale, case.base, case.constants)
