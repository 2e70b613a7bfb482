"""Our sparse decode, wrong in the two ways that the comparison has to notice. Never in the product: it is the op's module that is patched here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuops_kernels.plugin import imports

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


def _drop_split(right: Callable[..., Any]) -> Callable[..., Any]:
    """The last of eight splits is never combined: a row's last eighth of tokens is missing, in both caches."""

    def decode(q: Any, cache: Any, indices: Any, **options: Any) -> Any:
        for lengths in ("lengths", "extra_lengths"):
            if options.get(lengths) is not None:
                options[lengths] = options[lengths] - (options[lengths] + _SPLITS - 1) // _SPLITS
        return right(q, cache, indices, **options)

    return decode


def _scale(right: Callable[..., Any]) -> Callable[..., Any]:
    """One of the eight groups of a key is read with a scale that is one power of two off."""

    def decode(q: Any, cache: Any, indices: Any, **options: Any) -> Any:
        doubled = q.clone()
        doubled[..., :64] *= 2
        return right(doubled, cache, indices, **options)

    return decode


PLANTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {"drop_split": _drop_split, "scale": _scale}
