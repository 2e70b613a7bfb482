"""Stock, ours and errors planted into ours, side by side on the inputs that the engine really has; the differences go to a file.

Answers of a model drift apart by rounding alone, so that comparing them needs a bound wide enough for that. Here nothing drifts: each call of a
function that the pack replaces computes stock's result and ours from the same tensors. The engine goes on with ours. Reading a difference back
waits for the card, so the server runs without CUDA graphs; what is captured, if anything, is ours alone, and is counted as such.

``shadow.json`` in ``LAB_FOLDER``: for each family, what was compared (``right``, and each planted error by name) and over how many calls, as
``calls``, ``worst`` and ``median`` of calc_diff, and ``largest``, the worst difference of an element relative to the largest one.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gpuops_kernels.numerics import calc_diff
from gpuops_kernels.plugin import imports, replacement

from . import plants

RIGHT = "right"
_WRITE_EVERY = 50

Function = Callable[..., Any]
Results = Callable[[Any, Sequence[Any], Mapping[str, Any]], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Watched:
    """A function of the pack that stands in for one of the engine's.

    Args:
        family: whose it is.
        module, attribute: ours.
        results: from what a call returned, and the call's arguments by position and by name, to the tensors that are compared, each by name.
        planted: ours with an error, by the error's name.
    """

    family: str
    module: str
    attribute: str
    results: Results
    planted: Mapping[str, Callable[[Function], Function]]


@dataclass
class Differences:
    """What was seen of one comparison."""

    diffs: list[float] = field(default_factory=list)
    largest: float = 0.0

    def note(self, ours: torch.Tensor, stock: torch.Tensor) -> None:
        """Add one call's."""
        self.diffs.append(calc_diff(ours, stock))
        scale = float(stock.abs().max()) if stock.numel() else 0.0
        if scale:
            self.largest = max(self.largest, float((ours.float() - stock.float()).abs().max()) / scale)

    def summary(self) -> dict[str, float]:
        """As it goes to the file; a difference that is no number counts as the worst there is."""
        numbers = [each if each == each else 2.0 for each in self.diffs]
        return {
            "calls": len(numbers),
            "worst": max(numbers),
            "median": statistics.median(numbers),
            "largest": self.largest,
        }


def install(file: Path) -> None:
    """Compare from now on, in this process, and keep ``file`` up to date."""
    record = Record(file)
    check = replacement.Replacement._check

    def noting_stock(self: Any, module: Any, stock: Function) -> None:
        check(self, module, stock)
        record.stock[self.target.replacement] = stock

    replacement.Replacement._check = noting_stock
    for watched in WATCHED:
        imports.after(watched.module, lambda module, watched=watched: _watch(module, watched, record))


class Record:
    """The differences of this process, and the engine's own functions by the path of ours."""

    def __init__(self, file: Path) -> None:
        self.stock: dict[str, Function] = {}
        self._file = file
        self._seen: dict[str, dict[str, Differences]] = {}
        self._calls = 0

    def note(self, family: str, contestant: str, ours: Mapping[str, torch.Tensor], stock: Mapping[str, torch.Tensor]) -> None:
        """Compare the results of a call."""
        for name, tensor in stock.items():
            seen = self._seen.setdefault(f"{family}.{name}", {}).setdefault(contestant, Differences())
            seen.note(ours[name], tensor)

    def called(self) -> None:
        """A call is through: write now and then, and at the very first ones, so that a run cut short leaves something."""
        self._calls += 1
        if self._calls > _WRITE_EVERY and self._calls % _WRITE_EVERY:
            return
        found = {key: {name: each.summary() for name, each in all_seen.items()} for key, all_seen in self._seen.items()}
        temporary = self._file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found))
        temporary.replace(self._file)


def _watch(module: Any, watched: Watched, record: Record) -> None:
    ours = getattr(module, watched.attribute)
    contestants = {RIGHT: ours, **{name: plant(ours) for name, plant in watched.planted.items()}}

    def call(*arguments: Any, **options: Any) -> Any:
        stock = record.stock.get(f"{watched.module}:{watched.attribute}")
        result = ours(*arguments, **options)
        if stock is None or _recorded():
            return result
        # `heads` is the plugin's, not the engine's: with it ours leaves the padding of a rank's heads unwritten.
        theirs = {name: value for name, value in options.items() if name != "heads"}
        expected = watched.results(stock(*arguments, **theirs), arguments, options)
        for name, contestant in contestants.items():
            got = result if name == RIGHT else contestant(*arguments, **options)
            record.note(watched.family, name, watched.results(got, arguments, options), expected)
        record.called()
        return result

    setattr(module, watched.attribute, call)


def _recorded() -> bool:
    """Whether this call goes into a CUDA graph or a compiled function: there nothing can be read back."""
    return torch.compiler.is_compiling() or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _attended(result: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    # [B, 1, heads, 512]; element 0 is what the engine uses.
    return {"out": result[0][:, :, : options.get("heads")]}


def _scored(result: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    # Beyond a row's length stock writes -inf, and ours nothing: nobody reads there.
    lengths = arguments[3].reshape(-1, 1)
    valid = torch.arange(result.shape[1], device=result.device)[None, :] < lengths
    return {"logits": torch.where(valid, result, 0.0)}


def _mixed(result: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    y, post, comb, normalised = result
    norm = options.get("norm", arguments[5] if len(arguments) > 5 else None)
    if norm is not None and not normalised and y.numel():
        y = norm(y)
    return {"input": y, "post": post.flatten(1), "comb": comb.flatten(1)}


WATCHED = (
    Watched(
        "mla_decode",
        "gpuops_kernels.mla_decode.op",
        "flash_mla_with_kvcache_sm120",
        _attended,
        {"drop_split": plants.engine_drop_split, "scale": plants.engine_scale},
    ),
    Watched("indexer", "gpuops_kernels.indexer.op", "fp8_paged_mqa_logits", _scored, {"scale": plants.head_scale}),
    Watched("mhc", "gpuops_kernels.mhc.adapters", "hc_pre", _mixed, {"scale": plants.mix_scale}),
)
