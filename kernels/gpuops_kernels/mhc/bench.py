"""Timing of mHC on a card, against the fp32 linear of torch and, where the engine is importable, against its own path.

Calls follow one another in the graph: a call's first kernel, a dependent launch, loads its weights while the call before it ends. After a kernel
that lets nothing start early, which most of an engine's are, a call is longer by that overlap.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from .. import benchmarking
from ..numerics import calc_diff
from . import cases, op, reference

_STOCK = ("sglang.kernels.ops.layernorm.mhc", "sglang.srt.layers.mhc")

ROWS = (1, 4, 16, 32, 64)

_GOAL = 3.0
_BAR = 1e-8

# Plain torch is some 120 launches a call: its time is theirs, wherever the inputs are. So few stay in the L2, which is to its advantage.
_TORCH_SETS = 4

# The engine's fused kernel is compiled anew for each number of rows, which takes longer than everything else here.
_FUSED_ROWS = (16, 64)

# The switches of SGLang 0.5.15.post1 that lead past its torch path, which is what it runs on sm_120.
_STOCK_SWITCHES = ("SGLANG_OPT_USE_TILELANG_MHC_PRE", "SGLANG_OPT_DEEPGEMM_HC_PRENORM")

Call = benchmarking.Call
Touched = Callable[[cases.Case], int]


def figures(device: torch.device, ceilings: benchmarking.Ceilings) -> Iterator[benchmarking.Figure]:
    """The linear against fp32 `F.linear`, mHC-pre and the whole boundary against the engine's, for decode's batch sizes."""
    # The figures with a goal first: whoever ends this early has them.
    measures: tuple[tuple[Callable[..., benchmarking.Figure], Touched], ...] = (
        (_linear, cases.Case.linear_bytes),
        (_pre, cases.Case.pre_bytes),
        (_boundary, cases.Case.post_pre_bytes),
    )
    for measure, touched in measures:
        for rows in ROWS:
            sets = _rotating(device, rows, touched)
            yield measure(sets, ceilings, benchmarking.warmth(device, len(sets), touched(sets[0])))


def _linear(rotating: Sequence[cases.Case], ceilings: benchmarking.Ceilings, note: str) -> benchmarking.Figure:
    first = rotating[0]
    rows = first.residual.shape[0]
    times = benchmarking.medians(
        {"ours": [_ours_linear(case) for case in rotating], "F.linear fp32": [_torch_linear(case) for case in rotating]}
    )
    ours = times.pop("ours")
    difference = calc_diff(op.linear(first.flat, first.weight)[0], reference.linear(first.flat, first.fn)[0])
    return benchmarking.Figure(
        f"mhc linear + sum of squares, M={rows}",
        ours,
        f">= {_GOAL:g}x F.linear, calc_diff < {_BAR:g}",
        times["F.linear fp32"] >= _GOAL * ours and difference < _BAR,
        times,
        ceilings.floor_us(first.linear_bytes(), first.flops()),
        "; ".join(filter(None, (f"calc_diff {difference:.1e}", note))),
    )


def _pre(rotating: Sequence[cases.Case], ceilings: benchmarking.Ceilings, note: str) -> benchmarking.Figure:
    first = rotating[0]

    def stock() -> list[Call]:
        method = _stock_method()
        return [_stock_pre(case, method) for case in rotating[:_TORCH_SETS]]

    peers = {"torch": lambda: [_torch_pre(case) for case in rotating[:_TORCH_SETS]], "stock torch path + norm": stock}
    floor = ceilings.floor_us(first.pre_bytes(), first.flops())
    return _against(f"mhc pre + norm, M={first.residual.shape[0]}", [_ours_pre(case) for case in rotating], peers, floor, note)


def _boundary(rotating: Sequence[cases.Case], ceilings: benchmarking.Ceilings, note: str) -> benchmarking.Figure:
    first = rotating[0]
    rows = first.residual.shape[0]

    def stock() -> list[Call]:
        function = _stock("mhc_fused_post_pre")
        return [_fused(case, function) for case in rotating]

    peers = {"stock mhc_fused_post_pre": stock} if rows in _FUSED_ROWS else {}
    floor = ceilings.floor_us(first.post_pre_bytes(), first.flops())
    return _against(f"mhc post + pre + norm, M={rows}", [_ours_boundary(case) for case in rotating], peers, floor, note)


def _against(
    case: str, calls: Sequence[Call], peers: Mapping[str, Callable[[], Sequence[Call]]], floor_us: float, note: str
) -> benchmarking.Figure:
    times, missing = benchmarking.against(calls, peers)
    ours = times.pop("ours")
    return benchmarking.Figure(case, ours, "", None, times, floor_us, "; ".join(filter(None, (note, *missing))))


def _rotating(device: torch.device, rows: int, touched: Touched = cases.Case.linear_bytes) -> list[cases.Case]:
    # A decode step reads each of 86 weights once. By default the sets are as many as the linear needs, which of all calls moves the fewest bytes.
    return benchmarking.rotating(device, lambda seed: cases.make(device, rows, seed=1000 * rows + seed), touched)


def _ours_linear(case: cases.Case) -> Call:
    return lambda: op.linear(case.flat, case.weight)


def _ours_pre(case: cases.Case) -> Call:
    return lambda: op.pre(case.residual, case.weight, case.scale, case.base, case.constants, case.norm)


def _ours_boundary(case: cases.Case) -> Call:
    return lambda: op.post_pre(
        case.x, case.residual, case.post, case.comb, case.weight, case.scale, case.base, case.constants, case.norm
    )


def _torch_linear(case: cases.Case) -> Call:
    wide = case.flat.float()

    def call() -> torch.Tensor:
        return F.linear(wide, case.fn)

    return call


def _torch_pre(case: cases.Case) -> Call:
    """The operations of SGLang's torch path in fp32, Sinkhorn iterations and norm as well in plain torch: a peer that is always there."""
    constants = case.constants

    def call() -> tuple[torch.Tensor, ...]:
        flat = case.residual.flatten(1).float()
        rsqrt = torch.rsqrt(flat.square().mean(-1, keepdim=True) + constants.rms_eps)
        mixes = F.linear(flat, case.fn) * rsqrt
        pre, post, comb = mixes.split([op.STREAMS, op.STREAMS, op.STREAMS**2], dim=-1)
        pre = torch.sigmoid(pre * case.scale[0] + case.base[:4]) + constants.pre_eps
        post = torch.sigmoid(post * case.scale[1] + case.base[4:8]) * constants.post_mult
        comb = (comb * case.scale[2] + case.base[8:]).view(-1, op.STREAMS, op.STREAMS)
        comb = torch.softmax(comb, dim=2) + constants.sinkhorn_eps
        comb = comb / (comb.sum(1, keepdim=True) + constants.sinkhorn_eps)
        for _ in range(constants.sinkhorn_repeat - 1):
            comb = comb / (comb.sum(2, keepdim=True) + constants.sinkhorn_eps)
            comb = comb / (comb.sum(1, keepdim=True) + constants.sinkhorn_eps)
        y = (pre.unsqueeze(-1) * flat.view(case.residual.shape)).sum(dim=1).to(torch.bfloat16)
        return post, comb, F.rms_norm(y, (y.shape[-1],), case.norm.weight, case.norm.eps)

    return call


def _stock_pre(case: cases.Case, method: Callable[..., Any]) -> Call:
    constants = case.constants
    layer = SimpleNamespace(
        rms_norm_eps=constants.rms_eps, hc_eps=constants.pre_eps, hc_mult=op.STREAMS, hc_sinkhorn_iters=constants.sinkhorn_repeat
    )

    def call() -> torch.Tensor:
        y = method(layer, case.residual, case.fn, case.scale, case.base)[0]
        return F.rms_norm(y, (y.shape[-1],), case.norm.weight, case.norm.eps)

    return call


def _stock_method() -> Callable[..., Any]:
    """DeepseekV4DecoderLayer.hc_pre of SGLang to 0.5.19 on its torch path."""
    environ = importlib.import_module("sglang.srt.environ")
    method: Callable[..., Any] = importlib.import_module("sglang.srt.models.deepseek_v4").DeepseekV4DecoderLayer.hc_pre

    def call(*arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for switch in _STOCK_SWITCHES:
                stack.enter_context(getattr(environ.envs, switch).override(False))
            return method(*arguments)

    return call


def _fused(case: cases.Case, stock: Callable[..., Any]) -> Call:
    c = case.constants
    return lambda: stock(
        case.x,
        case.residual,
        case.post.unsqueeze(-1),
        case.comb,
        case.fn,
        case.scale,
        case.base,
        c.rms_eps,
        c.pre_eps,
        c.sinkhorn_eps,
        c.post_mult,
        c.sinkhorn_repeat,
        norm_weight=case.norm.weight,
        norm_eps=case.norm.eps,
    )


def _stock(name: str) -> Callable[..., Any]:
    failure: Exception = ImportError(name)
    for module in _STOCK:
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            failure = error
            continue
        return found
    raise failure
