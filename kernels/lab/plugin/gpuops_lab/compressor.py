"""Keep a product of SGLang's compressor out of torch.compile.

It asks for a float32 result of bfloat16 operands (``torch.mm(..., out_dtype=torch.float32)``). Under torch.compile (torch 2.11, SGLang
0.5.15.post1) what reached the compressor's kernel was bfloat16; the kernel, compiled for the type that comes, then refused its float32 table:
"Dtype value [float32] not in the allowed options: [bfloat16]".
"""

from __future__ import annotations

from typing import Any

from . import imports

_MODULE = "sglang.srt.layers.attention.dsv4.compressor"


def install() -> None:
    """Wrap the product where it is called, right after the import of its caller."""
    imports.after(_MODULE, _wrap)


def _wrap(module: Any) -> None:
    import torch

    module.linear_bf16_fp32 = torch.compiler.disable(module.linear_bf16_fp32)
    print(f"[gpuops-lab] {_MODULE}: linear_bf16_fp32 is not compiled", flush=True)
