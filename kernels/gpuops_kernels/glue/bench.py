"""Timing of the glue on a card, against the launches of the engine that each call stands for, where they can be imported."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import benchmarking
from ..mhc import cases as mhc_cases
from . import cases, op

ROWS = (1, 64)

# Sets of inputs in turn; a row is a few kilobytes, and the engine has just written it too: they stay in the L2 here as there, and the figures say so.
_SETS = 4

Call = benchmarking.Call


def figures(device: torch.device, ceilings: benchmarking.Ceilings) -> list[benchmarking.Figure]:
    """Each call at 1 and 64 rows; none has a goal of its own: what counts is the number of launches in a step."""
    made = []
    for rows in ROWS:
        sets = [cases.make(device, rows, seed) for seed in range(_SETS)]
        streams = [mhc_cases.make(device, rows, seed) for seed in range(_SETS)]
        first, first_streams = sets[0], streams[0]
        stream_bytes = (
            2 * first_streams.residual.nbytes + first_streams.x.nbytes + first_streams.post.nbytes + first_streams.comb.nbytes
        )
        norm_bytes, store_bytes = first.norm_bytes(), first.store_bytes()
        measured: list[tuple[str, int, list[Call], str, list[Call]]] = [
            ("q norm + quantise", norm_bytes, _each(_norm, sets), "stock, 2 launches", _each(_stock_norm, sets)),
            ("swiglu + quantise", first.swiglu_bytes(), _each(_swiglu, sets), "stock, 2 launches", _each(_stock_swiglu, sets)),
            ("kv norm + rope + store", store_bytes, _each(_store, sets), "stock, 1 launch", _each(_stock_store, sets)),
            ("both latents", norm_bytes + store_bytes, _each(_latents, sets), "stock, 3 launches", _each(_stock_latents, sets)),
            ("mHC-post", stream_bytes, _each(_post, streams), "stock, 1 launch", _each(_stock_post, streams)),
        ]
        made += [
            _figure(
                f"glue {name}, M={rows}",
                ours,
                peer,
                stock,
                ceilings.floor_us(moved, 0),
                benchmarking.warmth(device, _SETS, moved),
            )
            for name, moved, ours, peer, stock in measured
        ]
    return made


def _each(make: Callable[[Any], Call], sets: Sequence[Any]) -> list[Call]:
    return [make(each) for each in sets]


def _figure(case: str, ours: Sequence[Call], peer: str, stock: Sequence[Call], floor_us: float, note: str) -> benchmarking.Figure:
    times, missing = benchmarking.against(ours, {peer: lambda: stock})
    return benchmarking.Figure(case, times.pop("ours"), "", None, times, floor_us, "; ".join(filter(None, (note, *missing))))


def _norm(case: cases.Case) -> Call:
    return lambda: op.norm_quantise(case.q, case.q_weight, cases.EPS)


def _swiglu(case: cases.Case) -> Call:
    return lambda: op.swiglu_quantise(case.gate_up, 10.0)


def _store(case: cases.Case) -> Call:
    return lambda: op.kv_store(case.kv, case.kv_weight, cases.EPS, case.rows)


def _latents(case: cases.Case) -> Call:
    return lambda: op.latents(case.qkv, case.q_weight, case.kv_weight, cases.EPS, case.rows)


def _post(case: mhc_cases.Case) -> Call:
    return lambda: op.streams_update(case.x, case.residual, case.post, case.comb)


def _stock_norm(case: cases.Case) -> Call:
    def call() -> object:
        normed = _imported("rmsnorm", "sgl_kernel")(case.q, case.q_weight, cases.EPS)
        return _per_token_group_quant()(normed, op.GROUP)

    return call


def _stock_swiglu(case: cases.Case) -> Call:
    def call() -> object:
        out = torch.empty(case.gate_up.shape[0], case.gate_up.shape[1] // 2, dtype=torch.bfloat16, device=case.gate_up.device)
        modules = ("sglang.kernels.ops.moe.dsv4", "sglang.kernels.ops.attention.dsv4.moe", "sglang.jit_kernel.dsv4.moe")
        _imported("silu_and_mul_clamp", *modules)(case.gate_up, out, 10.0)
        return _per_token_group_quant()(out, op.GROUP)

    return call


def _stock_store(case: cases.Case) -> Call:
    freqs_cis = torch.view_as_complex(case.rows.rotation.unflatten(-1, (-1, 2)))
    rows = case.rows

    def call() -> object:
        store = _imported("fused_k_norm_rope_flashmla", "sglang.jit_kernel.dsv4.elementwise")
        return store(case.kv, case.kv_weight, cases.EPS, freqs_cis, rows.positions, rows.slots, rows.cache, rows.page_size)

    return call


def _stock_post(case: mhc_cases.Case) -> Call:
    post = case.post.unsqueeze(-1)

    def call() -> object:
        stock = _imported("mhc_post", "sglang.kernels.ops.layernorm.mhc", "sglang.srt.layers.mhc")
        return stock(case.x, case.residual, post, case.comb)

    return call


def _stock_latents(case: cases.Case) -> Call:
    norm, store = _stock_norm(case), _stock_store(case)
    return lambda: (norm(), store())


def _per_token_group_quant() -> Callable[..., Any]:
    modules = ("sglang.kernels.ops.quantization.fp8_kernel", "sglang.srt.layers.quantization.fp8_kernel")
    return _imported("sglang_per_token_group_quant_fp8", *modules)


@functools.cache
def _imported(name: str, *modules: str) -> Callable[..., Any]:
    """A function of the engine from the first module that has it.

    Raises:
        ImportError: none has.
    """
    for module in modules:
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        return found
    raise ImportError(f"no {name} in {', '.join(modules)}")
