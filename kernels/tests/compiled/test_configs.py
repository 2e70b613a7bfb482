"""Configurations are data, and a missing one is a clear error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpuops_kernels import configs, registry

CPU = torch.device("cpu")


def _entry(block: int) -> dict[str, int]:
    return {"BLOCK": block, "num_warps": 8, "num_stages": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(configs, "_FOLDER", tmp_path)
    configs.load.cache_clear()
    (tmp_path / "cc77.json").write_text(json.dumps({"a.split": {"heads16": _entry(32), "bad": _entry(1)}}))
    yield tmp_path
    configs.load.cache_clear()


@pytest.mark.parametrize("family", registry.families(), ids=lambda family: family.name)
@pytest.mark.parametrize("capability", configs.capabilities())
def test_every_key_of_every_family_has_a_configuration_on_every_card(
    family: registry.Family, capability: configs.Capability
) -> None:
    configs.require(capability, family.keys)


def test_the_two_cards_have_configurations() -> None:
    assert {(9, 0), (12, 0)} <= set(configs.capabilities())


def test_a_missing_shape_names_the_file_and_what_it_has(folder: Path) -> None:
    with pytest.raises(configs.MissingConfigurationError) as missing:
        configs.of((7, 7), "a.split", "heads64")
    assert str(missing.value) == (
        f"no configuration for kernel a.split, shape heads64, on compute capability 7.7: {folder}/cc77.json has bad, heads16; "
        "add one there and run `make gate`"
    )


def test_a_card_without_a_file_is_told_which_cards_have_one(folder: Path) -> None:
    with pytest.raises(
        configs.MissingConfigurationError,
        match=r"no configurations for .* 8\.0: .*cc80\.json does not exist; .* 7\.7",
    ):
        configs.of((8, 0), "a.split", "heads16")


def test_an_entry_without_its_warps_is_refused_with_its_place(folder: Path) -> None:
    (folder / "cc77.json").write_text(json.dumps({"a.split": {"bad": {"BLOCK": 1}}}))
    with pytest.raises(configs.MissingConfigurationError, match=r"cc77\.json: a\.split, shape bad: num_warps is missing"):
        configs.of((7, 7), "a.split", "bad")


def test_tensors_on_the_cpu_take_what_the_innermost_assumption_says(folder: Path) -> None:
    (folder / "cc77.json").write_text(json.dumps({"k": {"s": {"BLOCK": 32, "num_warps": 8, "num_stages": 2}}}))
    (folder / "cc78.json").write_text(json.dumps({"k": {"s": {"BLOCK": 64, "num_warps": 4, "num_stages": 1}}}))
    with configs.assume((7, 7)):
        with configs.assume((7, 8)):
            assert configs.lookup(CPU, "k", "s").options == {"BLOCK": 64, "num_warps": 4, "num_stages": 1}
        assert configs.lookup(CPU, "k", "s").options == {"BLOCK": 32, "num_warps": 8, "num_stages": 2}


def test_tensors_on_the_cpu_without_an_assumption_are_refused() -> None:
    with pytest.raises(configs.MissingConfigurationError, match=r"configs\.assume"):
        configs.capability(CPU)
