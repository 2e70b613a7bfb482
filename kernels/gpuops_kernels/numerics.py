"""How far a result is from a reference, in the measures that the field's kernel libraries use."""

from __future__ import annotations

import torch


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """``1 - 2<x, y> / (|x|^2 + |y|^2)`` in float64; 0 when equal. NaN anywhere gives NaN, which passes no comparison.

    Source: DeepGEMM's ``calc_diff`` (deep_gemm/testing/numeric.py).
    """
    x, y = x.double().flatten(), y.double().flatten()
    denominator = (x * x + y * y).sum()
    if denominator == 0:
        return 0.0
    return float(1 - 2 * (x * y).sum() / denominator)


def relative_error(x: torch.Tensor, reference: torch.Tensor) -> float:
    """``|x - reference| / |reference|`` in the Frobenius norm and float64; NaN anywhere gives NaN. A reference of zeros asks for zeros."""
    x, reference = x.double(), reference.double()
    norm = torch.linalg.vector_norm(reference)
    error = torch.linalg.vector_norm(x - reference)
    return float(error / norm) if norm > 0 else float(error)


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill an output with NaN (or all bits set, for integers), so that an element that nobody writes shows. Returns the tensor."""
    tensor.view(torch.uint8).fill_(0xFF) if tensor.dtype != torch.float8_e4m3fn else tensor.view(torch.uint8).fill_(0x7F)
    return tensor
