"""Sparse MLA decode in plain torch and float64: dequantise each selected token, softmax over all of a row at once."""

from __future__ import annotations

import torch

from . import layout

WORST_ERROR = 3e-3
"""What a kernel's result may be off from this: the relative error of bf16 values and weights, in the Frobenius norm."""


def sparse_mla_decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    lengths: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    extra_cache: torch.Tensor | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_lengths: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.op.sparse_mla_decode`, unrounded: out float64 [B, H, 512], lse float64 [B, H]. One row at a time, to be easy to believe."""
    batch, heads, _ = q.shape
    out = torch.zeros((batch, heads, layout.HEAD_DIM), dtype=torch.float64, device=q.device)
    lse = torch.full((batch, heads), float("-inf"), dtype=torch.float64, device=q.device)
    for row in range(batch):
        chosen = [tokens(cache, selected(indices, lengths, row))]
        if extra_cache is not None and extra_indices is not None:
            chosen.append(tokens(extra_cache, selected(extra_indices, extra_lengths, row)))
        kv = torch.cat(chosen)
        if kv.shape[0] == 0:
            continue
        scores = q[row].double() @ kv.T * scale
        lse[row] = torch.logsumexp(scores, 1)
        denominator = lse[row] if sink is None else torch.logaddexp(lse[row], sink[:heads].double())
        out[row] = torch.exp(scores - denominator[:, None]) @ kv
    return out, lse


def selected(indices: torch.Tensor, lengths: torch.Tensor | None, row: int) -> torch.Tensor:
    """The token slots that a row selects, int64."""
    topk = indices.shape[1]
    count = topk if lengths is None else min(max(int(lengths[row]), 0), topk)
    slots = indices[row, :count].long()
    return slots[slots >= 0]


def tokens(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The tokens at some slots of a cache, dequantised: float64 [slots, 512]."""
    pages, page_size = cache.shape[0], cache.shape[1]
    stride = cache.stride(0)
    memory = cache.view(torch.uint8).as_strided((pages * stride - (stride - page_size * layout.BYTES_PER_TOKEN),), (1,))
    page, offset = (slots // page_size) * stride, slots % page_size
    data = memory[(page + offset * layout.TOKEN_BYTES)[:, None] + torch.arange(layout.TOKEN_BYTES, device=cache.device)]
    footer = page + page_size * layout.TOKEN_BYTES + offset * layout.SCALE_BYTES
    exponents = memory[footer[:, None] + torch.arange(layout.GROUPS, device=cache.device)]
    values = data[:, : layout.NOPE_DIM].view(torch.float8_e4m3fn).double()
    scales = torch.exp2(exponents.double() - 127).repeat_interleave(layout.GROUP, 1)
    rope = data[:, layout.NOPE_DIM :].contiguous().view(torch.bfloat16).double()
    return torch.cat([values * scales, rope], 1)
