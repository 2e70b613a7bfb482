"""The names under which Triton caches our kernels' binaries: the same in every process.

Triton 3.6.0 hashes into a function's key the ``tl.constexpr`` globals of those callees whose own key is known already
(``DependenciesFinder._update_hash`` merges them before it asks for the callee's key; 3.8.0 asks first). So the same kernel has one key where another
kernel has called the same helper before, and another key where none has: a cache that was filled ahead of time would be missed, and one server's
cache by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton.runtime.jit import JITFunction


def settle(module: Mapping[str, Any]) -> None:
    """Ask for the keys of a module's Triton functions in the order of their definition; to be called at the module's end, with its ``globals()``."""
    for function in list(module.values()):
        if isinstance(function, JITFunction):
            function.cache_key  # noqa: B018 (a property that keeps what it computes)
