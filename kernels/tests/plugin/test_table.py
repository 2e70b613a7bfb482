"""The table of targets, the environment, the choice of families, and patching at import."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops_kernels import registry
from gpuops_kernels.plugin import imports, plan, proof, settings, sources, targets
from gpuops_kernels.plugin.__main__ import main
from gpuops_kernels.registry import PLACED

KERNELS = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["0.5.13", "0.5.14", "0.5.15.post1", "0.5.15.post1+cu130", "0.5.16", "0.5.19", "0.5.23"])
def test_a_version_that_was_read_is_in_the_table(version: str) -> None:
    assert targets.engine(version) is not None


@pytest.mark.parametrize(
    "version", ["0.5.12", "0.5.15.post2.dev1", "0.5.23.post1", "0.5.24", "0.6.0", "0.5.23rc1", "0.0.0.dev0", "unknown"]
)
def test_a_version_that_nobody_read_is_not(version: str) -> None:
    assert targets.engine(version) is None


def test_the_ranges_neither_overlap_nor_go_backwards() -> None:
    ends = [targets._parsed(end) for each in targets.ENGINES for end in (each.first, each.last)]
    assert ends == sorted(ends) and len({each.first for each in targets.ENGINES}) == len(targets.ENGINES)


@pytest.mark.parametrize("engine", targets.ENGINES, ids=lambda engine: engine.first)
def test_every_target_has_a_replacement_in_this_package_and_fingerprints(engine: targets.Engine) -> None:
    for name, family in engine.families.items():
        assert name in PLACED and family.reason and family.targets
        for target in family.targets:
            assert target.replacement.startswith(f"gpuops_kernels.{name}.") and target.fingerprints


def test_only_fallbacks_of_old_versions_are_replaced_by_default() -> None:
    on = {each.first: sorted(name for name, family in each.families.items() if family.on) for each in targets.ENGINES}
    assert on["0.5.14"] == ["indexer", "mhc", "mla_decode"] and on["0.5.18"] == ["mhc"]


def test_importing_the_plugin_imports_neither_torch_nor_triton() -> None:
    program = (
        "import sys, gpuops_kernels.plugin.worker, gpuops_kernels.plugin.verify\n"
        "print([name for name in ('torch', 'triton', 'numpy', 'sglang') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=KERNELS, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_the_environment_is_read() -> None:
    read = settings.read(
        {"GPUOPS_KERNELS": "strict", "GPUOPS_KERNELS_MHC": "0", "GPUOPS_KERNELS_GLUE": "", "GPUOPS_KERNELS_PROOF": "/p"}
    )
    assert read == settings.Settings("strict", {"mhc": False}, Path("/p"), None)


def test_nothing_set_is_auto() -> None:
    assert settings.read({}) == settings.Settings("auto", {}, None, None)


@pytest.mark.parametrize("environment", [{"GPUOPS_KERNELS": "on"}, {"GPUOPS_KERNELS_MHC": "yes"}])
def test_a_value_that_cannot_be_is_an_error_that_names_the_variable(environment: dict[str, str]) -> None:
    (variable,) = environment
    with pytest.raises(settings.SettingsError, match=f"{variable}="):
        settings.read(environment)


def _choose(
    version: str, capability: tuple[int, int] | None = (12, 0), nothing: str = "", **environment: str
) -> dict[str, tuple[str, bool]]:
    chosen = plan.choose(settings.read(environment), targets.engine(version), plan.Machine(capability, nothing))
    return {family: (choice.state, bool(choice.targets)) for family, choice in chosen.items()}


def test_on_sm_120_the_slow_fallbacks_are_replaced() -> None:
    assert _choose("0.5.15.post1")["mla_decode"] == (proof.ACTIVE, True)


def test_on_sm_90_they_are_not_since_the_engine_does_not_use_them() -> None:
    assert _choose("0.5.15.post1", (9, 0))["mla_decode"] == (proof.OFF, False)


def test_a_switch_wins_over_the_capability_and_over_the_default() -> None:
    assert _choose("0.5.15.post1", (9, 0), GPUOPS_KERNELS_MLA_DECODE="1")["mla_decode"] == (proof.ACTIVE, True)
    assert _choose("0.5.23", GPUOPS_KERNELS_INDEXER="1")["indexer"] == (proof.ACTIVE, True)


def test_no_switch_wins_over_a_machine_without_a_card() -> None:
    assert _choose("0.5.23", None, "no CUDA device", GPUOPS_KERNELS_MHC="1")["mhc"] == (proof.NOT_APPLICABLE, False)


def test_the_cpu_family_is_placed_only_without_a_card_and_when_it_is_asked_for() -> None:
    switch = {"GPUOPS_KERNELS_SWIGLU": "1"}
    assert _choose("0.5.23", None, "no CUDA device", **switch)["swiglu"] == (proof.ACTIVE, True)
    assert _choose("0.5.23", None, "no CUDA device")["swiglu"] == (proof.NOT_APPLICABLE, False)
    assert _choose("0.5.23", (12, 0), **switch)["swiglu"] == (proof.OFF, False)


def test_the_content_that_is_printed_is_what_a_rank_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--content"]) == 0
    assert capsys.readouterr().out.strip() == proof.content_hash()


def test_a_family_without_a_place_in_a_version_is_off() -> None:
    bare = targets.Engine("1.0", "1.0", targets.Target("m:C.f"), {})
    chosen = plan.choose(settings.read({}), bare, plan.Machine((12, 0)))
    assert {choice.state for choice in chosen.values()} == {proof.OFF}


def test_a_fingerprint_follows_the_text_and_not_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class C:\n    def f(self):\n        return 1\n")
    (tmp_path / "b.py").write_text("import os\n\n\nclass C:\n    x = 1\n\n    def f(self):   \n        return 1\n")
    (tmp_path / "c.py").write_text("class C:\n    def f(self):\n        return 2\n")
    a, b, c = (sources.fingerprint(tmp_path / f"{name}.py", "C.f") for name in "abc")
    assert a == b != c


def test_a_fingerprint_includes_decorators(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    (tmp_path / "b.py").write_text("@cache\ndef f():\n    return 1\n")
    assert sources.fingerprint(tmp_path / "a.py", "f") != sources.fingerprint(tmp_path / "b.py", "f")


def test_a_function_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(sources.NotFoundError, match=r"a\.py does not define f"):
        sources.fingerprint(tmp_path / "a.py", "f")


def test_comparing_with_a_tree_shows_what_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sources", str(tmp_path), "--version", "0.5.23"]) == 1
    assert "CHANGED sglang.kernels.ops.layernorm.mhc:mhc_fused_post_pre" in capsys.readouterr().out


def test_a_module_is_patched_before_its_importer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "patched_one.py").write_text("value = 1\n")
    (tmp_path / "copying_one.py").write_text("from patched_one import value\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports.after("patched_one", lambda module: setattr(module, "value", 2))
    assert importlib.import_module("copying_one").value == 2


def test_a_patched_module_keeps_the_loader_that_python_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "patched_two.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports.after("patched_two", lambda module: None)
    assert type(importlib.import_module("patched_two").__spec__.loader).__name__ == "SourceFileLoader"


def test_a_module_that_fails_at_first_is_patched_when_it_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "patched_three.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports.after("patched_three", lambda module: setattr(module, "value", 2))
    with pytest.raises(RuntimeError):
        importlib.import_module("patched_three")
    (tmp_path / "patched_three.py").write_text("value = 1  # of another length\n")
    assert importlib.import_module("patched_three").value == 2


def test_two_packages_that_each_bring_this_finder_patch_the_same_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "patched_four.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("other_imports", imports.__file__)
    assert spec is not None and spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    imports.after("patched_four", lambda module: setattr(module, "first", True))
    other.after("patched_four", lambda module: setattr(module, "second", True))
    loaded = importlib.import_module("patched_four")
    assert (loaded.value, loaded.first, loaded.second) == (1, True, True)


def test_a_loaded_module_is_patched_at_once() -> None:
    seen: list[str] = []
    imports.after("json", lambda module: seen.append(module.__name__))
    assert seen == ["json"]


@pytest.mark.parametrize("engine", targets.ENGINES, ids=lambda engine: engine.first)
def test_a_family_whose_kernels_are_made_for_some_hidden_sizes_is_for_these_alone(engine: targets.Engine) -> None:
    pytest.importorskip("triton", reason="importing the kernels needs torch and triton")
    for name, entry in engine.families.items():
        made_for = {int(width) for _, shape in registry.family(name).keys for width in re.findall(r"hidden(\d+)", shape)}
        assert entry.hiddens == made_for, name


@pytest.mark.parametrize("engine", targets.ENGINES, ids=lambda engine: engine.first)
def test_every_replacement_exists(engine: targets.Engine) -> None:
    pytest.importorskip("triton", reason="importing the kernels needs torch and triton")
    for family in engine.families.values():
        for target in family.targets:
            module, _, attribute = target.replacement.partition(":")
            parameters = inspect.signature(getattr(importlib.import_module(module), attribute)).parameters
            assert ("heads" in parameters) or not target.heads
