"""Random inputs of the glue kernels in the engine's layouts, and the bytes that each call cannot avoid."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..mla_decode import layout
from . import op

HIDDEN = 4096
Q_WIDTH = 1024
"""Width of q's latent in DeepSeek-V4-Flash."""

EPS = 1e-6
UNWRITTEN = 0xFF
"""What the cache holds before a store: bytes that are NaN as e4m3, as bf16 and as a scale."""


@dataclass(frozen=True)
class Case:
    """Inputs of a layer's glue.

    Args:
        qkv: [rows, q width + 512] bf16, the fused projection's result.
        q_weight, kv_weight: [q width] and [512] bf16.
        gate_up: [rows, 2 x intermediate] bf16.
        rows: where the KV rows go.
    """

    qkv: torch.Tensor
    q_weight: torch.Tensor
    kv_weight: torch.Tensor
    gate_up: torch.Tensor
    rows: op.CacheRows

    @property
    def kv(self) -> torch.Tensor:
        """The KV part of ``qkv``, as the engine slices it."""
        return self.qkv[:, -layout.HEAD_DIM :]

    @property
    def q(self) -> torch.Tensor:
        """q's part of ``qkv``."""
        return self.qkv[:, : -layout.HEAD_DIM]

    def store_bytes(self) -> int:
        """KV rows, weight, positions, slots and rotations read, tokens and scales written."""
        rows = self.qkv.shape[0]
        read = rows * (layout.HEAD_DIM * 2 + layout.ROPE_DIM * 4) + _bytes(self.kv_weight, self.rows.slots, self.rows.positions)
        return read + rows * layout.BYTES_PER_TOKEN

    def norm_bytes(self) -> int:
        """q's latent and the weight read; written in bf16, in e4m3, and a scale for 128."""
        rows, width = self.q.shape
        return rows * width * 5 + rows * width // op.GROUP * 4 + _bytes(self.q_weight)

    def swiglu_bytes(self) -> int:
        """Gate and up read, e4m3 and scales written."""
        rows, width = self.gate_up.shape
        return rows * width * 2 + rows * width // 2 + rows * width // 2 // op.GROUP * 4


def make(
    device: torch.device | str,
    rows: int,
    seed: int,
    *,
    page_size: int = 256,
    q_width: int = Q_WIDTH,
    intermediate: int = 256,
    padded: bool = False,
) -> Case:
    """A case whose slots are distinct and scattered over the pool; with ``padded``, every third row has slot -1."""
    generator = torch.Generator(device="cpu").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    pages = 2 + -(-2 * rows // page_size)
    slots = torch.randperm(pages * page_size, generator=generator)[:rows].to(torch.int32)
    if padded:
        slots[::3] = -1
    angles = normal(4096, layout.ROPE_DIM // 2) * 3
    cache = torch.full((pages, layout.page_bytes(page_size)), UNWRITTEN, dtype=torch.uint8)
    qkv = normal(rows, q_width + layout.HEAD_DIM) * torch.exp(normal(rows, 1) * 2)
    qkv[:, ::61] *= 20
    qkv[rows // 2, q_width : q_width + layout.GROUP] = 0
    return Case(
        qkv=qkv.to(device, torch.bfloat16),
        q_weight=(1 + normal(q_width) / 4).to(device, torch.bfloat16),
        kv_weight=(1 + normal(layout.HEAD_DIM) / 4).to(device, torch.bfloat16),
        gate_up=(normal(rows, 2 * intermediate) * 6).to(device, torch.bfloat16),
        rows=op.CacheRows(
            cache=cache.to(device),
            page_size=page_size,
            slots=slots.to(device),
            positions=torch.randint(0, 4096, (rows,), generator=generator).to(device),
            rotation=torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1).contiguous().to(device),
        ),
    )


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)
