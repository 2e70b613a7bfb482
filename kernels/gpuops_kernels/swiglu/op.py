"""SwiGLU as SGLang's CPU engine calls it."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up``, rounded to the input's type after each of the two, as the engine does: the answers stay the same, bit for bit.

    Args:
        gate_up: [..., 2 x width] of any floating type; the gate comes first.

    Returns:
        [..., width].

    Raises:
        ValueError: the last axis is odd.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up has {gate_up.shape[-1]} values a row: a gate and an up of one width make an even number")
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def forward_native(self: object, x: torch.Tensor) -> torch.Tensor:
    """:func:`swiglu` in place of ``SiluAndMul.forward_native`` (``sglang.srt.layers.activation``)."""
    del self
    return swiglu(x)
