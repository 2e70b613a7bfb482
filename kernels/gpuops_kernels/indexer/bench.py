"""The indexer on this machine's card, against the unbalanced split, DeepGEMM, TileLang and SGLang's torch fallback, on the same inputs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .. import benchmarking, numerics
from . import cases, op, reference
from .kernel import score_pages

# SGLang cuts every row of a batch into the same number of parts, for this many programs in all (tilelang_fp8_paged_mqa_logits, NUM_CU).
_UNBALANCED_PROGRAMS = 256

_TILELANG = (
    "sglang.kernels.ops.attention.dsa.tilelang_kernel",
    "sglang.srt.layers.attention.dsa.tilelang_kernel",
)


def figures(device: torch.device, ceilings: benchmarking.Ceilings) -> list[benchmarking.Figure]:
    """The two figures of the logits with their goals, one at full bandwidth, and the top-k after each."""

    def rotating(lengths: Sequence[int], width: int | None = None) -> list[cases.Case]:
        return benchmarking.rotating(device, lambda seed: cases.make(device, lengths, seed, width=width), lambda case: case.bytes)

    captured, skewed, full = rotating([1024] * 16, 262_144), rotating(cases.skewed(), 32_768), rotating([16_384] * 64)
    return [
        _short(captured, ceilings),
        _skewed(skewed, ceilings),
        _full(full, ceilings),
        _topk("B=16, 1,024 compressed each", captured, ceilings),
        _topk("B=64, one at 32,768 and 63 at 256", skewed, ceilings),
        _topk("B=64, 16,384 each", full, ceilings),
    ]


def _short(made: Sequence[cases.Case], ceilings: benchmarking.Ceilings) -> benchmarking.Figure:
    times, notes = _times(made, ("unbalanced", "deep_gemm", "tilelang", "torch"))
    ours = times.pop("ours")
    floor = ceilings.floor_us(made[0].bytes, made[0].flops)
    case = "indexer logits, B=16, captured for 262,144, actual 1,024"
    return _judged(made[0], benchmarking.Figure(case, ours, "<= 12 us", ours <= 12, times, floor, notes))


def _skewed(made: Sequence[cases.Case], ceilings: benchmarking.Ceilings) -> benchmarking.Figure:
    times, notes = _times(made, ("unbalanced", "deep_gemm", "tilelang"))
    ours = times.pop("ours")
    there = {"unbalanced", "deep_gemm"} <= times.keys()
    met = times["unbalanced"] >= 2 * ours and ours <= 1.3 * times["deep_gemm"] if there else None
    floor = ceilings.floor_us(made[0].bytes, made[0].flops)
    case = "indexer logits, B=64, one at 32,768 and 63 at 256"
    figure = benchmarking.Figure(case, ours, ">= 2x an unbalanced split, <= 1.3x DeepGEMM", met, times, floor, notes)
    return _judged(made[0], figure)


def _full(made: Sequence[cases.Case], ceilings: benchmarking.Ceilings) -> benchmarking.Figure:
    times, notes = _times(made, ("unbalanced", "deep_gemm", "tilelang"))
    floor = ceilings.floor_us(made[0].bytes, made[0].flops)
    figure = benchmarking.Figure("indexer logits, B=64, 16,384 each", times.pop("ours"), "", None, times, floor, notes)
    return _judged(made[0], figure)


def _judged(case: cases.Case, figure: benchmarking.Figure) -> benchmarking.Figure:
    return figure.and_right("calc_diff", _difference(case), reference.WORST_DIFFERENCE)


def _difference(case: cases.Case) -> float:
    scores = numerics.poison(torch.empty(case.q.shape[0], case.width, dtype=torch.float32, device=case.q.device))
    return reference.difference(op.logits(*case.arguments, out=scores), reference.logits(*case.arguments[:-1]))


def _topk(case: str, made: Sequence[cases.Case], ceilings: benchmarking.Ceilings) -> benchmarking.Figure:
    inputs = [(op.logits(*each.arguments), each) for each in made]
    times, missing = benchmarking.against(
        [_topk_call(op.topk_transform, *each) for each in inputs],
        {"stock": lambda: [_topk_call(_stock_topk(), *each) for each in inputs]},
    )
    moved = made[0].tokens * 4 + made[0].q.shape[0] * 512 * 4
    notes = _notes(made, moved, missing)
    return benchmarking.Figure(f"indexer top-512, {case}", times.pop("ours"), "", None, times, ceilings.floor_us(moved, 0), notes)


def _notes(made: Sequence[cases.Case], touched: int, missing: Sequence[str]) -> str:
    return "; ".join(filter(None, (benchmarking.warmth(made[0].q.device, len(made), touched), *missing)))


def _topk_call(function: Callable[..., object], scores: torch.Tensor, case: cases.Case) -> benchmarking.Call:
    slots = torch.empty(scores.shape[0], 512, dtype=torch.int32, device=scores.device)
    return functools.partial(function, scores, case.lengths, case.page_table, slots, op.PAGE)


def _times(made: Sequence[cases.Case], peers: Sequence[str]) -> tuple[dict[str, float], str]:
    """Medians of our logits and of the peers that run here, and why the others do not."""
    times, missing = benchmarking.against(
        [functools.partial(op.logits, *each.arguments) for each in made],
        {peer: functools.partial(lambda make: [make(each) for each in made], _PEERS[peer]) for peer in peers},
    )
    return times, _notes(made, made[0].bytes, missing)


@triton.jit
def _unbalanced_kernel(q, cache, weights, lengths, table, logits, page_stride_16, table_stride, logits_stride, splits,
                       HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
    gdc_launch_dependents()
    gdc_wait()
    row = tl.program_id(0) // splits
    length = tl.load(lengths + row)
    pages = tl.cdiv(length, PAGE)
    share = tl.cdiv(pages, splits)
    first = tl.minimum((tl.program_id(0) % splits) * share, pages)
    last = tl.minimum(first + share, pages)
    score_pages(
        q, cache, weights, table, logits, row, first, last, length, page_stride_16, table_stride, logits_stride, HEADS, DIM, PAGE
    )


def unbalanced(case: cases.Case) -> benchmarking.Call:
    """The same inner loop with a fixed number of parts for each row: what balancing is measured against."""
    batch = case.q.shape[0]
    splits = max(1, _UNBALANCED_PROGRAMS // batch)
    cache = case.cache.view(torch.float8_e4m3fn)

    def call() -> torch.Tensor:
        out = torch.empty(batch, case.width, dtype=torch.float32, device=case.q.device)
        _unbalanced_kernel[(batch * splits,)](
            case.q, cache, case.weights, case.lengths, case.page_table, out, case.cache.stride(0) // 16, case.page_table.stride(0), out.stride(0),
            splits, HEADS=op.HEADS, DIM=op.HEAD_DIM, PAGE=op.PAGE, num_warps=4, num_stages=3, launch_pdl=True,
        )  # fmt: skip
        return out

    return call


def _deep_gemm(case: cases.Case) -> benchmarking.Call:
    """DeepGEMM's kernel; its schedule is computed once, as the engine does for all layers of a step."""
    import deep_gemm

    lengths = case.lengths.unsqueeze(-1)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, op.PAGE, deep_gemm.get_num_sms())
    return functools.partial(_stock_call, deep_gemm.fp8_paged_mqa_logits, case, lengths, schedule)


def _tilelang(case: cases.Case) -> benchmarking.Call:
    return functools.partial(_stock_call, _first_import(_TILELANG, "tilelang_fp8_paged_mqa_logits"), case, case.lengths, None)


def _torch(case: cases.Case) -> benchmarking.Call:
    # It gathers every page of the table, so the ids beyond a row's length must lie within the cache.
    inside = cases.Case(
        case.q, case.cache, case.weights, case.lengths, case.page_table.clamp(max=case.cache.shape[0] - 1), case.width
    )
    function = _first_import(("sglang.srt.layers.attention.dsv4.indexer",), "fp8_paged_mqa_logits_torch_sm120")
    return functools.partial(_stock_call, function, inside, inside.lengths, None)


_PEERS: dict[str, Callable[[cases.Case], benchmarking.Call]] = {
    "unbalanced": unbalanced,
    "deep_gemm": _deep_gemm,
    "tilelang": _tilelang,
    "torch": _torch,
}


def _stock_call(
    function: Callable[..., torch.Tensor], case: cases.Case, lengths: torch.Tensor, schedule: torch.Tensor | None
) -> torch.Tensor:
    return function(case.q.unsqueeze(1), case.cache, case.weights, lengths, case.page_table, schedule, case.width, False)


def _stock_topk() -> Callable[..., object]:
    failure: Exception = ImportError("no such module")
    for name in ("topk_transform_paged", "topk_transform_512"):
        for module in ("sglang.kernels.ops.attention.dsv4", "sglang.jit_kernel.dsv4"):
            try:
                function: Callable[..., object] = getattr(importlib.import_module(module), name)
                probe = torch.zeros(1, 512, dtype=torch.int32, device="cuda")
                function(torch.zeros(1, 1024, device="cuda"), probe[0, :1], probe, probe.clone(), op.PAGE)
                return function
            except Exception as error:
                failure = error
    raise failure


def _first_import(modules: Sequence[str], name: str) -> Callable[..., torch.Tensor]:
    for module in modules[:-1]:
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except ImportError:
            continue
    return getattr(importlib.import_module(modules[-1]), name)  # type: ignore[no-any-return]
