"""Runtimes and builds: made once, found again, cut ones made again, and never somebody else's touched."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import builds, proc, runtimes
from gpuops_agent.runtimes import Runtime
from gpuops_agent.wire import AgentError, Cancelled
from preparing import Bench
from process_lab import eventually, gone

from gpuops.builds.manifest import read_tree

ENGINE = {"name": "sglang", "version": "0.5.23"}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # Without uv: pip is what every host has.
    found = shutil.which
    monkeypatch.setattr(
        runtimes.shutil, "which", lambda name, *args, **kwargs: None if name == "uv" else found(name, *args, **kwargs)
    )
    return Bench(tmp_path, monkeypatch)


def lock_of(text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "lock", "id": "rt-1", "lock": text, "files": {}, "python": sys.executable, "torch_backend": None, **more}


def test_a_runtime_is_made_from_its_lock_and_taken_as_it_is_the_next_time(bench: Bench) -> None:
    bench.wheel("tiny")
    spec = lock_of("tiny==1.0\n", files={"hook.pth": "# nothing\n"})
    made = runtimes.ensure(bench.root, spec, bench.work())
    assert made.fingerprint["tool"] == "pip" and made.fingerprint["distributions"]["tiny"] == "1.0"
    assert (
        subprocess.run([str(made.python), "-c", "import tiny; print(tiny.VERSION)"], capture_output=True, text=True).stdout
        == "1.0\n"
    )
    assert list(made.path.glob("lib/python3*/site-packages/hook.pth"))
    assert set(bench.phases()) == {"install"}
    marker = made.path / "marker"
    marker.touch()
    bench.events.clear()
    assert runtimes.ensure(bench.root, spec, bench.work()) == made
    assert marker.exists() and bench.phases() == []
    # A cut installation has no stamp, whatever else is there.
    (made.path / "runtime.json").unlink()
    runtimes.ensure(bench.root, spec, bench.work())
    assert not marker.exists() and (made.path / "runtime.json").exists()


def system_python(folder: Path, *packages: str) -> str:
    """An installed Python of its own, which has packages as a host's may have PyTorch: this one's, with another site-packages."""
    library = Path(sysconfig.get_path("stdlib"))
    own = folder / library.relative_to(sys.base_prefix)
    (own / "site-packages").mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name != "site-packages":
            (own / entry.name).symlink_to(entry)
    (folder / "bin").mkdir()
    python = folder / "bin" / Path(os.path.realpath(sys.executable)).name
    shutil.copy(os.path.realpath(sys.executable), python)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(own / "site-packages")]
    if packages:
        subprocess.run([*pip, *packages], check=True)
    return str(python)


@pytest.mark.slow
def test_a_runtime_that_sees_the_systems_packages_has_its_own_of_what_the_lock_pins(bench: Bench, tmp_path: Path) -> None:
    bench.wheel("big", "2.0")
    bench.wheel("tiny", "1.0")
    python = system_python(tmp_path / "system", "big==2.0", "tiny==1.0")
    bench.wheel("tiny", "1.1")
    seen = runtimes.ensure(bench.root, lock_of("tiny==1.1\n", python=python, system_packages=True), bench.work())
    program = "import big, tiny; print(big.VERSION, tiny.VERSION)"
    told = subprocess.run([str(seen.python), "-c", program], capture_output=True, text=True, check=False)
    assert told.stdout == "2.0 1.1\n", told.stderr
    assert (seen.fingerprint["distributions"]["big"], seen.fingerprint["distributions"]["tiny"]) == ("2.0", "1.1")


@pytest.mark.slow
def test_a_runtime_sees_the_packages_of_a_python_that_is_an_environment_itself(bench: Bench, tmp_path: Path) -> None:
    bench.wheel("big", "2.0")
    bench.wheel("tiny", "1.0")
    parent = tmp_path / "parent"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(parent)], check=True)
    (site,) = parent.glob("lib/python3*/site-packages")
    for wheel in bench.wheels.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(site)
    bench.wheel("tiny", "1.1")
    spec = lock_of("tiny==1.1\n", python=str(parent / "bin" / "python"), system_packages=True)
    seen = runtimes.ensure(bench.root, spec, bench.work())
    program = "import big, tiny; print(big.VERSION, tiny.VERSION)"
    told = subprocess.run([str(seen.python), "-c", program], capture_output=True, text=True, check=False)
    assert told.stdout == "2.0 1.1\n", told.stderr
    assert (seen.fingerprint["distributions"]["big"], seen.fingerprint["distributions"]["tiny"]) == ("2.0", "1.1")


def without_ensurepip(folder: Path, *packages: str) -> str:
    """An installed Python as Debian ships it without python3-venv."""
    python = system_python(folder, *packages)
    (folder / Path(sysconfig.get_path("stdlib")).relative_to(sys.base_prefix) / "ensurepip").unlink()
    return python


def test_a_python_without_ensurepip_lends_its_own_pip(bench: Bench, tmp_path: Path) -> None:
    bench.wheel("tiny")
    own_pip = next(path for path in map(Path, sys.path) if (path / "pip" / "__init__.py").exists())
    python = without_ensurepip(tmp_path / "debian")
    site = next((tmp_path / "debian").glob("lib/python3*/site-packages"))
    for each in (own_pip / "pip", *own_pip.glob("pip-*.dist-info")):
        shutil.copytree(each, site / each.name)
    made = runtimes.ensure(bench.root, lock_of("tiny==1.0\n", python=python), bench.work())
    asked = subprocess.run([str(made.python), "-m", "pip", "--version"], capture_output=True, text=True, check=False)
    assert str(made.path) in asked.stdout, asked.stderr
    assert "tiny" in made.fingerprint["distributions"]


def test_a_python_without_ensurepip_and_pip_is_said(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(AgentError) as failed:
        runtimes.ensure(bench.root, lock_of("", python=without_ensurepip(tmp_path / "debian")), bench.work())
    assert failed.value.kind == "no_python" and "python3-venv" in str(failed.value.next)


@pytest.mark.failure_mode("download-cut")
def test_an_installation_that_fails_names_pips_own_words_and_leaves_no_stamp(bench: Bench) -> None:
    with pytest.raises(AgentError) as failed:
        runtimes.ensure(bench.root, lock_of("no-such-package==9\n"), bench.work())
    assert (failed.value.code, failed.value.kind) == (5, "tool")
    assert "ERROR: No matching distribution found for no-such-package==9" in failed.value.evidence
    assert str(bench.log) in failed.value.next
    assert not (bench.root.runtimes / "rt-1" / "runtime.json").exists()


def test_a_python_that_the_host_does_not_have_is_said(bench: Bench) -> None:
    with pytest.raises(AgentError) as failed:
        runtimes.ensure(bench.root, lock_of("", python="python9.9"), bench.work())
    assert failed.value.kind == "no_python" and "python9.9" in failed.value.what


def test_a_disk_without_room_for_the_downloads_is_said_before_anything_is_installed(bench: Bench) -> None:
    with pytest.raises(AgentError) as failed:
        runtimes.ensure(bench.root, lock_of("", download_bytes=1 << 60), bench.work())
    assert (failed.value.code, failed.value.kind) == (5, "disk_full")


def test_a_runtime_of_a_path_is_used_as_it_is(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "own"
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    before = sorted((item, item.lstat().st_mtime_ns) for item in path.rglob("*"))
    runtime = runtimes.ensure(bench.root, {"kind": "path", "path": str(path)}, bench.work())
    assert (runtime.id, runtime.python) == (f"path:{path}", path / "bin" / "python")
    assert sorted((item, item.lstat().st_mtime_ns) for item in path.rglob("*")) == before
    with pytest.raises(AgentError) as none:
        runtimes.ensure(bench.root, {"kind": "path", "path": str(tmp_path)}, bench.work())
    assert none.value.kind == "runtime"


@pytest.fixture
def slow_tool(tmp_path: Path) -> Path:
    """A `python` whose every command hangs with a child, both deaf to TERM's absence, and writes down their pids."""
    runtime = tmp_path / "slow"
    (runtime / "bin").mkdir(parents=True)
    script = runtime / "bin" / "python"
    script.write_text(f"#!/bin/sh\n(trap '' TERM; exec sleep 600) &\necho $$ $! > {tmp_path}/pids\nwait\n")
    script.chmod(0o755)
    return runtime


def test_a_cancel_ends_the_tools_whole_process_group(
    bench: Bench, slow_tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuops_agent.tool.GRACE_S", 0.2)
    runtime = Runtime("slow", slow_tool, slow_tool / "bin" / "python", {})
    ended: list[BaseException] = []

    def make() -> None:
        try:
            builds.ensure(bench.root, overlay(), runtime, ENGINE, bench.work())
        except Cancelled as cancelled:
            ended.append(cancelled)

    threading.Thread(target=make, daemon=True).start()
    pids = eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().split())
    bench.cancel.set()
    eventually(lambda: ended, "cancelled")
    assert all(gone(int(pid)) for pid in pids), [proc.title(int(pid)) for pid in pids]


def test_a_tool_that_passes_the_deadline_is_ended_and_the_deadline_named(
    bench: Bench, slow_tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuops_agent.tool.GRACE_S", 0.2)
    runtime = Runtime("slow", slow_tool, slow_tool / "bin" / "python", {})
    with pytest.raises(AgentError) as late:
        builds.ensure(bench.root, overlay(), runtime, ENGINE, bench.work(seconds=0.3))
    assert late.value.kind == "deadline" and "prepare_s" in late.value.next


def overlay(*requirements: str, recipe: str = "r" * 64) -> dict[str, Any]:
    return {"kind": "overlay", "name": "patched", "requirements": list(requirements or ("tiny==1.0",)), "recipe": recipe}


def own_python() -> Runtime:
    return Runtime("own", Path(sys.prefix), Path(sys.executable), {})


def test_an_overlay_is_installed_once_for_its_recipe_and_named_by_its_content(bench: Bench) -> None:
    bench.wheel("tiny")
    build = builds.ensure(bench.root, overlay(), own_python(), ENGINE, bench.work())
    assert (build.site / "tiny" / "__init__.py").exists()
    assert build.id == f"patched-{builds.content_id(builds.manifest(build.site.parent))}"
    bench.events.clear()
    assert builds.ensure(bench.root, overlay(), own_python(), ENGINE, bench.work()) == build
    assert bench.events == []
    # Another recipe with the same result is the same build.
    assert builds.ensure(bench.root, overlay(recipe="s" * 64), own_python(), ENGINE, bench.work()) == build
    assert sorted(path.name for path in bench.root.builds.iterdir()) == sorted([build.id, "recipes"])


def test_the_files_of_a_build_are_read_only(bench: Bench) -> None:
    bench.wheel("tiny")
    build = builds.ensure(bench.root, overlay(), own_python(), ENGINE, bench.work())
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o222 for path in build.site.rglob("*") if path.is_file()}
    assert modes == {0}


def test_an_overlay_that_cannot_be_installed_leaves_no_build(bench: Bench) -> None:
    with pytest.raises(AgentError) as failed:
        builds.ensure(bench.root, overlay("gone==1"), own_python(), ENGINE, bench.work())
    assert "No matching distribution found for gone==1" in failed.value.evidence
    assert not list(bench.root.builds.glob("patched-*"))


def test_a_pushed_build_that_is_not_there_is_said(bench: Bench) -> None:
    with pytest.raises(AgentError) as missing:
        builds.ensure(bench.root, {"kind": "tree", "id": "mine-123"}, own_python(), ENGINE, bench.work())
    assert (missing.value.code, missing.value.kind) == (5, "build")


def test_laptop_and_host_give_a_tree_the_same_id(tmp_path: Path) -> None:
    tree = tmp_path / "mine"
    for name, mode in (("a/b.py", 0o644), ("a/run.sh", 0o755), ("z", 0o600), ("a-b", 0o640), ("ü.txt", 0o644)):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    for ignored in ("a/__pycache__/b.cpython-311.pyc", "x.dist-info/RECORD", "old.pyc"):
        (tree / ignored).parent.mkdir(parents=True, exist_ok=True)
        (tree / ignored).write_text("noise")
    here = read_tree(tree)
    arrived = tmp_path / here.id
    shutil.copytree(tree, arrived / "site")
    there = builds.manifest(arrived)
    assert list(here.entries) == there
    assert here.id == f"mine-{builds.content_id(there)}"
    builds.make_read_only(arrived)
    assert builds.manifest(arrived) == there


@pytest.mark.slow
def test_uv_makes_the_runtime_where_the_host_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "tools")], check=True)
    subprocess.run([str(tmp_path / "tools/bin/pip"), "install", "--quiet", "uv"], check=True)
    monkeypatch.setenv("PATH", f"{tmp_path}/tools/bin:{os.environ['PATH']}")
    bench = Bench(tmp_path / "bench", monkeypatch) if (tmp_path / "bench").mkdir() is None else None
    assert bench is not None
    made = runtimes.ensure(bench.root, lock_of("six==1.16.0\n"), bench.work())
    assert made.fingerprint["tool"] == "uv" and made.fingerprint["distributions"]["six"] == "1.16.0"
    assert "six==1.16.0" in [event.get("detail") for event in bench.events]
