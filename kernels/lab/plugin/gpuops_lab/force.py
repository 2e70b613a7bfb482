"""Take SGLang's sm_120 branches on a card that is none, to compare with what they serve there.

SGLang 0.5.15 asks "is this sm_120?" in two places of DeepSeek-V4's decode; they are told so right after their import. Its server arguments ask too,
and set environment variables, which ``lab/server.py`` sets instead.
"""

from __future__ import annotations

from typing import Any

from . import imports

_FLIPS: dict[str, dict[str, Any]] = {
    "sglang.srt.layers.attention.deepseek_v4_backend": {"_is_sm120": True},
    "sglang.srt.layers.attention.dsv4.indexer": {"is_sm120_supported": lambda *_, **__: True},
}


def install() -> None:
    """Flip them at import."""
    for module, values in _FLIPS.items():
        imports.after(module, lambda loaded, values=values: _flip(loaded, values))


def _flip(module: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if not hasattr(module, name):
            raise AttributeError(f"{module.__name__} has no {name}: this SGLang decides elsewhere whether it runs on sm_120")
        setattr(module, name, value)
    print(f"[gpuops-lab] {module.__name__}: {', '.join(values)}", flush=True)
