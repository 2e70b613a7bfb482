"""Patched overlays: a whole copy with the patches in it, the runtime never touched, and nothing half made."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from gpuops_agent import builds, overlays
from gpuops_agent.runtimes import Runtime
from gpuops_agent.wire import AgentError, Cancelled
from patching import ENGINE, NEW_FILE, PATCH, SECOND_HUNK, arrived, digest, runtime
from preparing import Bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def engine(tmp_path: Path) -> Runtime:
    return runtime(tmp_path / "runtime")


def site_of(engine: Runtime) -> Path:
    return next(engine.path.glob("lib/python3*/site-packages"))


def patched(bench: Bench, engine: Runtime, *patches: str, version: str = "engine-1.0") -> builds.Build:
    files = {f"patches/{version}/{number}.patch": text for number, text in enumerate(patches)}
    folder = arrived(bench.root, "fix", {"site/extra.py": "X = 1\n", **files})
    return builds.ensure(bench.root, {"kind": "tree", "id": folder.name}, engine, ENGINE, bench.work())


def refused(bench: Bench, engine: Runtime, *patches: str, version: str = "engine-1.0") -> AgentError:
    with pytest.raises(AgentError) as error:
        patched(bench, engine, *patches, version=version)
    assert error.value.code == 5 and "the running server was not touched" in error.value.next
    # Nothing is left that somebody could take for an overlay.
    assert not list(bench.root.overlays.glob("*")) and not list(bench.root.overlays.glob(".incoming*"))
    return error.value


def imported(build: builds.Build, engine: Runtime, expression: str) -> str:
    """What Python sees with the build in front of the runtime's packages."""
    path = f"{build.python_path}:{site_of(engine)}"
    program = f"import engine.core, engine.same, extra; print({expression})"
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_server_imports_the_patched_copy_and_the_runtime_stays_as_it_was(bench: Bench, engine: Runtime) -> None:
    before = {path: (path.stat().st_mode, path.read_bytes()) for path in site_of(engine).rglob("*") if path.is_file()}
    build = patched(bench, engine, PATCH, NEW_FILE)
    assert build.overlay is not None
    assert imported(build, engine, "engine.core.B, engine.core.__file__, extra.X") == f"3 {build.overlay.site}/engine/core.py 1"
    assert (build.overlay.site / "engine" / "added.py").read_text() == "NEW = 1\n"
    assert {path: (path.stat().st_mode, path.read_bytes()) for path in before} == before
    assert build.overlay.to_json()["patches"] == ["0.patch", "1.patch"]


def test_files_that_no_patch_touches_are_links_and_patched_ones_are_private_and_read_only(bench: Bench, engine: Runtime) -> None:
    build = patched(bench, engine, PATCH)
    assert build.overlay is not None
    package, own = build.overlay.site / "engine", site_of(engine) / "engine"
    assert os.path.samefile(package / "same.py", own / "same.py")
    assert (package / "core.py").stat().st_nlink == 1
    assert stat.S_IMODE((package / "core.py").stat().st_mode) == 0o444
    assert not (package / "__pycache__").exists()


def test_where_nothing_can_be_linked_files_are_copied(bench: Bench, engine: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(source: object, target: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(overlays.os, "link", cannot)
    build = patched(bench, engine, PATCH)
    assert imported(build, engine, "engine.same.SAME") == "1"


def test_an_overlay_is_made_once_for_a_runtime_and_again_when_a_patched_file_was_altered(bench: Bench, engine: Runtime) -> None:
    build = patched(bench, engine, PATCH)
    assert build.overlay is not None
    marker = build.overlay.site / "marker"
    marker.touch()
    again = builds.ensure(bench.root, {"kind": "tree", "id": build.id}, engine, ENGINE, bench.work())
    assert again == build and marker.exists()
    core = build.overlay.site / "engine" / "core.py"
    core.chmod(0o644)
    core.write_text("B = 666\n")
    assert builds.ensure(bench.root, {"kind": "tree", "id": build.id}, engine, ENGINE, bench.work()) == build
    assert imported(build, engine, "engine.core.B") == "3" and not marker.exists()


def test_another_runtime_gets_another_overlay(bench: Bench, engine: Runtime, tmp_path: Path) -> None:
    first = patched(bench, engine, PATCH)
    other = runtime(tmp_path / "other")
    second = builds.ensure(bench.root, {"kind": "tree", "id": first.id}, other, ENGINE, bench.work())
    assert first.overlay is not None and second.overlay is not None and first.overlay.site != second.overlay.site


def test_a_repository_around_the_root_changes_nothing(bench: Bench, engine: Runtime, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*\n")
    assert imported(patched(bench, engine, PATCH), engine, "engine.core.B") == "3"


@pytest.mark.failure_mode("patch-fails")
def test_a_patch_that_does_not_apply_names_file_and_hunk(bench: Bench, engine: Runtime) -> None:
    error = refused(bench, engine, PATCH + SECOND_HUNK.replace("L19 = 19", "L19 = 20"))
    assert error.kind == "patch"
    assert error.what == "the patch engine-1.0/0.patch does not apply to engine/core.py, hunk 2 of 2 (@@ -22,3 +22,3 @@)"
    assert "patch failed: engine/core.py:22" in error.evidence


def test_a_second_patch_sees_the_first_one(bench: Bench, engine: Runtime) -> None:
    build = patched(bench, engine, PATCH, PATCH.replace("-B = 2\n+B = 3", "-B = 3\n+B = 4"))
    assert imported(build, engine, "engine.core.B") == "4"
    assert "1.patch does not apply" in refused_second(bench, engine).what


def refused_second(bench: Bench, engine: Runtime) -> AgentError:
    with pytest.raises(AgentError) as error:
        patched(bench, engine, PATCH, PATCH)
    return error.value


def test_a_version_without_patches_is_refused_with_those_that_there_are(bench: Bench, engine: Runtime) -> None:
    error = refused(bench, engine, PATCH, version="engine-0.9")
    assert (error.kind, error.evidence) == ("engine_version", "it has patches for engine-0.9")
    assert "has no patches for engine 1.0" in error.what


def test_a_runtime_with_another_version_is_refused(bench: Bench, tmp_path: Path) -> None:
    error = refused(bench, runtime(tmp_path / "old", "0.9"), PATCH)
    assert error.kind == "engine_version"
    assert error.what == "the runtime does not have engine 1.0, which the patches are for" and "engine-0.9" in error.evidence


@pytest.mark.failure_mode("patch-fails")
def test_a_file_that_somebody_changed_in_the_runtime_is_refused_by_name(bench: Bench, engine: Runtime) -> None:
    (site_of(engine) / "engine" / "core.py").write_text("A = 1\nB = 2\nC = 3\n# mine\n")
    error = refused(bench, engine, PATCH)
    assert error.kind == "patch" and "engine/core.py is not as the engine's package shipped it" in error.what


def test_a_changed_file_that_no_patch_touches_is_the_owners_business(bench: Bench, engine: Runtime) -> None:
    (site_of(engine) / "engine" / "same.py").write_text("SAME = 2\n")
    assert imported(patched(bench, engine, PATCH), engine, "engine.same.SAME") == "2"


@pytest.mark.parametrize(
    ("patch", "trouble"),
    [
        (PATCH.replace("core.py", "other.py"), "engine/other.py is no file of the engine's package"),
        (NEW_FILE.replace("added.py", "same.py"), "engine/same.py is there already"),
        (PATCH.replace("engine/core.py", "../core.py"), "does not lie in a package"),
        ("words\n", "it holds no change"),
        ("rename from a\nrename to b\n", "only changed, new and removed text files"),
        (PATCH.replace(" C = 3\n", ""), "its last hunk is cut"),
    ],
)
def test_a_patch_of_something_else_is_refused(patch: str, trouble: str, bench: Bench, engine: Runtime) -> None:
    error = refused(bench, engine, patch)
    assert error.kind == "patch" and trouble in f"{error.what} {error.evidence}"


def test_a_host_without_git_is_told(bench: Bench, engine: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays.shutil, "which", lambda name: None)
    error = refused(bench, engine, PATCH)
    assert error.kind == "no_git" and error.next.startswith("install git on the host")


def test_a_cancel_leaves_nothing(bench: Bench, engine: Runtime) -> None:
    bench.cancel.set()
    with pytest.raises(Cancelled):
        patched(bench, engine, PATCH)
    assert not list(bench.root.overlays.iterdir())


def test_a_hunk_line_that_looks_like_a_header_is_content(bench: Bench, engine: Runtime) -> None:
    core = site_of(engine) / "engine" / "core.py"
    core.write_text("-- a/x\nB = 2\n")
    record = next(site_of(engine).glob("*.dist-info")) / "RECORD"
    record.write_text(f"engine/core.py,sha256={digest(core)},1\n")
    text = "--- a/engine/core.py\n+++ b/engine/core.py\n@@ -1,2 +1,2 @@\n--- a/x\n+++ b/x\n B = 2\n"
    build = patched(bench, engine, text)
    assert build.overlay is not None
    assert (build.overlay.site / "engine" / "core.py").read_text() == "++ b/x\nB = 2\n"


def test_a_build_without_patches_needs_no_overlay(bench: Bench, engine: Runtime) -> None:
    folder = arrived(bench.root, "plain", {"site/extra.py": "X = 1\n"})
    build = builds.ensure(bench.root, {"kind": "tree", "id": folder.name}, engine, ENGINE, bench.work())
    assert build.overlay is None and build.python_path == str(folder / "site")
    shutil.rmtree(folder)
