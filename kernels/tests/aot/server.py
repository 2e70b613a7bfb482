"""Launches as an engine makes them, through Triton's own CUDA driver, for a card that is not there: its compute capability, then batch sizes.

The driver is real, its ``libcuda`` is the test's: it answers "success" to everything. The cache is that of ``TRITON_CACHE_DIR``.
"""

import sys

import torch
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

from gpuops_kernels import configs
from gpuops_kernels.indexer import op as indexer
from gpuops_kernels.mhc import adapters as mhc
from gpuops_kernels.mla_decode import layout
from gpuops_kernels.mla_decode import op as mla_decode

HEADS = 8


def cache(pages: int, page_size: int) -> torch.Tensor:
    memory = torch.zeros((pages, layout.page_bytes(page_size)), dtype=torch.uint8)
    tokens = memory[:, : page_size * layout.BYTES_PER_TOKEN].view(pages, page_size, 1, layout.BYTES_PER_TOKEN)
    return tokens.view(torch.float8_e4m3fn)


def attend(batch: int) -> None:
    """As the attention backend of 0.5.15 does: heads padded to 64, of which the rank has 8."""
    mla_decode.flash_mla_with_kvcache_sm120(
        heads=HEADS,
        q=torch.zeros((batch, 1, 64, layout.HEAD_DIM), dtype=torch.bfloat16),
        k_cache=cache(5, 256),
        indices=torch.zeros((batch, 1, 128), dtype=torch.int32),
        topk_length=torch.zeros(batch, dtype=torch.int32),
        attn_sink=torch.zeros(64),
        head_dim_v=layout.HEAD_DIM,
        softmax_scale=0.0442,
        extra_k_cache=cache(7, 64),
        extra_indices_in_kvcache=torch.zeros((batch, 1, 512), dtype=torch.int32),
        extra_topk_length=torch.zeros(batch, dtype=torch.int32),
    )


def score(batch: int) -> None:
    columns = 77
    indexer.fp8_paged_mqa_logits(
        torch.zeros((batch, 1, indexer.HEADS, indexer.HEAD_DIM), dtype=torch.float8_e4m3fn),
        torch.zeros((9, indexer.PAGE, 1, indexer.HEAD_DIM + 4), dtype=torch.uint8),
        torch.zeros((batch, indexer.HEADS)),
        torch.zeros((batch, 1), dtype=torch.int32),
        torch.zeros((batch, columns), dtype=torch.int32),
        None,
        columns * indexer.PAGE,
        False,
    )


def cross(rows: int, hidden: int = 4096) -> None:
    """The boundary between two sublayers, as 0.5.18 to 0.5.23 call it above 32 tokens."""
    mhc.fused_post_pre(
        lambda *arguments, **options: None,
        torch.zeros((rows, hidden), dtype=torch.bfloat16),
        torch.zeros((rows, 4, hidden), dtype=torch.bfloat16),
        torch.zeros((rows, 4, 1)),
        torch.zeros((rows, 4, 4)),
        torch.zeros((24, 4 * hidden)),
        torch.zeros(3),
        torch.zeros(24),
        1e-6,
        1e-6,
        1e-6,
        2.0,
        20,
        norm_weight=torch.zeros(hidden, dtype=torch.bfloat16),
        norm_eps=1e-6,
    )


def main() -> None:
    major, minor = (int(part) for part in sys.argv[1].split("."))
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.current_device = lambda: 0
    torch.cuda.current_stream = None
    card = CudaDriver()
    card.get_current_stream = lambda device: 0
    driver.set_active(card)
    with configs.assume((major, minor)):
        for batch in map(int, sys.argv[2:]):
            attend(batch)
            score(batch)
            cross(batch)


if __name__ == "__main__":
    main()
