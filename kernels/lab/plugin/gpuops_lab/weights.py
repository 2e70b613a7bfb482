"""Random weights with which a wrong kernel shows.

SGLang's dummy weights lie within 0.001 of zero, norms included: each layer then adds next to nothing to the residual, and every token is about as
likely as the next. Here each linear keeps the scale of its input, norms are near one, and the head spreads the logits by a few units.

Rounding alone makes such a model answer differently, and an error in attention has to stand out from that. All experts of a layer are the same, so
that it does not matter which of two near ties the router takes; and experts say little, since what they add is noise to this comparison. In a small
model of this structure (streams, fp8 activations, experts) the two planted errors moved logprobs twice as far as rounding did with experts that
differ, and four times as far with these.

With tensor parallelism each rank draws its own share of a parameter that is cut up, and all draw the same of one that is not: equal shares would hide
an error in whose heads are whose, and give every token a twin in the other half of the vocabulary.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch

from . import imports

# FP8 weights are N(0, 1) in e4m3, and one scale serves a block of 128 x 128.
_BLOCK = 128
_HEAD_SPREAD = 4.0
_EXPERTS_SAY = 2.0**-5

# SGLang's layers whose parameters are cut up among the ranks (0.5.15.post1 srt/layers). A module with a rank of its own may hold whole ones too.
_CUT_UP = {"ColumnParallelLinear", "ColumnParallelBatchedLinear", "RowParallelLinear", "VocabParallelEmbedding", "FusedMoE"}


def install() -> None:
    """Replace the loader's initialisation at import."""
    imports.after("sglang.srt.model_loader.loader", lambda module: setattr(module, "initialize_dummy_weights", initialize))


@torch.no_grad()
def initialize(model: torch.nn.Module, *_: Any, **__: Any) -> None:
    """Fill every floating-point parameter; buffers (rotary tables, Hadamard matrices) keep what the model computed. The same at every start."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if not parameter.dtype.is_floating_point:
            continue
        seed = zlib.crc32(name.encode()) + _share(modules[name.rpartition(".")[0]])
        generator = torch.Generator(device=parameter.device).manual_seed(seed)
        mean, deviation = spread(name, tuple(parameter.shape), parameter.dtype)
        shape = parameter.shape[1:] if _of_all_experts(name, tuple(parameter.shape)) else parameter.shape
        values = torch.randn(shape, generator=generator, device=parameter.device, dtype=torch.float32)
        parameter.data.copy_(values.mul_(deviation).add_(mean).to(parameter.dtype).expand(parameter.shape))
    print("[gpuops-lab] weights of a trained model's scale", flush=True)


def spread(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[float, float]:
    """Mean and standard deviation of a parameter."""
    leaf = name.rsplit(".", 2)
    if "scale_inv" in name and len(shape) >= 2:
        # A power of two, as UE8M0 scales are.
        return 2.0 ** round(_log2((shape[-1] * _BLOCK) ** -0.5)) * (_EXPERTS_SAY if _last_of_experts(name) else 1.0), 0.0
    if dtype.itemsize == 1:
        return 0.0, 1.0
    if "norm" in "".join(leaf[-2:]):
        return 1.0, 0.1
    if len(shape) >= 2:
        if "embed_tokens" in name:
            return 0.0, 1.0
        return 0.0, shape[-1] ** -0.5 * (_HEAD_SPREAD if "lm_head" in name else 1.0)
    if "scale" in leaf[-1]:
        return 1.0, 0.0
    return 0.0, 1.0 if "sink" in name else 0.1


def _share(module: torch.nn.Module) -> int:
    """Which share of its parameters a module holds: 0 for the first, and for whole ones."""
    if not _CUT_UP & {each.__name__ for each in type(module).__mro__}:
        return 0
    held = getattr(module, "shard_indices", None)
    if held is not None:
        return int(held.org_vocab_start_index)
    cut = getattr(module, "tp_size", None) or getattr(module, "moe_tp_size", 1)
    rank = getattr(module, "tp_rank", None)
    return int(getattr(module, "moe_tp_rank", 0) if rank is None else rank) if cut > 1 else 0


def _of_all_experts(name: str, shape: tuple[int, ...]) -> bool:
    return ".experts." in name and len(shape) == 3


def _last_of_experts(name: str) -> bool:
    """The second linear of routed and of shared experts."""
    return ".experts.w2_" in name or ".shared_experts.down_proj." in name


def _log2(value: float) -> float:
    import math

    return math.log2(value)
