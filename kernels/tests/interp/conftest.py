"""Run the kernels in Triton's interpreter, with its bf16 and fp8 arithmetic repaired.

The interpreter keeps bf16 as uint16 and computes on the integers: dot products and sums are garbage, and casts truncate. The repair expands such
handles to float32 through torch views and rounds back with torch. `test_interpreter.py` checks that the repair works and is still needed.
"""

from __future__ import annotations

import os

# Triton's decorator decides at import whether a kernel is interpreted.
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gpuops_kernels import configs

_NARROW = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
_CONTAINER = {
    torch.bfloat16: (np.uint16, torch.uint16),
    torch.float8_e4m3fn: (np.uint8, torch.uint8),
    torch.float8_e5m2: (np.uint8, torch.uint8),
}


def _narrow(type: tl.dtype) -> torch.dtype | None:
    return _NARROW.get(str(type.scalar))


def _expand(handle: TensorHandle) -> TensorHandle:
    narrow = _narrow(handle.dtype)
    if narrow is None:
        return handle
    numpy_type, torch_type = _CONTAINER[narrow]
    bits = torch.from_numpy(np.ascontiguousarray(handle.data.view(numpy_type))).view(torch_type)
    return TensorHandle(bits.view(narrow).to(torch.float32).numpy(), tl.float32)


def _round(data: np.ndarray, type: tl.dtype) -> TensorHandle:
    narrow = _narrow(type)
    assert narrow is not None
    numpy_type, torch_type = _CONTAINER[narrow]
    values = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
    if narrow is torch.float8_e4m3fn:  # the hardware's conversion saturates (cvt.rn.satfinite)
        values = values.clamp(-448.0, 448.0)
    return TensorHandle(values.to(narrow).view(torch_type).numpy().view(numpy_type), type.scalar)


def _repair() -> None:
    binary, unary, dot, cast = (
        InterpreterBuilder.binary_op,
        InterpreterBuilder.unary_op,
        InterpreterBuilder.create_dot,
        InterpreterBuilder.cast_impl,
    )

    def binary_op(self, lhs, rhs, op):
        if _narrow(lhs.dtype) is None:
            return binary(self, lhs, rhs, op)
        result = binary(self, _expand(lhs), _expand(rhs), op)
        return result if result.data.dtype == np.bool_ else _round(result.data, lhs.dtype)

    def unary_op(self, arg, op):
        if _narrow(arg.dtype) is None:
            return unary(self, arg, op)
        return _round(unary(self, _expand(arg), op).data, arg.dtype)

    def create_dot(self, a, b, d, *rest):
        return dot(self, _expand(a), _expand(b), d, *rest)

    def cast_impl(self, src, dst_type):
        if _narrow(src.dtype) is not None:
            src = _expand(src)
        if _narrow(dst_type) is not None:
            return _round(src.data.astype(np.float32), dst_type)
        return src if src.dtype.scalar == dst_type.scalar else cast(self, src, dst_type)

    InterpreterBuilder.binary_op = binary_op
    InterpreterBuilder.unary_op = unary_op
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_fp_to_fp = lambda self, src, dst_type, rounding_mode: cast_impl(self, src, dst_type)


_repair()


@pytest.fixture(autouse=True)
def _compute_capability():
    """The interpreter's tensors are on the CPU: they take the configurations of the users' cards."""
    with configs.assume((12, 0)):
        yield
