"""The glue's launches without a GPU: one launch a call, chosen without looking at data, one binary for all batch sizes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuops_kernels import configs
from gpuops_kernels.gate import stub
from gpuops_kernels.glue import launches, op

SM120 = (12, 0)


@pytest.mark.parametrize("capability", configs.capabilities(), ids=str)
def test_every_key_is_configured(capability: configs.Capability) -> None:
    configs.require(capability, launches.FAMILY.keys)


@pytest.mark.parametrize("rows", [1, 64, 300])
def test_every_call_is_one_launch_chosen_without_looking_at_data(rows: int) -> None:
    for launch in launches.FAMILY.launches:
        with stub.noting(SM120) as noted, FakeTensorMode():
            launch.call(rows)
        assert {each.kernel for each in noted} == {launch.name.removeprefix("decode/")}
        assert all(each.grid[0] == rows for each in noted)


def test_one_binary_for_all_batch_sizes() -> None:
    with stub.compiling(SM120) as binaries:
        for rows in (1, 2, 3, 16, 64):
            launches._latents(rows)
            launches._streams_update(rows)
    assert len({binary.key for binary in binaries if binary.kernel == "latents"}) == 2
    assert len({binary.key for binary in binaries if binary.kernel == "streams_update"}) == 1


def test_a_call_can_be_traced_whole_by_torch_compile() -> None:
    x = launches._bf16(4, 2 * 256)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return op.swiglu_quantise(x * 2, 10.0).scales + 1

    with stub.noting(SM120) as noted:
        torch.compile(layer, backend="eager", fullgraph=True)(x)
    assert [launch.kernel for launch in noted] == ["swiglu_quantise"]


def test_no_rows_are_no_launch() -> None:
    with stub.noting(SM120) as noted:
        for launch in launches.FAMILY.launches:
            launch.call(0)
    assert noted == []
