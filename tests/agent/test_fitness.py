"""What a build says of itself is held against the runtime before anything is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import builds, fitness
from gpuops_agent.fitness import Platform
from gpuops_agent.wire import AgentError
from patching import arrived, runtime
from preparing import Bench

DEBIAN = Platform((3, 11), "x86_64", (2, 36))


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp311-cp311-linux_x86_64", True),
        ("py310-none-any", True),
        ("cp312-cp312-manylinux_2_28_x86_64", False),
        ("cp310-cp310-manylinux_2_28_x86_64", False),
        ("cp312-abi3-manylinux_2_28_x86_64", False),
        ("cp311-cp311-manylinux_2_39_x86_64", False),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp311-cp311-macosx_11_0_arm64", False),
        ("py2-none-any", False),
    ],
)
def test_a_wheel_fits_a_platform_by_its_tag(tag: str, fits: bool) -> None:
    assert fitness.fits(tag, DEBIAN) is fits


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("0.5.14", True),
        ("0.5.15.post1", True),
        ("0.5.15", True),
        ("0.5.13", False),
        ("0.5.15.post2", False),
        ("0.5.14rc1", False),
    ],
)
def test_a_version_lies_in_a_range_or_not(version: str, inside: bool) -> None:
    assert fitness.within(version, "0.5.14", "0.5.15.post1") is inside


@pytest.mark.parametrize(
    ("specifier", "fits"),
    [
        ("", True),
        (">=3.9", True),
        (">=3.12", False),
        (">3.10,<3.12", True),
        ("<3.11", False),
        ("<3.11.4", True),
        ("<=3.10", False),
        ("<4", True),
        ("==3.11.*", True),
        ("==3.10.*", False),
        ("==3.*", True),
        ("~=3.9", True),
        ("~=3.9.2", False),
        (">=3.9, !=3.11.*", False),
        (">=3.9, !=3.11.2", True),
        ("<3", False),
    ],
)
def test_a_python_is_allowed_or_not(specifier: str, fits: bool) -> None:
    assert fitness.python_allowed(specifier, DEBIAN.python) is fits


def ensured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, about: dict[str, Any], version: str = "1.0") -> builds.Build:
    bench = Bench(tmp_path, monkeypatch)
    folder = arrived(bench.root, "mine", {"site/x.py": "X = 1\n"}, about)
    engine = {"name": "engine", "version": version}
    return builds.ensure(bench.root, {"kind": "tree", "id": folder.name}, runtime(tmp_path / "runtime"), engine, bench.work())


def engines(*targets: str, on: bool = True) -> dict[str, Any]:
    families = {"f": {"on": on, "targets": list(targets)}}
    return {"plugin": "tiny.plugin", "engines": {"engine": [{"first": "0.9", "last": "1.0", "families": families}]}}


@pytest.mark.failure_mode("build-unfit")
@pytest.mark.parametrize(
    ("about", "version", "kind", "words"),
    [
        (
            {"wheel": {"tags": ["cp27-cp27mu-linux_x86_64"]}},
            "1.0",
            "wheel",
            "another platform or Python: cp27-cp27mu-linux_x86_64",
        ),
        ({"wheel": {"tags": ["py3-none-any"], "requires_python": ">=3.99"}}, "1.0", "wheel", "needs Python >=3.99"),
        (engines(), "1.1", "engine_version", "is not made for engine 1.1"),
        (engines("engine.core:Gone.forward"), "1.0", "kernel_target", "replaces what engine 1.0 does not have"),
        (engines("engine.gone:f"), "1.0", "kernel_target", "replaces what engine 1.0 does not have"),
    ],
)
def test_a_build_that_does_not_fit_is_refused_before_anything_is_touched(
    about: dict[str, Any], version: str, kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AgentError) as refused:
        ensured(tmp_path, monkeypatch, about, version)
    assert (refused.value.code, refused.value.kind) == (5, kind)
    assert words in refused.value.what and refused.value.evidence
    assert refused.value.next.endswith("the running server was not touched")


def test_targets_that_are_there_and_families_that_are_off_are_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = engines("engine.core:B", on=False)
    about["wheel"] = {"tags": ["py3-none-any"], "requires_python": ">=3.9"}
    assert ensured(tmp_path, monkeypatch, about).id.startswith("mine-")


def test_a_target_is_a_function_or_a_method_of_a_class(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("class Layer:\n    if True:\n        def forward(self): ...\n\ndef f(): ...\n")
    assert fitness._defined("m:f", [tmp_path]) and fitness._defined("m:Layer.forward", [tmp_path])
    assert not fitness._defined("m:forward.f", [tmp_path])


def test_sources_that_this_python_cannot_read_are_left_to_the_engines_own(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("this is of another Python !\n")
    assert fitness._defined("m:f", [tmp_path])
