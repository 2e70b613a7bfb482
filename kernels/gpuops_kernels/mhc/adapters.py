"""The engine's own signatures in front of :mod:`.op`, for SGLang 0.5.13 to 0.5.23.

The engine hands over its fp32 parameters; each is prepared once, at its first call, which is an eager one: the engine warms up before it captures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import op

POST_MULT = 2.0
"""``_MHC_POST_MULT_VALUE`` in SGLang's models/deepseek_v4.py (0.5.15.post1), ``MHC_POST_MULT_VALUE`` in models/deepseek_v4_mhc.py (0.5.23)."""

FUSED_ROWS = 32
"""Up to so many rows SGLang 0.5.18 to 0.5.23 run a fused kernel of their own (``fma_token_threshold`` in ops/layernorm/mhc.py)."""

_PREPARED = "_gpuops_prepared"


def hc_pre(
    self: Any,
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    norm: Any = None,
    forward_batch: Any = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    """In place of ``DeepseekV4DecoderLayer.hc_pre`` (0.5.13 to 0.5.19) and ``DeepseekV4DecoderLayerBase.hc_pre`` (0.5.20 to 0.5.23).

    Args:
        x: [rows, 4, hidden] bf16.
        norm: the RMSNorm module that follows, fused when given.

    Returns:
        The layer's input [rows, hidden] bf16, post [rows, 4], comb [rows, 4, 4], and whether the norm has been applied.
    """
    constants = op.Constants(self.rms_norm_eps, self.hc_eps, self.hc_eps, POST_MULT, self.hc_sinkhorn_iters)
    following = None if norm is None else op.Norm(norm.weight.data, norm.variance_epsilon)
    post, comb, y = op.pre(x.contiguous(), prepared(hc_fn), hc_scale, hc_base, constants, following)
    return y, post, comb, norm is not None


def mhc_pre(
    residual: torch.Tensor,
    fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    rms_eps: float,
    hc_pre_eps: float,
    hc_sinkhorn_eps: float,
    hc_post_mult_value: float,
    sinkhorn_repeat: int,
    n_splits: int = 1,
    n_splits_pre: int = 32,
    *,
    norm_weight: torch.Tensor | None = None,
    norm_eps: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """In place of ``mhc_pre`` of ``sglang.srt.layers.mhc`` (to 0.5.15.post1) and ``sglang.kernels.ops.layernorm.mhc`` (from 0.5.16).

    Returns:
        post [..., 4, 1], comb [..., 4, 4], the layer's input [..., hidden]. How K is split is ours to choose: both ``n_splits`` are ignored.
    """
    outer, (streams, hidden) = residual.shape[:-2], residual.shape[-2:]
    constants = op.Constants(rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat)
    post, comb, y = op.pre(
        residual.reshape(-1, streams, hidden), prepared(fn), hc_scale, hc_base, constants, _norm(norm_weight, norm_eps)
    )
    return post.view(*outer, streams, 1), comb.view(*outer, streams, streams), y.view(*outer, hidden)


def fused_post_pre(own: Callable[..., Any], x: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    """Around ``mhc_fused_post_pre`` of SGLang 0.5.18 to 0.5.23: its own kernel up to 32 rows, ours above, where it has none that is fused."""
    if x.numel() // x.shape[-1] <= FUSED_ROWS:
        return own(x, *arguments, **options)
    return mhc_fused_post_pre(x, *arguments, **options)


def mhc_fused_post_pre(
    x: torch.Tensor,
    residual: torch.Tensor,
    post_layer_mix: torch.Tensor,
    comb_res_mix: torch.Tensor,
    fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    rms_eps: float,
    hc_pre_eps: float,
    hc_sinkhorn_eps: float,
    hc_post_mult_value: float,
    sinkhorn_repeat: int,
    n_splits: int = 1,
    tile_n: int = 1,
    *,
    norm_weight: torch.Tensor | None = None,
    norm_eps: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """In place of ``mhc_fused_post_pre`` of ``sglang.srt.layers.mhc`` (to 0.5.15.post1) and ``sglang.kernels.ops.layernorm.mhc`` (from 0.5.16).

    Returns:
        The new streams [..., 4, hidden], post [..., 4, 1], comb [..., 4, 4], the layer's input [..., hidden].
    """
    outer, (streams, hidden) = residual.shape[:-2], residual.shape[-2:]
    constants = op.Constants(rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat)
    new, post, comb, y = op.post_pre(
        x.reshape(-1, hidden),
        residual.reshape(-1, streams, hidden),
        post_layer_mix.reshape(-1, streams),
        comb_res_mix.reshape(-1, streams, streams),
        prepared(fn),
        hc_scale,
        hc_base,
        constants,
        _norm(norm_weight, norm_eps),
    )
    return (
        new.view(*outer, streams, hidden),
        post.view(*outer, streams, 1),
        comb.view(*outer, streams, streams),
        y.view(*outer, hidden),
    )


# Dynamo would take "nothing is kept yet" of its first look for ever, and make the split a part of every compiled call.
@torch.compiler.disable
def prepared(fn: torch.Tensor) -> torch.Tensor:
    """The split weight of an fp32 parameter, made at the first call and kept with the parameter.

    It stays where it is, since captured graphs read it there: a parameter whose data is another tensor by now is split into the same memory. A weight
    that is overwritten in place looks like the old one (:func:`refresh`).

    Raises:
        RuntimeError: the first call happens while a CUDA graph is being captured, so that the preparation would become a part of the graph.
    """
    kept: tuple[int, torch.Tensor] | None = getattr(fn, _PREPARED, None)
    if kept is not None and kept[0] == fn.data_ptr():
        return kept[1]
    if fn.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"an mHC weight of {list(fn.shape)} is used for the first time while a CUDA graph is captured: "
            "it would be split again at every replay; run one forward pass before the capture"
        )
    return _split(fn, None if kept is None else kept[1])


@torch.compiler.disable
def refresh(fn: torch.Tensor) -> None:
    """Split a parameter again that has been overwritten in place, into the memory of what :func:`prepared` keeps of it, if anything."""
    kept: tuple[int, torch.Tensor] | None = getattr(fn, _PREPARED, None)
    if kept is not None:
        _split(fn, kept[1])


def _split(fn: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
    weight = op.split_weight(fn.detach())
    # On another device it is no graph's: that is where a parameter was before it was moved.
    if into is not None and into.device == weight.device:
        # What was made in inference mode can be written in inference mode alone.
        with torch.inference_mode():
            weight = into.copy_(weight)
    setattr(fn, _PREPARED, (fn.data_ptr(), weight))
    return weight


def _norm(weight: torch.Tensor | None, eps: float | None) -> op.Norm | None:
    if weight is None:
        return None
    if eps is None:
        raise ValueError("norm_eps is None though a norm_weight is given")
    return op.Norm(weight.contiguous(), eps)
