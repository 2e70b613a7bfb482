"""Sparse MLA decode in the interpreter: the kernels' arithmetic against the float64 reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops_kernels import configs, numerics
from gpuops_kernels.mla_decode import cases, op, reference

# Weights are rounded to float16 or bf16 before they meet the values (2^-9 each, averaging over tokens), and results to bf16.
_RELATIVE = 4e-3
_LSE = 2e-3


@pytest.fixture
def splits(monkeypatch):
    """Fix the number of splits, which otherwise follows from the batch and the card."""

    def fix(count: int) -> None:
        planned = op.plan
        monkeypatch.setattr(op, "plan", lambda *arguments: dataclasses.replace(planned(*arguments), splits=count))

    return fix


def check(case: cases.Case) -> None:
    out = numerics.poison(torch.empty_like(case.q))
    lse = numerics.poison(torch.empty(case.q.shape[:2]))
    op.sparse_mla_decode(*case.positional, **case.keywords, out=out, lse=lse)
    wanted, wanted_lse = reference.sparse_mla_decode(*case.positional, **case.keywords)
    assert numerics.relative_error(out, wanted) < _RELATIVE
    assert torch.equal(torch.isinf(lse), torch.isinf(wanted_lse))
    finite = torch.isfinite(wanted_lse)
    assert (lse[finite] - wanted_lse[finite]).abs().max().item() < _LSE if finite.any() else True


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    heads=st.sampled_from([1, 3, 8, 16, 20]),
    topk=st.integers(1, 70),
    page_size=st.sampled_from([64, 128, 256]),
    extra=st.sampled_from([None, (1, 64), (40, 64), (70, 2), (33, 2)]),
    length=st.integers(-2, 80),
    extra_length=st.integers(-2, 80),
    absent=st.sampled_from([0.0, 0.3, 1.0]),
    with_sink=st.booleans(),
)
def test_any_selection_agrees_with_the_reference(seed, heads, topk, page_size, extra, length, extra_length, absent, with_sink):
    with configs.assume((12, 0)):
        check(
            cases.make(
                "cpu",
                1,
                heads,
                seed,
                topk=topk,
                page_size=page_size,
                lengths=[length],
                extra_topk=extra[0] if extra else None,
                extra_page_size=extra[1] if extra else 64,
                extra_lengths=[extra_length],
                absent=absent,
                with_sink=with_sink,
            )
        )


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_any_number_of_splits_gives_the_same_result(splits, count):
    splits(count)
    check(cases.make("cpu", 2, 8, 5, topk=64, lengths=[37, 64], extra_topk=96, extra_lengths=[96, 5], absent=0.2))


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(("length", "absent"), [(0, 0.0), (-3, 0.0), (32, 1.0)])
def test_a_row_that_selects_nothing_gives_zeros_and_minus_infinity(splits, count, length, absent):
    splits(count)
    case = cases.make("cpu", 1, 8, 7, topk=32, lengths=[length], extra_topk=32, extra_lengths=[length], absent=absent)
    out, lse = op.sparse_mla_decode(*case.positional, **case.keywords)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, float("-inf")))


def test_lengths_beyond_the_table_are_clamped_and_no_lengths_mean_all():
    case = cases.make("cpu", 1, 8, 11, topk=40, lengths=None, extra_topk=24, extra_lengths=None)
    every, _ = op.sparse_mla_decode(*case.positional, **case.keywords)
    beyond = case.keywords | {
        "lengths": torch.tensor([4000], dtype=torch.int32),
        "extra_lengths": torch.tensor([4000], dtype=torch.int32),
    }
    clamped, _ = op.sparse_mla_decode(*case.positional, **beyond)
    assert torch.equal(every, clamped)


def test_absent_tokens_before_the_first_real_one_weigh_nothing():
    case = cases.make("cpu", 1, 8, 12, topk=96, extra_topk=None)
    case.main.indices[:, :64] = -1
    check(case)


def test_changing_lengths_and_indices_in_place_changes_the_result_of_the_same_launch():
    case = cases.make("cpu", 2, 8, 13, topk=64, lengths=[64], extra_topk=32, extra_lengths=[32])
    check(case)
    assert case.main.lengths is not None
    case.main.lengths.copy_(torch.tensor([3, 0]))
    case.main.indices.copy_(case.main.indices.flip(1))
    check(case)


def test_heads_of_padded_queries_are_left_out():
    case = cases.make("cpu", 2, 20, 17, topk=32, extra_topk=None)
    case.q[:, 8:] = float("nan")
    out, lse = op.flash_mla_with_kvcache_sm120(**case.stock, heads=8)
    real = dataclasses.replace(case, q=case.q[:, :8])
    wanted, _ = reference.sparse_mla_decode(*real.positional, **real.keywords)
    assert out.shape == (2, 1, 20, 512)
    assert lse.shape == (2, 8, 1)
    assert numerics.relative_error(out[:, 0, :8], wanted) < _RELATIVE


def test_heads_without_numbers_do_not_spoil_their_neighbours():
    case = cases.make("cpu", 1, 20, 19, topk=32, extra_topk=None)
    case.q[:, 8:] = float("nan")
    out, _ = op.flash_mla_with_kvcache_sm120(**case.stock)
    assert torch.isfinite(out[:, :, :8]).all()


def test_the_adapter_for_stocks_function_takes_its_keywords_and_gives_its_shapes():
    case = cases.make("cpu", 2, 8, 23, topk=64, lengths=[64], extra_topk=64, extra_page_size=2, extra_lengths=[9])
    out, lse = op.flash_mla_with_kvcache_sm120(**(case.stock | {"softmax_scale": None}))
    wanted, wanted_lse = reference.sparse_mla_decode(*case.positional, **case.keywords)
    assert out.shape == (2, 1, 8, 512)
    assert lse.shape == (2, 8, 1)
    assert numerics.relative_error(out.squeeze(1), wanted) < _RELATIVE
    assert (lse.squeeze(2) - wanted_lse).abs().max().item() < _LSE


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"q": lambda case: case.q.float()}, "q has to be bf16"),
        ({"indices": lambda case: case.main.indices.long()}, "indices has to be int32"),
        ({"cache": lambda case: case.main.cache[:, :, :, :583]}, "cache has to be e4m3"),
        ({"cache": lambda case: case.main.cache[:, :96]}, "power of two"),
        ({"lengths": lambda case: torch.zeros(5, dtype=torch.int32)}, "lengths has to be contiguous int32"),
        ({"sink": lambda case: torch.zeros(7)}, "sink has to be contiguous float32"),
        ({"extra_cache": lambda case: case.main.cache}, "go together"),
    ],
)
def test_inputs_that_do_not_fit_are_named(change, named):
    case = cases.make("cpu", 1, 8, 29, topk=32, extra_topk=None)
    arguments = {"q": case.q, "cache": case.main.cache, "indices": case.main.indices, **case.keywords}
    arguments |= {name: make(case) for name, make in change.items()}
    with pytest.raises(ValueError, match=named):
        op.sparse_mla_decode(**arguments)


def test_the_reference_agrees_with_a_token_dequantised_by_hand():
    generator = torch.Generator().manual_seed(1)
    cache = cases.paged_cache(generator, "cpu", 5, 2)
    found = reference.tokens(cache, torch.tensor([3]))[0]
    page = cache.view(torch.uint8).as_strided((1, 1728), (1728, 1), cache.stride(0))[0]
    values = page[576 : 576 + 448].view(torch.float8_e4m3fn).double()
    scales = 2.0 ** (page[1152 + 8 : 1152 + 15].double() - 127)
    assert torch.equal(found[:448], (values.view(7, 64) * scales[:, None]).flatten())
    assert torch.equal(found[448:], page[576 + 448 : 1152].view(torch.bfloat16).double())


@pytest.mark.parametrize("option", [{"FLOAT16": 0}, {"FLOAT16": 1}, {"EARLY": 0}, {"EARLY": 1}], ids=str)
@pytest.mark.parametrize("heads", [8, 16])
def test_with_either_value_of_an_option_the_result_agrees_with_the_reference(monkeypatch, heads, option):
    planned = op.plan

    def plan(*arguments):
        cut = planned(*arguments)
        return dataclasses.replace(cut, split={**cut.split, **option})

    monkeypatch.setattr(op, "plan", plan)
    with configs.assume((12, 0)):
        check(
            cases.make(
                "cpu", 1, heads, 5, topk=40, lengths=[37], extra_topk=33, extra_page_size=2, extra_lengths=[33], absent=0.1
            )
        )


def test_no_rows_are_no_launch_through_either_of_the_engines_functions():
    case = cases.make("cpu", 1, 8, 0, lengths=[128], extra_lengths=[512])
    of_a_row = ("q", "indices", "topk_length", "extra_indices_in_kvcache", "extra_topk_length")
    stock = {name: value[:0] if name in of_a_row else value for name, value in case.stock.items()}
    out, lse = op.flash_mla_with_kvcache_sm120(**stock, heads=4)
    assert (out.shape, lse.shape) == ((0, 1, 8, 512), (0, 4, 1))
    out, _ = op.flash_mla_sparse_decode_triton(
        *(stock[name] for name in ("q", "k_cache", "indices", "topk_length", "attn_sink", "head_dim_v", "softmax_scale"))
    )
    assert out.shape == (0, 1, 8, 512)
