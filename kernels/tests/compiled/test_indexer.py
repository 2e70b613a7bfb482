"""The indexer's launches without a GPU: safe to capture, one binary whatever the batch and the captured maximum."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuops_kernels import configs
from gpuops_kernels.gate import stub
from gpuops_kernels.indexer import launches, op

SM120 = (12, 0)
MULTIPROCESSORS = 188


def _step(batch: int, columns: int) -> None:
    q = torch.empty(batch, 1, op.HEADS, op.HEAD_DIM, dtype=torch.float8_e4m3fn)
    cache = torch.empty(8, op.PAGE, 1, op.HEAD_DIM + 4, dtype=torch.uint8)
    lengths = torch.empty(batch, dtype=torch.int32)
    table = torch.empty(batch, columns, dtype=torch.int32)
    scores = op.fp8_paged_mqa_logits(q, cache, torch.empty(batch, op.HEADS), lengths, table, None, columns * op.PAGE, False)
    op.topk_transform(scores, lengths, table, torch.empty(batch, 512, dtype=torch.int32), op.PAGE)


@pytest.mark.parametrize("capability", configs.capabilities(), ids=str)
def test_every_key_is_configured(capability: configs.Capability) -> None:
    configs.require(capability, launches.FAMILY.keys)


@pytest.mark.parametrize("batch", [1, 16, 64, 500])
def test_launches_are_chosen_without_looking_at_data(batch: int) -> None:
    with stub.noting(SM120) as noted, FakeTensorMode():
        _step(batch, 16)
    assert [launch.kernel for launch in noted] == ["indexer_logits", "indexer_topk"]


def test_the_grid_follows_the_card_and_not_the_captured_maximum() -> None:
    grids = []
    for columns in (16, 4096):
        with stub.noting(SM120) as noted, FakeTensorMode():
            _step(64, columns)
        grids.append([launch.grid for launch in noted])
    assert grids[0] == grids[1]
    ((logits,), (topk,)) = grids[0]
    assert logits % MULTIPROCESSORS == 0 and topk == 64


def test_candidates_of_a_prefill_take_no_more_memory_than_the_card_runs_programs() -> None:
    with stub.noting(SM120) as noted, FakeTensorMode():
        _step(8192, 16)
    assert noted[1].grid == (MULTIPROCESSORS,)


def test_one_binary_for_all_batch_sizes_and_captured_maxima() -> None:
    with stub.compiling(SM120) as binaries:
        for batch in (1, 2, 3, 16, 64):
            for columns in (1, 16, 4096):
                _step(batch, columns)
    assert len({binary.key for binary in binaries}) == 2


def test_torch_compile_sees_opaque_operators_that_write_nothing_but_their_outputs() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    with stub.compiling(SM120) as binaries:
        torch.compile(_step, backend=backend, fullgraph=True)(3, 16)
    assert [binary.kernel for binary in binaries] == ["indexer_logits", "indexer_topk"]
    (graph,) = graphs
    assert sum(target in (torch.ops.gpuops.indexer_logits, torch.ops.gpuops.indexer_topk) for target in graph) == 2
    written = {
        name: {argument.name for argument in operator.default._schema.arguments if argument.is_write}
        for name, operator in (("logits", torch.ops.gpuops.indexer_logits), ("topk", torch.ops.gpuops.indexer_topk))
    }
    assert written == {"logits": {"out"}, "topk": {"slots", "raw"}}
