"""mHC in plain torch and float64: the definition that the kernels are tested against.

Source of the algorithm: SGLang 0.5.15.post1, DeepseekV4DecoderLayer.hc_pre and hc_post, and hc_split_sinkhorn in srt/layers/mhc.py (Apache-2.0).
"""

from __future__ import annotations

import torch

from .op import STREAMS, Constants, Norm


def linear(x: torch.Tensor, fn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x @ fn.T`` and the sum of squares of each row; x [rows, K], fn [24, K]."""
    wide = x.double()
    return wide @ fn.double().T, wide.square().sum(-1)


def pre(
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    constants: Constants,
    norm: Norm | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """post [rows, 4], comb [rows, 4, 4], layer input [rows, hidden], all float64; residual [rows, 4, hidden].

    With a norm, its input is the layer input rounded to bf16, which is what an engine stores between the two.
    """
    rows, _, hidden = residual.shape
    dots, squares = linear(residual.reshape(rows, STREAMS * hidden), fn)
    mixes = dots * torch.rsqrt(squares / (STREAMS * hidden) + constants.rms_eps)[:, None]
    pre_logits, post_logits, comb_logits = mixes.split([STREAMS, STREAMS, STREAMS * STREAMS], dim=-1)
    scale, base = scale.double(), base.double()
    weights = torch.sigmoid(pre_logits * scale[0] + base[:4]) + constants.pre_eps
    post = torch.sigmoid(post_logits * scale[1] + base[4:8]) * constants.post_mult
    comb = _sinkhorn((comb_logits * scale[2] + base[8:]).view(rows, STREAMS, STREAMS), constants)
    layer_input = (weights[:, :, None] * residual.double()).sum(1)
    return post, comb, layer_input if norm is None else _rms_norm(layer_input, norm)


def post(x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
    """The next streams, [rows, 4, hidden] float64: ``post[o] * x + sum over i of comb[i, o] * residual[i]``."""
    carried = torch.einsum("rio,rih->roh", comb.double(), residual.double())
    return carried + post.double().reshape(-1, STREAMS)[:, :, None] * x.double()[:, None, :]


def _sinkhorn(logits: torch.Tensor, constants: Constants) -> torch.Tensor:
    comb = torch.softmax(logits, dim=2) + constants.sinkhorn_eps
    comb = comb / (comb.sum(1, keepdim=True) + constants.sinkhorn_eps)
    for _ in range(constants.sinkhorn_repeat - 1):
        comb = comb / (comb.sum(2, keepdim=True) + constants.sinkhorn_eps)
        comb = comb / (comb.sum(1, keepdim=True) + constants.sinkhorn_eps)
    return comb


def _rms_norm(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    x = x.to(torch.bfloat16).double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight.double()
