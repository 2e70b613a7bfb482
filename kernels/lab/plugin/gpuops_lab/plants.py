"""Our kernels, wrong in the ways that the comparisons have to notice. Never in the product: it is the op's module that is patched here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import imports

Function = Callable[..., Any]

_OP = "gpuops_kernels.mla_decode.op"
_SPLITS = 8


def install(plant: str) -> None:
    """Replace ``sparse_mla_decode`` when its module is imported.

    Raises:
        KeyError: no such plant.
    """
    wrong = PLANTS[plant]
    imports.after(_OP, lambda module: setattr(module, "sparse_mla_decode", wrong(module.sparse_mla_decode)))
    print(f"[gpuops-lab] planted: {plant}", flush=True)


def engine_drop_split(right: Function) -> Function:
    """As ``drop_split``, for the function with the engine's signature (:mod:`.shadow` compares there)."""
    return _without_the_last_split(right, ("topk_length", "extra_topk_length"))


def engine_scale(right: Function) -> Function:
    """As ``scale``, for the function with the engine's signature."""

    def decode(**options: Any) -> Any:
        return right(**{**options, "q": _first_group_doubled(options["q"])})

    return decode


def head_scale(right: Function) -> Function:
    """The indexer: the weight of one of 64 heads is twice as large."""

    def logits(q: Any, cache: Any, weight: Any, *arguments: Any, **options: Any) -> Any:
        doubled = weight.clone()
        doubled[:, 0] *= 2
        return right(q, cache, doubled, *arguments, **options)

    return logits


def mix_scale(right: Function) -> Function:
    """mHC-pre: the scale of one of the three mixes is twice as large."""

    def pre(layer: Any, x: Any, fn: Any, scale: Any, *arguments: Any, **options: Any) -> Any:
        doubled = scale.clone()
        doubled[2] *= 2
        return right(layer, x, fn, doubled, *arguments, **options)

    return pre


def _drop_split(right: Function) -> Function:
    """The last of eight splits is never combined: a row's last eighth of tokens is missing, in both caches."""
    return _without_the_last_split(right, ("lengths", "extra_lengths"))


def _scale(right: Function) -> Function:
    """One of the eight groups of a key is read with a scale that is one power of two off."""

    def decode(q: Any, cache: Any, indices: Any, **options: Any) -> Any:
        return right(_first_group_doubled(q), cache, indices, **options)

    return decode


def _without_the_last_split(right: Function, names: tuple[str, str]) -> Function:
    def decode(*arguments: Any, **options: Any) -> Any:
        shorter = {
            name: options[name] - (options[name] + _SPLITS - 1) // _SPLITS for name in names if options.get(name) is not None
        }
        return right(*arguments, **{**options, **shorter})

    return decode


def _first_group_doubled(q: Any) -> Any:
    doubled = q.clone()
    doubled[..., :64] *= 2
    return doubled


PLANTS: dict[str, Callable[[Function], Function]] = {"drop_split": _drop_split, "scale": _scale}
