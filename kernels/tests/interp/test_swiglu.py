"""SwiGLU in the engine's types: against float64, and against the engine's own computation bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops_kernels import numerics
from gpuops_kernels.swiglu import op, reference

TYPES = (torch.bfloat16, torch.float16, torch.float32)


def _gate_up(rows: int, width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return (torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 9), st.integers(1, 300), st.sampled_from(TYPES), st.integers(0, 2**32 - 1))
def test_it_is_what_the_engine_computes_bit_for_bit(rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    x = _gate_up(rows, width, dtype, seed)
    # SGLang 0.5.23, srt/layers/activation.py, SiluAndMul.forward_native.
    assert torch.equal(op.forward_native(object(), x), F.silu(x[..., :width]) * x[..., width:])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_it_is_near_float64(dtype: torch.dtype) -> None:
    x = _gate_up(64, 256, dtype, 1)
    # Two roundings to the type.
    assert numerics.relative_error(op.swiglu(x), reference.swiglu(x)) < 2 * torch.finfo(dtype).eps


def test_leading_axes_are_kept() -> None:
    assert op.swiglu(torch.zeros(2, 3, 8)).shape == (2, 3, 4)


def test_an_odd_row_is_refused() -> None:
    with pytest.raises(ValueError, match="5 values a row"):
        op.swiglu(torch.zeros(1, 5))
