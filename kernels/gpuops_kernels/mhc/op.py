"""mHC-pre and the boundary between two sublayers, as an engine calls them.

Every call is two launches: split-K partials, then what reduces them, both programmatic dependent launches: a weight that :func:`split_weight` has
made may be read before the kernel in front of the call has ended, and must not be written by a kernel that lets its dependents start early
(torch's operators do not). Grids follow from the number of rows, the hidden size and the card; nothing
is read back, nothing is allocated but outputs and partials, the same inputs give the same bits.

Shapes (DeepSeek-V4-Flash: hidden 4096, 4 streams): ``rows`` tokens; weight [24, 4 x hidden] fp32, prepared once by :func:`split_weight`; outputs
0..3 of the linear are the logits of *pre*, 4..7 of *post*, 8..23 of the 4 x 4 *comb*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from .. import configs, devices
from . import kernel

STREAMS = 4
OUTPUTS = 24

HIDDENS = (4096,)
"""Hidden sizes that have configurations (and are powers of two, as pre_finish needs them)."""

DECODE_ROWS = (16, 32, 64, 256)
"""Up to so many rows a configuration serves; above the last, that of prefill."""

_PARTIAL = 32
_WEIGHT_ROWS = 48

# In the interpreter there is nothing to launch early, and no instruction to wait with.
_PDL = not triton.knobs.runtime.interpret
_DEPENDENT = {"launch_pdl": True} if _PDL else {}


@dataclass(frozen=True)
class Constants:
    """The scalars of mHC-pre.

    Args:
        rms_eps: added to the mean square of the streams.
        pre_eps: added to the sigmoid of *pre*.
        sinkhorn_eps: added to every denominator of the Sinkhorn iterations.
        post_mult: factor of the sigmoid of *post*.
        sinkhorn_repeat: iterations, the first of which is a softmax of the rows.
    """

    rms_eps: float = 1e-6
    pre_eps: float = 1e-6
    sinkhorn_eps: float = 1e-6
    post_mult: float = 2.0
    sinkhorn_repeat: int = 20


@dataclass(frozen=True)
class Norm:
    """The RMSNorm that follows mHC-pre: weight [hidden] bf16 or fp32, and its epsilon."""

    weight: torch.Tensor
    eps: float


def split_weight(fn: torch.Tensor) -> torch.Tensor:
    """Prepare a weight once, when it is loaded: [24, K] fp32 -> [48, K] bf16, as many bytes, hi + lo (see kernel.py).

    Raises:
        ValueError: not a [24, K] fp32 tensor.
    """
    if fn.dtype != torch.float32 or fn.dim() != 2 or fn.shape[0] != OUTPUTS:
        raise ValueError(f"the weight of mHC-pre is [{OUTPUTS}, K] float32, not {_described(fn)}")
    high = fn.to(torch.bfloat16)
    low = (fn - high.float()).to(torch.bfloat16)
    return torch.cat([high[:16], low[:16], high[16:], low[16:]]).contiguous()


def linear(
    x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None, square_sums: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The linear of mHC-pre, and the sum of squares of each row.

    Args:
        x: [rows, K] bf16, contiguous.
        weight: what :func:`split_weight` returned, [48, K] bf16.
        out: [rows, 24] fp32, allocated when None.
        square_sums: [rows] fp32, allocated when None.

    Returns:
        ``out`` and ``square_sums``.

    Raises:
        ValueError: a dtype, shape or stride is not as above, or K is not 4 x one of ``HIDDENS``.
    """
    rows, width = x.shape
    _require_hidden(width / STREAMS)
    _require("x", x, (rows, width), torch.bfloat16)
    _require("weight", weight, (_WEIGHT_ROWS, width), torch.bfloat16)
    out = x.new_empty((rows, OUTPUTS), dtype=torch.float32) if out is None else out
    square_sums = x.new_empty((rows,), dtype=torch.float32) if square_sums is None else square_sums
    _require("out", out, (rows, OUTPUTS), torch.float32)
    _require("square_sums", square_sums, (rows,), torch.float32)
    if rows == 0:
        return out, square_sums
    launch = torch.ops.gpuops.mhc_linear if torch.compiler.is_compiling() else _launch_linear
    launch(x, weight, out, square_sums)
    return out, square_sums


def pre(
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    constants: Constants,
    norm: Norm | None = None,
    *,
    post: torch.Tensor | None = None,
    comb: torch.Tensor | None = None,
    layer_input: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """mHC-pre: from the residual streams to a layer's input and the mixes of its mHC-post.

    Args:
        residual: [rows, 4, hidden] bf16, contiguous.
        weight: what :func:`split_weight` returned, [48, 4 x hidden] bf16.
        scale: [3] fp32, factors of the logits of pre, post and comb.
        base: [24] fp32, added to the logits.
        norm: the RMSNorm that follows; None leaves ``layer_input`` unnormalised.
        post: [rows, 4] fp32, allocated when None.
        comb: [rows, 4, 4] fp32, allocated when None; ``comb[r, i, o]`` is the share of stream i in the next stream o.
        layer_input: [rows, hidden] bf16, allocated when None.

    Returns:
        ``post``, ``comb``, ``layer_input``.

    Raises:
        ValueError: a dtype, shape or stride is not as above, or the hidden size is not one of ``HIDDENS``.
    """
    rows, _, hidden = residual.shape
    _require_hidden(hidden)
    _require("residual", residual, (rows, STREAMS, hidden), torch.bfloat16)
    _require("weight", weight, (_WEIGHT_ROWS, STREAMS * hidden), torch.bfloat16)
    _require_parameters(scale, base, norm, hidden)
    outputs = _pre_outputs(residual, post, comb, layer_input)
    if rows == 0:
        return outputs
    launch = torch.ops.gpuops.mhc_pre if torch.compiler.is_compiling() else _launch_pre
    launch(residual, weight, scale, base, *outputs, *_scalars(constants, norm))
    return outputs


def post_pre(
    x: torch.Tensor,
    residual: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    constants: Constants,
    norm: Norm | None = None,
    *,
    streams: torch.Tensor | None = None,
    next_post: torch.Tensor | None = None,
    next_comb: torch.Tensor | None = None,
    layer_input: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The boundary between two sublayers: mHC-post of the one that ends, then mHC-pre of the next, still two launches.

    Args:
        x: [rows, hidden] bf16, contiguous: what the sublayer that ends returned.
        residual: [rows, 4, hidden] bf16, contiguous: the streams that it had read. It must not overlap ``streams``.
        post: [rows, 4] (or [rows, 4, 1]) fp32, contiguous, of its mHC-pre.
        comb: [rows, 4, 4] fp32, contiguous, of its mHC-pre.
        weight, scale, base, constants, norm: of the next sublayer, as for :func:`pre`.
        streams: [rows, 4, hidden] bf16, allocated when None.
        next_post, next_comb, layer_input: as ``post``, ``comb`` and ``layer_input`` of :func:`pre`.

    Returns:
        ``streams``, ``next_post``, ``next_comb``, ``layer_input``.

    Raises:
        ValueError: a dtype, shape or stride is not as above, or the hidden size is not one of ``HIDDENS``.
    """
    rows, _, hidden = residual.shape
    _require_hidden(hidden)
    _require("residual", residual, (rows, STREAMS, hidden), torch.bfloat16)
    _require("x", x, (rows, hidden), torch.bfloat16)
    _require("post", post, (rows, STREAMS, 1) if post.dim() == 3 else (rows, STREAMS), torch.float32)
    _require("comb", comb, (rows, STREAMS, STREAMS), torch.float32)
    _require("weight", weight, (_WEIGHT_ROWS, STREAMS * hidden), torch.bfloat16)
    streams = torch.empty_like(residual) if streams is None else streams
    _require("streams", streams, (rows, STREAMS, hidden), torch.bfloat16)
    _require_parameters(scale, base, norm, hidden)
    outputs = _pre_outputs(residual, next_post, next_comb, layer_input)
    if rows == 0:
        return (streams, *outputs)
    launch = torch.ops.gpuops.mhc_boundary if torch.compiler.is_compiling() else _launch_boundary
    launch(x, residual, post, comb, weight, scale, base, streams, *outputs, *_scalars(constants, norm))
    return (streams, *outputs)


_Partials = tuple[torch.Tensor, torch.Tensor, int]
_Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _launch_linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, square_sums: torch.Tensor) -> None:
    rows, width = x.shape
    dots, squares, splits = _linear_partials(x, weight, rows, width)
    options = configs.lookup(x.device, "mhc.linear_reduce", f"hidden{width // STREAMS}").options
    kernel.linear_reduce[(rows, OUTPUTS // kernel.EACH.value)](
        dots, squares, out, square_sums, splits, PDL=_PDL, **options, **_DEPENDENT
    )


def _launch_pre(
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    layer_input: torch.Tensor,
    norm_weight: torch.Tensor | None,
    sinkhorn_repeat: int,
    rms_eps: float,
    pre_eps: float,
    sinkhorn_eps: float,
    post_mult: float,
    norm_eps: float,
) -> None:
    rows, _, hidden = residual.shape
    partials = _linear_partials(residual, weight, rows, STREAMS * hidden)
    scalars = (sinkhorn_repeat, rms_eps, pre_eps, sinkhorn_eps, post_mult, norm_eps)
    _finish(residual, partials, scale, base, norm_weight, (post, comb, layer_input), scalars, streams_are_old=True)


def _launch_boundary(
    x: torch.Tensor,
    residual: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    streams: torch.Tensor,
    next_post: torch.Tensor,
    next_comb: torch.Tensor,
    layer_input: torch.Tensor,
    norm_weight: torch.Tensor | None,
    sinkhorn_repeat: int,
    rms_eps: float,
    pre_eps: float,
    sinkhorn_eps: float,
    post_mult: float,
    norm_eps: float,
) -> None:
    rows, _, hidden = residual.shape
    shape = configs.lookup(x.device, "mhc.boundary_partials", _shape(rows, hidden))
    tiles, splits, blocks, options = _split(x.device, rows, STREAMS * hidden, shape)
    dots, squares = _empty_partials(x, rows, splits)
    tensors = (x, residual, post, comb, weight, streams, dots, squares)
    kernel.boundary_partials[(tiles, splits)](
        *tensors, rows, splits, blocks, HIDDEN=hidden, ONE_BLOCK=blocks == 1, PDL=_PDL, **options, **_DEPENDENT
    )
    scalars = (sinkhorn_repeat, rms_eps, pre_eps, sinkhorn_eps, post_mult, norm_eps)
    outputs = (next_post, next_comb, layer_input)
    _finish(streams, (dots, squares, splits), scale, base, norm_weight, outputs, scalars, streams_are_old=False)


# Under torch.compile a call is one opaque operator: Inductor neither recompiles the kernels nor loses their launch options.
torch.library.custom_op("gpuops::mhc_linear", _launch_linear, mutates_args=("out", "square_sums"))
torch.library.custom_op("gpuops::mhc_pre", _launch_pre, mutates_args=("post", "comb", "layer_input"))
torch.library.custom_op(
    "gpuops::mhc_boundary", _launch_boundary, mutates_args=("streams", "next_post", "next_comb", "layer_input")
)


def _linear_partials(x: torch.Tensor, weight: torch.Tensor, rows: int, width: int) -> _Partials:
    shape = configs.lookup(x.device, "mhc.linear_partials", _shape(rows, width // STREAMS))
    tiles, splits, blocks, options = _split(x.device, rows, width, shape)
    dots, squares = _empty_partials(x, rows, splits)
    kernel.linear_partials[(tiles, splits)](
        x, weight, dots, squares, rows, splits, blocks, WIDTH=width, ONE_BLOCK=blocks == 1, PDL=_PDL, **options, **_DEPENDENT
    )
    return dots, squares, splits


def _finish(
    streams: torch.Tensor,
    partials: _Partials,
    scale: torch.Tensor,
    base: torch.Tensor,
    norm_weight: torch.Tensor | None,
    outputs: _Outputs,
    scalars: tuple[int, float, float, float, float, float],
    streams_are_old: bool,
) -> None:
    rows, _, hidden = streams.shape
    dots, squares, splits = partials
    kernel.pre_finish[(rows, 2)](
        dots,
        squares,
        streams,
        scale,
        base,
        scale if norm_weight is None else norm_weight,
        *outputs,
        splits,
        *scalars,
        HIDDEN=hidden,
        NORM=norm_weight is not None,
        STREAMS_ARE_OLD=streams_are_old,
        PDL=_PDL,
        **configs.lookup(streams.device, "mhc.pre_finish", f"hidden{hidden}").options,
        **_DEPENDENT,
    )


def _scalars(constants: Constants, norm: Norm | None) -> tuple[torch.Tensor | None, int, float, float, float, float, float]:
    return (
        None if norm is None else norm.weight,
        constants.sinkhorn_repeat,
        constants.rms_eps,
        constants.pre_eps,
        constants.sinkhorn_eps,
        constants.post_mult,
        0.0 if norm is None else norm.eps,
    )


def _require_parameters(scale: torch.Tensor, base: torch.Tensor, norm: Norm | None, hidden: int) -> None:
    _require("scale", scale, (3,), torch.float32)
    _require("base", base, (OUTPUTS,), torch.float32)
    if norm is not None:
        _require("norm.weight", norm.weight, (hidden,), norm.weight.dtype)


def _pre_outputs(
    residual: torch.Tensor, post: torch.Tensor | None, comb: torch.Tensor | None, layer_input: torch.Tensor | None
) -> _Outputs:
    rows, _, hidden = residual.shape
    post = residual.new_empty((rows, STREAMS), dtype=torch.float32) if post is None else post
    comb = residual.new_empty((rows, STREAMS, STREAMS), dtype=torch.float32) if comb is None else comb
    layer_input = residual.new_empty((rows, hidden)) if layer_input is None else layer_input
    _require("post", post, (rows, STREAMS), torch.float32)
    _require("comb", comb, (rows, STREAMS, STREAMS), torch.float32)
    _require("layer_input", layer_input, (rows, hidden), torch.bfloat16)
    return post, comb, layer_input


def _empty_partials(like: torch.Tensor, rows: int, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    return like.new_empty((rows, splits, _PARTIAL), dtype=torch.float32), like.new_empty((rows, splits), dtype=torch.float32)


def _shape(rows: int, hidden: int) -> str:
    for limit in DECODE_ROWS:
        if rows <= limit:
            return f"hidden{hidden}-rows{limit}"
    return f"hidden{hidden}-prefill"


def _split(device: torch.device, rows: int, width: int, shape: configs.Configuration) -> tuple[int, int, int, dict[str, int]]:
    """Row tiles, splits, blocks of a split, and the launch's options.

    As many splits as the configuration allows (SPLITS) and as run at once (PROGRAMS for each multiprocessor).
    """
    options = dict(shape.options)
    programs = options.pop("PROGRAMS") * devices.multiprocessors(device)
    tiles = triton.cdiv(rows, options["BLOCK_M"])
    most = min(options.pop("SPLITS"), programs // tiles)
    blocks = width // options["BLOCK_K"]
    splits = 1
    while splits * 2 <= most and blocks % (splits * 2) == 0:
        splits *= 2
    return tiles, splits, blocks // splits, options


def _require_hidden(hidden: float) -> None:
    if hidden not in HIDDENS:
        raise ValueError(
            f"mHC has no configuration for a hidden size of {hidden:g}, only for {', '.join(map(str, HIDDENS))}: "
            "leave such a model to the engine's own mHC, or add entries to gpuops_kernels/configs and to mhc.op.HIDDENS"
        )


def _require(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(f"{name} is not a contiguous {list(shape)} tensor of {dtype} but {_described(tensor)}")


def _described(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype} with strides {list(tensor.stride())}"
