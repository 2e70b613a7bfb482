"""The repair of the interpreter works, and is still needed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from gpuops_kernels.numerics import relative_error

E4M3 = torch.float8_e4m3fn


@triton.jit
def _dot(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i[:, None] * N + i[None, :])
    y = tl.load(b + i[:, None] * N + i[None, :])
    tl.store(c + i[:, None] * N + i[None, :], tl.dot(x, y))


@triton.jit
def _arithmetic(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    y = tl.load(b + i)
    tl.store(c + i, tl.maximum(x * y + x, y))


@triton.jit
def _cast(a, c, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(c + i, tl.load(a + i).to(c.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3])
def test_a_dot_of_narrow_floats_equals_torch(dtype: torch.dtype) -> None:
    a, b = (torch.randn(32, 32).to(dtype) for _ in range(2))
    c = torch.full((32, 32), float("nan"))
    _dot[(1,)](a, b, c, N=32)
    assert relative_error(c, a.double() @ b.double()) < 1e-6


def test_bf16_arithmetic_rounds_every_operation_like_torch() -> None:
    a, b = torch.randn(256).bfloat16(), torch.randn(256).bfloat16()
    c = torch.empty_like(a)
    _arithmetic[(1,)](a, b, c, N=256)
    assert torch.equal(c, torch.maximum(a * b + a, b))


@pytest.mark.parametrize("source", [torch.float32, torch.int32])
def test_a_cast_to_bf16_rounds_to_nearest_even(source: torch.dtype) -> None:
    a = (torch.randn(512) * 1000).to(source)
    c = torch.empty(512, dtype=torch.bfloat16)
    _cast[(1,)](a, c, N=512)
    assert torch.equal(c, a.bfloat16())


def test_a_cast_to_e4m3_rounds_and_saturates_like_the_hardware() -> None:
    a = torch.cat([torch.randn(508), torch.tensor([600.0, -1e9, 448.0, 0.0])])
    c = torch.empty(512, dtype=E4M3)
    _cast[(1,)](a, c, N=512)
    assert torch.equal(c.float(), a.clamp(-448, 448).to(E4M3).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3])
def test_every_value_of_a_narrow_float_expands_exactly(dtype: torch.dtype) -> None:
    bits = torch.arange(256, dtype=torch.uint8) if dtype is E4M3 else torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    a = bits.view(dtype)
    c = torch.empty(a.numel())
    _cast[(1,)](a, c, N=a.numel())
    assert torch.equal(torch.nan_to_num(c, nan=1.25), torch.nan_to_num(a.float(), nan=1.25))


def test_the_repair_is_still_needed(tmp_path: Path) -> None:
    """Without it a bf16 dot is wrong: when this fails, Triton has mended its interpreter, and the repair can go."""
    program = """
        import os; os.environ["TRITON_INTERPRET"] = "1"
        import sys, torch, triton, triton.language as tl
        @triton.jit
        def dot(a, b, c, N: tl.constexpr):
            i = tl.arange(0, N)
            at = i[:, None] * N + i[None, :]
            tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))
        a, b = torch.randn(32, 32).bfloat16(), torch.randn(32, 32).bfloat16()
        c = torch.empty(32, 32)
        dot[(1,)](a, b, c, N=32)
        sys.exit(0 if torch.allclose(c, a.float() @ b.float(), atol=0.1) else 3)
    """
    path = tmp_path / "unrepaired.py"
    path.write_text(textwrap.dedent(program))
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert ran.returncode == 3, f"expected a wrong product, got exit {ran.returncode}: {ran.stderr[-500:]}"
