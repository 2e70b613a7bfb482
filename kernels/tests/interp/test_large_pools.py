"""Pools of more than 2 GiB in the interpreter: what lies beyond is found by 64-bit arithmetic. Memory that nobody touches costs nothing."""

from __future__ import annotations

import dataclasses

import torch

from gpuops_kernels import configs
from gpuops_kernels.glue import cases as glue_cases
from gpuops_kernels.glue import op as glue
from gpuops_kernels.indexer import cases as indexer_cases
from gpuops_kernels.indexer import op as indexer
from gpuops_kernels.mla_decode import cases as mla_cases
from gpuops_kernels.mla_decode import op as mla

STRIDE = 1 << 29
"""Bytes from page to page: the fifth one begins at 2 GiB."""


def _far_apart(pages: torch.Tensor) -> torch.Tensor:
    """A copy of a pool (one byte an element) whose pages lie far apart."""
    memory = torch.empty(pages.shape[0] * STRIDE, dtype=torch.uint8)
    copy = memory.as_strided(pages.shape, (STRIDE, *pages.stride()[1:]))
    copy.copy_(pages.view(torch.uint8))
    return copy.view(pages.dtype)


def test_decode_reads_tokens_beyond_two_gigabytes() -> None:
    with configs.assume((12, 0)):
        case = mla_cases.make("cpu", 1, 8, 3, topk=64, page_size=64, extra_topk=None, pool=320)
        case.main.indices[0, 0] = 5 * 64 - 1
        near = mla.sparse_mla_decode(*case.positional, **case.keywords)
        far = dataclasses.replace(case, main=dataclasses.replace(case.main, cache=_far_apart(case.main.cache)))
        assert all(map(torch.equal, mla.sparse_mla_decode(*far.positional, **far.keywords), near))


def test_the_indexer_reads_pages_beyond_two_gigabytes() -> None:
    with configs.assume((12, 0)):
        case = indexer_cases.make("cpu", [192], seed=1)
        assert case.page_table.max() >= 4
        near = indexer.logits(*case.arguments)
        assert torch.equal(indexer.logits(case.q, _far_apart(case.cache), *case.arguments[2:]), near)


def test_rows_are_stored_beyond_two_gigabytes() -> None:
    with configs.assume((12, 0)):
        case = glue_cases.make("cpu", 100, 2, page_size=64)
        case.rows.slots[0] = 5 * 64 - 1
        far = _far_apart(case.rows.cache)
        glue.kv_store(case.kv[:3], case.kv_weight, glue_cases.EPS, _three(case.rows, far))
        glue.kv_store(case.kv[:3], case.kv_weight, glue_cases.EPS, _three(case.rows, case.rows.cache))
        assert bool((case.rows.cache[4] != glue_cases.UNWRITTEN).any()) and torch.equal(far, case.rows.cache)


def _three(rows: glue.CacheRows, cache: torch.Tensor) -> glue.CacheRows:
    return dataclasses.replace(rows, cache=cache, slots=rows.slots[:3], positions=rows.positions[:3])
