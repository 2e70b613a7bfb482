"""The paged FP8 cache of DeepSeek-V4, as SGLang keeps it (mem_cache/deepseek_v4_memory_pool.py; FlashMLA calls the layout MODEL1).

A page holds its tokens' data and then their scales, padded to a multiple of 576 bytes::

    tokens x 576 bytes   448 e4m3 values, then 64 bf16 values (RoPE)
    tokens x   8 bytes   seven UE8M0 scales, one for each 64 e4m3 values, and a byte of padding

Pages hold 256 tokens (sliding window; 64 with SGLANG_OPT_SM120_DIRECT_SWA_KV), 64 (ratio 4) or 2 (ratio 128).
"""

HEAD_DIM = 512
NOPE_DIM = 448
ROPE_DIM = 64
GROUP = 64
GROUPS = NOPE_DIM // GROUP
TOKEN_BYTES = NOPE_DIM + 2 * ROPE_DIM
SCALE_BYTES = 8
BYTES_PER_TOKEN = TOKEN_BYTES + SCALE_BYTES
PAGE_ALIGNMENT = 576


def page_bytes(page_size: int) -> int:
    """Bytes from one page to the next in the engine's pools."""
    return -(-page_size * BYTES_PER_TOKEN // PAGE_ALIGNMENT) * PAGE_ALIGNMENT
