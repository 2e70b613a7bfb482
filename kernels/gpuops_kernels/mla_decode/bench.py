"""Sparse MLA decode on this machine's card, against SGLang's own sm_120 kernel and FlashMLA's sm_90 one, on the same inputs."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import benchmarking, numerics
from . import cases, op, reference

_STOCK = ("sglang.kernels.ops.attention.flash_mla_sm120_triton", "sglang.srt.layers.attention.flash_mla_sm120_triton")
_FLASH_MLA = ("sgl_kernel.flash_mla", "sglang.kernels.ops.attention.flash_mla_interface")
# What FlashMLA's sparse FP8 decode is built for.
_FLASH_MLA_HEADS = (64, 128)


def figures(device: torch.device, ceilings: benchmarking.Ceilings) -> list[benchmarking.Figure]:
    """The three figures with a time as goal, the ratio to FlashMLA, and three shapes that a decode step also meets."""

    make = functools.partial(_make, device)

    def within(limit: float) -> tuple[str, Callable[[float, dict[str, float]], bool | None]]:
        return f"<= {limit:g} us", lambda ours, _: ours <= limit

    near_flash_mla = "<= 2.5x FlashMLA", lambda ours, peers: ours <= 2.5 * peers["flash_mla"] if "flash_mla" in peers else None
    no_goal = "", lambda ours, peers: None
    wide, few = make(64, 64), make(64, 8)
    measured = [
        ("MLA decode, 8 heads, B=1, 128+512 tokens", make(1, 8), ("stock",), within(14)),
        ("MLA decode, 8 heads, B=64, 128+512 tokens", few, ("stock",), within(22)),
        ("MLA decode, 64 heads, B=64, 128+512 tokens", wide, ("stock",), within(60)),
        ("MLA decode, 64 heads, B=64, against FlashMLA", wide, ("flash_mla",), near_flash_mla),
        ("MLA decode, 64 heads, B=1, 128+512 tokens", make(1, 64), ("stock", "flash_mla"), no_goal),
        (
            "MLA decode, 8 heads, B=16, ratio 128, table of 8,192, 256 tokens",
            make(16, 8, extra_topk=8192, extra_page_size=2, extra_lengths=[256], pool=100_000),
            ("stock",),
            no_goal,
        ),
        (
            "MLA decode, 8 heads, B=64, sliding window alone",
            make(64, 8, extra_topk=None, extra_lengths=None),
            ("stock",),
            no_goal,
        ),
    ]
    return [_figure(name, made, peers, goal, ceilings) for name, made, peers, goal in measured]


def per_rank(device: torch.device, ceilings: benchmarking.Ceilings, heads: int) -> list[benchmarking.Figure]:
    """What one rank of a tensor-parallel server meets: as many heads as it has of its own, at the batches 1, 16 and 64. Nothing is judged.

    ``stock_padded`` is what SGLang 0.5.13 to 0.5.19 calls there: its kernel over 64 heads, whatever the rank has.
    """
    no_goal = "", lambda ours, peers: None
    return [
        _figure(
            f"MLA decode, {heads} heads, B={batch}, 128+512 tokens",
            _make(device, batch, heads),
            ("stock", "flash_mla") if heads in _FLASH_MLA_HEADS else ("stock", "stock_padded"),
            no_goal,
            ceilings,
        )
        for batch in (1, 16, 64)
    ]


def _make(device: torch.device, batch: int, heads: int, **options: Any) -> list[cases.Case]:
    options = {"extra_lengths": [options.get("extra_topk", 512)]} | options
    return benchmarking.rotating(
        device, lambda seed: cases.make(device, batch, heads, seed, lengths=[128], **options), lambda case: case.bytes
    )


def _figure(
    name: str,
    made: Sequence[cases.Case],
    peers: Sequence[str],
    goal: tuple[str, Callable[[float, dict[str, float]], bool | None]],
    ceilings: benchmarking.Ceilings,
) -> benchmarking.Figure:
    times, missing = benchmarking.against(
        [functools.partial(_ours, case) for case in made],
        {peer: functools.partial(lambda make: [make(case) for case in made], _PEERS[peer]) for peer in peers},
    )
    ours = times.pop("ours")
    words, judge = goal
    floor = ceilings.floor_us(made[0].bytes, made[0].flops)
    note = "; ".join(filter(None, (benchmarking.warmth(made[0].q.device, len(made), made[0].bytes), *missing)))
    figure = benchmarking.Figure(name, ours, words, judge(ours, times), times, floor, note)
    return figure.and_right("error", _error(made[0]), reference.WORST_ERROR)


def _ours(case: cases.Case) -> object:
    return op.sparse_mla_decode(*case.positional, **case.keywords)


def _error(case: cases.Case) -> float:
    out, _ = op.sparse_mla_decode(*case.positional, **case.keywords)
    wanted, _ = reference.sparse_mla_decode(*case.positional, **case.keywords)
    return numerics.relative_error(out, wanted)


def _stock(case: cases.Case) -> benchmarking.Call:
    """SGLang's Triton kernel for sm_120: what 0.5.13 to 0.5.15 fall back to, and a switch away in later versions."""
    function = _first_import(_STOCK, "flash_mla_sparse_decode_triton")
    inputs = case.stock
    return functools.partial(
        function,
        inputs["q"],
        inputs["k_cache"],
        inputs["indices"],
        inputs["topk_length"],
        inputs["attn_sink"],
        inputs["head_dim_v"],
        inputs["softmax_scale"],
        inputs["extra_k_cache"],
        inputs["extra_indices_in_kvcache"],
        inputs["extra_topk_length"],
    )


def _stock_padded(case: cases.Case) -> benchmarking.Call:
    """The same over as many heads as FlashMLA is built for."""
    missing = _FLASH_MLA_HEADS[0] - case.q.shape[1]
    sink = None if case.sink is None else torch.nn.functional.pad(case.sink, (0, missing))
    return _stock(dataclasses.replace(case, q=torch.nn.functional.pad(case.q, (0, 0, 0, missing)), sink=sink))


def _flash_mla(case: cases.Case) -> benchmarking.Call:
    """FlashMLA, with a schedule that its first call makes and later ones keep, as the engine uses it for all layers of a step."""
    if case.q.shape[1] not in _FLASH_MLA_HEADS:
        raise ValueError(f"built for {_FLASH_MLA_HEADS} heads")
    function = _first_import(_FLASH_MLA, "flash_mla_with_kvcache")
    metadata = _first_import(_FLASH_MLA, "get_mla_metadata")()[0]
    return functools.partial(
        function, **case.stock, block_table=None, cache_seqlens=None, tile_scheduler_metadata=metadata, is_fp8_kvcache=True
    )


_PEERS: dict[str, Callable[[cases.Case], benchmarking.Call]] = {
    "stock": _stock,
    "stock_padded": _stock_padded,
    "flash_mla": _flash_mla,
}


def _first_import(modules: Sequence[str], name: str) -> Callable[..., Any]:
    for module in modules[:-1]:
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except ImportError:
            continue
    return getattr(importlib.import_module(modules[-1]), name)  # type: ignore[no-any-return]
