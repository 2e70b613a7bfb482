"""The gate finds what it is there for: planted kernels that break one rule each."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from gpuops_kernels.gate import check
from gpuops_kernels.registry import Expectation, Family, Launch

SM120 = (12, 0)


@triton.jit
def product(a, b, c, N: tl.constexpr, K: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + n[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + n[:, None] * N + n[None, :], tl.dot(x, y))


@triton.jit
def shifted(a, c, offset, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(c + n, tl.load(a + n + offset) * 2)


def _product(size: int, depth: int, num_warps: int = 4) -> Launch:
    def call(batch: int) -> None:
        a, b = torch.zeros(batch, size, depth, dtype=torch.bfloat16), torch.zeros(depth, size, dtype=torch.bfloat16)
        product[(batch,)](a, b, torch.empty(batch, size, size), N=size, K=depth, num_warps=num_warps)

    return Launch("planted", call)


def _findings(launch: Launch, kernel: str, expected: Expectation) -> list[str]:
    family = Family("test", (), (launch,), {kernel: expected})
    return [finding.what for finding in check.findings(check.compile_family(family, SM120), SM120)]


def test_a_kernel_that_keeps_the_rules_passes() -> None:
    assert _findings(_product(32, 64), "product", Expectation(mma=True, wide_loads=True)) == []


def test_shared_memory_beyond_the_cards_limit_is_caught() -> None:
    (finding,) = [
        what for what in _findings(_product(128, 256, num_warps=8), "product", Expectation(mma=True)) if "shared" in what
    ]
    assert finding == "131072 bytes of shared memory, the limit is 101376"


def test_spilled_registers_are_caught() -> None:
    assert any("spills" in what for what in _findings(_product(256, 32), "product", Expectation(mma=True)))


def test_missing_tensor_core_instructions_are_caught() -> None:
    def call(batch: int) -> None:
        a = torch.zeros(1024)
        shifted[(batch,)](a, torch.empty_like(a), 0, N=512)

    assert _findings(Launch("planted", call), "shifted", Expectation(mma=True)) == ["no tensor-core instruction"]


def test_lost_alignment_is_caught() -> None:
    def call(batch: int) -> None:
        a = torch.zeros(1025)[1:]
        shifted[(batch,)](a, torch.empty_like(a), 3, N=512)

    assert _findings(Launch("planted", call), "shifted", Expectation(wide_loads=True)) == ["no 128-bit load: alignment was lost"]


def test_a_specialisation_by_batch_size_is_caught() -> None:
    def call(batch: int) -> None:
        a = torch.zeros(1024)
        shifted[(batch,)](a, torch.empty_like(a), batch, N=512)

    (finding,) = _findings(Launch("planted", call), "shifted", Expectation())
    assert "binaries for batch sizes (1, 3, 16, 64), expected 1" in finding


def test_a_kernel_that_no_expectation_names_is_caught() -> None:
    assert _findings(_product(32, 64), "another", Expectation()) == ["launched, but the family's expectations do not name it"]


def test_a_change_against_the_record_is_told_by_figure() -> None:
    before = {"f/l/k": {"registers": 100, "shared": 10}, "f/l/old": {}}
    now = {"f/l/k": {"registers": 120, "shared": 10}, "f/l/new": {}}
    assert check.differences(before, now) == ["f/l/k: registers 100 -> 120", "f/l/new: new", "f/l/old: gone"]


@pytest.mark.parametrize("capability", sorted(check.SHARED_LIMIT))
def test_every_capability_has_a_committed_record(capability: tuple[int, int]) -> None:
    assert check.read_record(capability)
