"""mHC's launches without a GPU: safe to capture, one binary for all batch sizes, nothing for torch.compile to break at."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuops_kernels import configs
from gpuops_kernels.gate import stub
from gpuops_kernels.mhc import adapters, launches, op
from gpuops_kernels.plugin import replacement, targets

SM120 = (12, 0)
MULTIPROCESSORS = 188


def _boundary(rows: int) -> None:
    launches._post_pre(rows, 4096)


@pytest.mark.parametrize("capability", configs.capabilities(), ids=str)
def test_every_key_is_configured(capability: configs.Capability) -> None:
    configs.require(capability, launches.FAMILY.keys)


def test_the_plugin_knows_for_which_models_the_kernels_are_made() -> None:
    placed = [engine.families["mhc"] for engine in targets.ENGINES]
    assert all(family.hiddens == set(op.HIDDENS) for family in placed)


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 300])
def test_every_call_is_two_launches_chosen_without_looking_at_data(rows: int) -> None:
    with stub.noting(SM120) as noted, FakeTensorMode():
        launches._linear(rows, 4096)
        launches._pre(rows, 4096)
        _boundary(rows)
    assert [launch.kernel for launch in noted] == [
        "linear_partials",
        "linear_reduce",
        *["linear_partials", "pre_finish"] * 2,
        *["boundary_partials", "pre_finish"] * 2,
    ]


@pytest.mark.parametrize("rows", [1, 16, 64, 256])
def test_a_decode_step_fills_most_of_the_card_in_one_wave(rows: int) -> None:
    with stub.noting(SM120) as noted, FakeTensorMode():
        launches._linear(rows, 4096)
        _boundary(rows)
    for launch in noted:
        if launch.kernel.endswith("_partials"):
            tiles, splits = launch.grid
            assert 0.6 * MULTIPROCESSORS <= tiles * splits <= 2 * MULTIPROCESSORS


def test_every_launch_is_a_dependent_one() -> None:
    with stub.noting(SM120) as noted, FakeTensorMode():
        launches._linear(4, 4096)
        launches._pre(4, 4096)
        _boundary(4)
    assert all(dict(launch.options)["launch_pdl"] for launch in noted)


def test_up_to_sixty_four_rows_a_share_of_k_is_one_block_and_the_weight_is_read_once() -> None:
    with stub.noting(SM120) as noted, FakeTensorMode():
        for rows in (1, 16, 32, 64):
            launches._linear(rows, 4096)
            _boundary(rows)
    partials = [launch for launch in noted if launch.kernel.endswith("_partials")]
    assert all(dict(launch.options)["ONE_BLOCK"] and launch.grid[0] == 1 for launch in partials)


def test_one_binary_for_every_batch_size_that_a_configuration_serves() -> None:
    with stub.compiling(SM120) as binaries:
        for rows in (1, 2, 3, 16):
            launches._linear(rows, 4096)
    assert len({binary.key for binary in binaries}) == 2


def test_a_layer_can_be_traced_whole_by_torch_compile() -> None:
    case = launches._case(8, 4096)

    def layer(residual: torch.Tensor) -> torch.Tensor:
        return op.pre(residual, case.weight, case.scale, case.base, case.constants, case.norm)[2] + 1

    traced: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        traced.append(graph)
        return graph

    with stub.noting(SM120) as noted, configs.assume(SM120):
        torch.compile(layer, backend=backend, fullgraph=True)(case.residual)
    assert len(traced) == 1
    assert [launch.kernel for launch in noted] == ["linear_partials", "pre_finish"]


@pytest.mark.parametrize("inference", [True, False])
def test_a_parameter_is_prepared_once_and_anew_where_captured_graphs_read_it(inference: bool) -> None:
    fn = torch.nn.Parameter(torch.randn(24, 512))
    adapters.refresh(fn)
    with torch.inference_mode(inference):
        first = adapters.prepared(fn)
    assert adapters.prepared(fn) is first
    before, address = first.clone(), first.data_ptr()
    fn.data.mul_(2)
    adapters.refresh(fn)
    assert torch.equal(first, before * 2) and adapters.prepared(fn) is first
    fn.data = torch.randn(24, 512)
    assert adapters.prepared(fn) is first and first.data_ptr() == address
    assert torch.equal(first, op.split_weight(fn.detach()))


def test_up_to_thirty_two_rows_the_engines_own_boundary_serves() -> None:
    served = []
    adapters.fused_post_pre(lambda *arguments, **options: served.append(arguments), torch.empty(32, 4096), "residual")
    assert len(served) == 1


@pytest.mark.parametrize("rows", [8, 64])
def test_counting_calls_and_those_that_are_passed_on_is_nothing_that_torch_compile_sees(rows: int) -> None:
    calls = replacement.Calls(lambda: None)

    def around(own: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return own(x) if x.shape[0] <= adapters.FUSED_ROWS else x * 2

    ours = replacement._counted(functools.partial(around, replacement._passed_on(lambda x: x * 3, calls)), calls, {})
    x = torch.ones(rows, 4)
    traced = torch.compile(lambda x: ours(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(traced(x), ours(x) + 1) and (calls.count, calls.passed_on) == (int(rows == 64), int(rows == 8))
