"""Random inputs of mHC with the engine's shapes, and the bytes and operations that each call cannot avoid."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from . import op

HIDDEN = 4096
"""Hidden size of DeepSeek-V4-Flash."""


@dataclass(frozen=True)
class Case:
    """Inputs of one boundary: mHC-post of the sublayer that ends, mHC-pre of the next.

    Args:
        x: [rows, hidden] bf16, what the sublayer that ends returned.
        residual: [rows, 4, hidden] bf16.
        post, comb: [rows, 4] and [rows, 4, 4] fp32; comb is doubly stochastic, as Sinkhorn leaves it.
        fn: [24, 4 x hidden] fp32.
        weight: ``fn`` after :func:`op.split_weight`.
        scale, base: [3] and [24] fp32.
        norm: the RMSNorm that follows.
    """

    x: torch.Tensor
    residual: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor
    fn: torch.Tensor
    weight: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor
    norm: op.Norm
    constants: op.Constants = field(default_factory=op.Constants)

    @property
    def flat(self) -> torch.Tensor:
        """The streams as the linear reads them, [rows, 4 x hidden]."""
        return self.residual.view(self.residual.shape[0], -1)

    def linear_bytes(self) -> int:
        """Streams and weight read once, results written."""
        rows = self.residual.shape[0]
        return _bytes(self.residual, self.weight) + rows * (op.OUTPUTS + 1) * 4

    def pre_bytes(self) -> int:
        """Streams, weight and norm read once, layer input and mixes written."""
        return _bytes(self.residual, self.weight, self.norm.weight, self.x, self.post, self.comb)

    def post_pre_bytes(self) -> int:
        """Those of mHC-pre, and the old streams, the sublayer's output and its mixes read."""
        return self.pre_bytes() + _bytes(self.residual, self.x, self.post, self.comb)

    def flops(self) -> int:
        """Of the two bf16 products that stand for the fp32 linear."""
        return 2 * self.flat.shape[0] * self.flat.shape[1] * 2 * op.OUTPUTS


def make(device: torch.device | str, rows: int, seed: int, hidden: int = HIDDEN) -> Case:
    """A case; streams have the magnitudes that residual streams grow to, a few channels fifty times larger than the rest."""
    generator = torch.Generator(device="cpu").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    residual = normal(rows, op.STREAMS, hidden) * 3
    residual[:, :, :: max(1, hidden // 7)] *= 50
    width = op.STREAMS * hidden
    fn = (normal(op.OUTPUTS, width) * width**-0.5).to(device)
    comb = torch.softmax(normal(rows, op.STREAMS, op.STREAMS), -1)
    for _ in range(8):
        comb = comb / comb.sum(1, keepdim=True)
        comb = comb / comb.sum(2, keepdim=True)
    return Case(
        x=normal(rows, hidden).to(device, torch.bfloat16),
        residual=residual.to(device, torch.bfloat16),
        post=(torch.sigmoid(normal(rows, op.STREAMS)) * 2).to(device),
        comb=comb.contiguous().to(device),
        fn=fn,
        weight=op.split_weight(fn),
        scale=(1 + normal(3) / 4).to(device),
        base=normal(op.OUTPUTS).to(device),
        norm=op.Norm((1 + normal(hidden) / 4).to(device, torch.bfloat16), 1e-6),
    )


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)
