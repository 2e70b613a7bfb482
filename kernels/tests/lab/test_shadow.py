"""The lab's shadow without a card: what it computes beside an engine's own function, and what it writes down."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the shadow compares tensors")

PLUGIN = Path(__file__).parents[2] / "lab" / "plugin"


@pytest.fixture
def shadow() -> Iterator[ModuleType]:
    sys.path.insert(0, str(PLUGIN))
    yield importlib.import_module("gpuops_lab.shadow")
    sys.path.remove(str(PLUGIN))


def _double(right: Any) -> Any:
    return lambda x, **options: 2 * right(x, **options)


def _module(shadow: ModuleType, error: float, record: Any, stock: Any) -> ModuleType:
    module = ModuleType("ours")
    module.function = lambda x, **options: x + error
    watched = shadow.Watched("family", "ours", "function", lambda result, *_: {"out": result}, {"doubled": _double})
    record.stock["ours:function"] = stock
    shadow._watch(module, watched, record)
    return module


def test_ours_and_a_planted_error_are_compared_with_stock_and_ours_is_what_the_engine_gets(
    shadow: ModuleType, tmp_path: Path
) -> None:
    module = _module(shadow, 0.0, shadow.Record(tmp_path / "shadow.json"), lambda x: x.clone())
    x = torch.arange(1.0, 9.0)
    assert torch.equal(module.function(x), x)
    found = json.loads((tmp_path / "shadow.json").read_text())["family.out"]
    assert found["right"] == {"calls": 1, "worst": 0.0, "median": 0.0, "largest": 0.0}
    # calc_diff of x and 2x: 1 - 2 * 2 / (1 + 4).
    assert found["doubled"]["median"] == pytest.approx(0.2) and found["doubled"]["largest"] == 1.0


def test_nan_is_the_worst_there_is(shadow: ModuleType, tmp_path: Path) -> None:
    module = _module(shadow, float("nan"), shadow.Record(tmp_path / "shadow.json"), lambda x: x.clone())
    module.function(torch.ones(3))
    assert json.loads((tmp_path / "shadow.json").read_text())["family.out"]["right"]["worst"] == 2.0


def test_stock_is_not_given_what_is_the_plugins_own(shadow: ModuleType, tmp_path: Path) -> None:
    module = _module(shadow, 0.0, shadow.Record(tmp_path / "shadow.json"), lambda x: x.clone())
    module.function(torch.ones(3), heads=2)
    assert "family.out" in json.loads((tmp_path / "shadow.json").read_text())


def test_a_function_whose_stock_is_not_known_is_not_compared(shadow: ModuleType, tmp_path: Path) -> None:
    module = _module(shadow, 0.0, shadow.Record(tmp_path / "shadow.json"), None)
    assert torch.equal(module.function(torch.ones(3)), torch.ones(3))
    assert not (tmp_path / "shadow.json").exists()


def test_logits_beyond_a_rows_length_are_not_compared(shadow: ModuleType) -> None:
    scores = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    arguments = (None, None, None, torch.tensor([[1], [2]], dtype=torch.int32))
    assert torch.equal(shadow._scored(scores, arguments, {})["logits"], torch.tensor([[1.0, 0.0], [2.0, 3.0]]))


def test_stocks_mix_is_normalised_where_ours_has_the_norm_in_it(shadow: ModuleType) -> None:
    y, mix = torch.ones(2, 4), torch.ones(2, 4)
    fused = shadow._mixed((y, mix, mix.view(2, 2, 2), True), (0, 1, 2, 3, 4, lambda y: 3 * y), {})
    plain = shadow._mixed((y, mix, mix.view(2, 2, 2), False), (0, 1, 2, 3, 4), {"norm": lambda y: 3 * y})
    assert torch.equal(fused["input"], y) and torch.equal(plain["input"], 3 * y)


@pytest.mark.parametrize("name", ["engine_drop_split", "engine_scale", "head_scale", "mix_scale"])
def test_every_planted_error_changes_what_ours_is_given(shadow: ModuleType, name: str) -> None:
    plants = importlib.import_module("gpuops_lab.plants")
    seen: list[Any] = []

    def right(*arguments: Any, **options: Any) -> None:
        seen.append((arguments, options))

    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {"q": torch.ones(1, 1, 2, 512), "topk_length": torch.tensor([9])}
    if not name.startswith("engine"):
        arguments, options = (torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 4), torch.ones(3)), {}
    getattr(plants, name)(right)(*arguments, **options)
    flat = lambda a, o: torch.cat([each.flatten().float() for each in (*a, *o.values())])  # noqa: E731
    assert not torch.equal(flat(*seen[0]), flat(arguments, options))
