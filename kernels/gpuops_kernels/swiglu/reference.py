"""SwiGLU in float64."""

from __future__ import annotations

import torch


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """``gate / (1 + exp(-gate)) * up`` of [..., 2 x width], in float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up
