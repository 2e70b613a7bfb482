"""Sparse MLA decode through the real JIT path, without a GPU: what a captured graph may depend on, and how many binaries there are."""

from __future__ import annotations

import collections
import tempfile

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from gpuops_kernels import configs
from gpuops_kernels.gate import machine_code, stub
from gpuops_kernels.mla_decode import cases, launches, layout, op

_CARDS = [(12, 0), (9, 0)]


def _fake(batch: int, heads: int, pages: int = 7) -> None:
    cache = torch.empty((pages, 256, 1, layout.BYTES_PER_TOKEN), dtype=torch.float8_e4m3fn)
    cache = torch.empty_strided(
        cache.shape, (layout.page_bytes(256), layout.BYTES_PER_TOKEN, layout.BYTES_PER_TOKEN, 1), dtype=cache.dtype
    )
    op.sparse_mla_decode(
        torch.empty((batch, heads, 512), dtype=torch.bfloat16),
        cache,
        torch.empty((batch, 128), dtype=torch.int32),
        scale=0.04,
        lengths=torch.empty((batch,), dtype=torch.int32),
        sink=torch.empty((heads,)),
        extra_cache=cache,
        extra_indices=torch.empty((batch, 512), dtype=torch.int32),
        extra_lengths=torch.empty((batch,), dtype=torch.int32),
    )


@pytest.mark.parametrize("capability", _CARDS)
@pytest.mark.parametrize("heads", [8, 64])
@pytest.mark.parametrize("batch", [1, 64])
def test_the_launches_are_chosen_without_any_data(capability, heads, batch):
    with stub.noting(capability) as noted, FakeTensorMode():
        _fake(batch, heads)
    assert next(each.kernel for each in noted) == "mla_decode_split"
    assert {each.kernel for each in noted} <= {"mla_decode_split", "mla_decode_combine"}


@pytest.mark.parametrize("capability", _CARDS)
def test_one_binary_serves_every_batch_table_page_and_head_count_of_a_shape(capability):
    with stub.compiling(capability) as binaries:
        for batch in (1, 2, 3, 16, 64):
            for launch in launches.FAMILY.launches:
                if launch.name.startswith("heads8"):
                    launch.call(batch)
        for heads in (1, 7, 8):
            launches._call(heads, (64, 2), page_size=128)(3)
    by_kernel: dict[str, set[str]] = {}
    for each in binaries:
        by_kernel.setdefault(each.kernel, set()).add(each.key)
    assert {kernel: len(keys) for kernel, keys in by_kernel.items()} == {"mla_decode_split": 1, "mla_decode_combine": 1}


def test_a_call_without_lengths_sink_and_second_cache_is_the_same_binary():
    with stub.compiling((12, 0)) as binaries:
        launches._call(8, (512, 64))(1)
        case = cases.make("cpu", 1, 8, 1, extra_topk=None, with_sink=False)
        op.sparse_mla_decode(*case.positional, scale=1, lengths=None)
        op.sparse_mla_decode(*case.positional, scale=0.5, lengths=None)
    assert len({each.key for each in binaries if each.kernel == "mla_decode_split"}) == 1


def test_a_single_row_is_split_over_many_multiprocessors_and_a_full_batch_over_few():
    with configs.assume((9, 0)):
        alone = op.plan(torch.device("cpu"), 1, 8, 128, 512)
        crowd = op.plan(torch.device("cpu"), 64, 8, 128, 512)
        queue = op.plan(torch.device("cpu"), 4096, 64, 128, 512)
    assert alone.splits >= 16
    assert 2 <= crowd.splits <= 8
    assert queue.splits == 1


def test_no_split_is_planned_that_a_full_row_would_leave_empty():
    with configs.assume((12, 0)):
        for topk, extra in [(1, 0), (128, 0), (128, 512), (128, 8192), (0, 0), (100, 40)]:
            cut = op.plan(torch.device("cpu"), 1, 8, topk, extra)
            tiles = -(-topk // cut.split["BLOCK_T"]) + -(-extra // cut.split["BLOCK_T"])
            share = -(-tiles // cut.splits)
            assert cut.splits == 1 or share * (cut.splits - 1) < tiles


def test_a_capability_without_configurations_is_refused_by_name():
    with configs.assume((7, 0)), pytest.raises(configs.MissingConfigurationError, match=r"7\.0"):
        op.plan(torch.device("cpu"), 1, 8, 128, 512)


def test_torch_compile_sees_one_opaque_operator_and_one_graph_for_all_batch_sizes():
    graphs = []

    def backend(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def step(q, cache, indices, lengths):
        return op.sparse_mla_decode(q * 1.0, cache, indices, scale=0.04, lengths=lengths)[0]

    with stub.compiling((12, 0)) as binaries:
        for batch in (3, 5, 64):
            case = cases.make("cpu", batch, 8, batch, lengths=[128], extra_topk=None, pool=256)
            assert step(*case.positional, case.main.lengths).shape == case.q.shape
    assert [binary.kernel for binary in binaries].count("mla_decode_split") == 3
    assert len(graphs) == 1
    assert sum("sparse_mla_decode" in str(target) for target in graphs[0]) == 1


@pytest.mark.parametrize("capability", _CARDS)
def test_tiles_of_tokens_are_in_shared_memory_once_and_are_read_by_ldmatrix_alone(capability):
    # One bf16 tile of 512 dimensions for each token, and beside it at most queries or a conversion of the weights: a second copy is what a layout
    # conversion costs, and elementwise LDS is how the products then read it (8-way bank conflicts and worse on an H200).
    with stub.compiling(capability) as binaries:
        for heads in (8, 16, 64):
            launches._call(heads, (512, 64))(1)
    for heads, binary in zip((8, 16, 64), [each for each in binaries if each.kernel == "mla_decode_split"], strict=True):
        with configs.assume(capability):
            options = op.plan(torch.device("cpu"), 1, heads, 128, 512).split
        tile = options["BLOCK_T"] * layout.HEAD_DIM * 2
        queries = options["BLOCK_H"] * layout.HEAD_DIM * 2
        assert binary.shared <= tile + queries + 8 * 1024
        counts = _instructions(binary.cubin)
        elementwise = sum(count for name, count in counts.items() if name.startswith("LDS.") and "64" in name.split("."))
        assert elementwise <= 4
        assert sum(count for name, count in counts.items() if name.startswith("LDSM")) >= 50


@pytest.mark.parametrize("capability", _CARDS)
def test_the_combine_exchanges_nothing_through_shared_memory(capability):
    with stub.compiling(capability) as binaries:
        launches._call(8, (512, 64))(1)
    combine = next(each for each in binaries if each.kernel == "mla_decode_combine")
    assert combine.shared == 0
    assert not [name for name in _instructions(combine.cubin) if name.startswith(("LDS", "STS", "BAR"))]


def _instructions(cubin: bytes) -> collections.Counter[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return collections.Counter(
            machine_code._INSTRUCTION.findall(machine_code._tool(knobs.nvidia.nvdisasm.path, "-c", file.name))
        )
