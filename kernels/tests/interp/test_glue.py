"""The glue kernels in the interpreter against float64, in the engine's layouts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops_kernels.glue import cases, op, reference
from gpuops_kernels.mhc import cases as mhc_cases
from gpuops_kernels.mhc import reference as mhc_reference
from gpuops_kernels.mla_decode import layout
from gpuops_kernels.numerics import poison, relative_error

BF16 = 2**-8
"""Frobenius bound for a bf16 result: rounding to nearest is at most this much of a value, and one may outweigh all others; 1.1e-3 in the mean."""
E4M3 = 2**-4 + 2**-9
"""The same for e4m3: half a step of three bits of mantissa, and what bf16 adds; 2.6e-2 in the mean."""

calls = settings(max_examples=6, deadline=None)
rows = st.integers(1, 5)
seeds = st.integers(0, 2**31)


def _assert_quantised(ours: op.Quantised, source: torch.Tensor, ue8m0: bool) -> None:
    expected = reference.quantise(source, ue8m0)
    assert torch.allclose(ours.scales, expected.scales, rtol=0 if ue8m0 else 3e-7, atol=0)
    steps = (ours.values.view(torch.uint8).int() - expected.values.view(torch.uint8).int()).abs()
    # A power of two scales exactly; another scale leaves a value that lies between two codes to the last bit of the division.
    assert steps.max() <= (0 if ue8m0 else 1)
    assert steps.double().mean() < 2e-2
    assert relative_error(reference.dequantise(ours), source) < E4M3


@calls
@given(rows, seeds, st.booleans())
def test_a_row_is_quantised_in_groups_of_128(rows, seed, ue8m0):
    x = cases.make("cpu", rows, seed, intermediate=128).gate_up
    _assert_quantised(op.quantise(x, ue8m0=ue8m0), x, ue8m0)


@calls
@given(rows, seeds, st.booleans())
def test_a_slice_of_a_row_is_normed_and_what_was_normed_is_quantised(rows, seed, ue8m0):
    case = cases.make("cpu", rows, seed)
    normed = poison(torch.empty(rows, cases.Q_WIDTH, dtype=torch.bfloat16))
    normed, quantised = op.norm_quantise(case.q, case.q_weight, cases.EPS, ue8m0=ue8m0, normed=normed)
    assert relative_error(normed, reference.rms_norm(case.q, case.q_weight, cases.EPS)) < BF16
    _assert_quantised(quantised, normed, ue8m0)


@calls
@given(rows, seeds, st.sampled_from([None, 10.0, 1.0]))
def test_swiglu_is_clamped_and_quantised(rows, seed, limit):
    case = cases.make("cpu", rows, seed)
    quantised = op.swiglu_quantise(case.gate_up, limit)
    expected = reference.swiglu(case.gate_up, limit)
    assert relative_error(reference.dequantise(quantised), expected) < E4M3
    assert torch.allclose(
        quantised.scales.double(), reference.quantise(expected.to(torch.bfloat16), False).scales.double(), rtol=1e-2
    )


def test_scales_may_be_column_major():
    case = cases.make("cpu", 4, 0)
    scales = torch.empty(2, 4).t()
    assert torch.equal(op.quantise(case.gate_up[:, :256], scales=scales).scales, op.quantise(case.gate_up[:, :256]).scales)


def _assert_stored(case: cases.Case) -> None:
    kept = case.rows.slots >= 0
    rows = op.CacheRows(
        case.rows.cache, case.rows.page_size, case.rows.slots[kept], case.rows.positions[kept], case.rows.rotation
    )
    stored, scales = reference.read_cache(rows)
    expected = reference.kv_rows(case.kv[kept], case.kv_weight, cases.EPS, rows)
    nope = slice(0, layout.NOPE_DIM)
    assert relative_error(stored[:, layout.NOPE_DIM :], expected[:, layout.NOPE_DIM :]) < BF16
    assert relative_error(stored[:, nope], expected[:, nope]) < E4M3
    amax = expected[:, nope].unflatten(-1, (layout.GROUPS, -1)).abs().amax(-1).clamp(min=1e-4)
    assert bool(((scales * 448 >= amax * (1 - 1e-5)) & (scales * 224 < amax * (1 + 1e-5))).all())


@calls
@given(rows, seeds, st.sampled_from([2, 64, 256]), st.booleans())
def test_kv_rows_are_normed_rotated_quantised_and_stored_and_nothing_else_is_written(rows, seed, page_size, padded):
    case = cases.make("cpu", rows + padded, seed, page_size=page_size, padded=padded)
    op.kv_store(case.kv, case.kv_weight, cases.EPS, case.rows)
    _assert_stored(case)
    written = torch.zeros_like(case.rows.cache, dtype=torch.bool)
    for slot in case.rows.slots[case.rows.slots >= 0].tolist():
        page, place = divmod(slot, page_size)
        footer = page_size * layout.TOKEN_BYTES + place * layout.SCALE_BYTES
        written[page, place * layout.TOKEN_BYTES : (place + 1) * layout.TOKEN_BYTES] = True
        written[page, footer : footer + layout.GROUPS] = True
    assert bool((case.rows.cache[~written] == cases.UNWRITTEN).all())


@calls
@given(rows, seeds)
def test_both_latents_in_one_launch_are_what_two_launches_give(rows, seed):
    case, other = (cases.make("cpu", rows, seed) for _ in range(2))
    normed, quantised = op.latents(case.qkv, case.q_weight, case.kv_weight, cases.EPS, case.rows)
    expected, expected_quantised = op.norm_quantise(other.q, other.q_weight, cases.EPS)
    op.kv_store(other.kv, other.kv_weight, cases.EPS, other.rows)
    assert torch.equal(normed, expected)
    assert torch.equal(quantised.scales, expected_quantised.scales)
    assert torch.equal(quantised.values.view(torch.uint8), expected_quantised.values.view(torch.uint8))
    assert torch.equal(case.rows.cache, other.rows.cache)


@calls
@given(rows, seeds)
def test_streams_are_updated_in_place_as_well(rows, seed):
    case = mhc_cases.make("cpu", rows, seed)
    streams = op.streams_update(case.x, case.residual, case.post, case.comb, streams=poison(torch.empty_like(case.residual)))
    assert relative_error(streams, mhc_reference.post(case.x, case.residual, case.post, case.comb)) < BF16
    residual = case.residual.clone()
    assert torch.equal(op.streams_update(case.x, residual, case.post, case.comb, streams=residual), streams)


@calls
@given(rows, seeds, st.sampled_from([torch.bfloat16, torch.float32]))
def test_streams_are_combined(rows, seed, dtype):
    case = mhc_cases.make("cpu", rows, seed)
    combined = op.streams_combine(case.residual.to(dtype), case.post)
    assert relative_error(combined, (case.residual.double() * case.post.double()[:, :, None]).sum(1)) < BF16


def test_a_width_that_is_no_power_of_two_is_refused():
    with pytest.raises(ValueError, match="x has 384 values a row to quantise; a power of two of at least 128 is needed"):
        op.quantise(torch.zeros(2, 384, dtype=torch.bfloat16))


def test_rows_that_are_not_aligned_are_refused():
    with pytest.raises(ValueError, match="rows a multiple of 16 bytes apart"):
        op.quantise(torch.zeros(2, 260, dtype=torch.bfloat16)[:, :256])


def test_a_page_that_does_not_fit_is_refused():
    case = cases.make("cpu", 1, 0, page_size=64)
    rows = op.CacheRows(case.rows.cache, 256, case.rows.slots, case.rows.positions, case.rows.rotation)
    with pytest.raises(ValueError, match="a page of 256 tokens does not fit the cache's 37440 bytes a page"):
        op.kv_store(case.kv, case.kv_weight, cases.EPS, rows)
