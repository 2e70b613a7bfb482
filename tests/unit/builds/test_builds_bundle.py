"""Bundles on the laptop: written the same every time, split, and refused when they are not whole."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from build_samples import build, wheel

from gpuops.builds import bundle
from gpuops.builds.bundle import Contents, Written
from gpuops.builds.carry import open_bundle
from gpuops.builds.download import HostPlatform, requirements
from gpuops.errors import GpuopsError

HERE = HostPlatform((sys.version_info[0], sys.version_info[1]), "x86_64", (2, 28))


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only packages that pip sees."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("tiny", "model"):
        wheel(folder, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def prepare(lock: str = "# a lock\ntiny==1.0  # 5 B\n", **model: Any) -> dict[str, Any]:
    runtime = {"kind": "lock", "id": "rt-1", "lock": lock, "torch_backend": None}
    return {"runtime": runtime, "model": model or {"kind": "path", "path": "/m"}, "build": None}


def written(out: Path, builds: Path, part_bytes: int | None = None, **changes: Any) -> Written:
    tree = build(builds, "mine", pkg_a="A = 1\n") if not list(builds.iterdir()) else None
    if tree is None:
        from gpuops.builds.manifest import read_build

        tree = read_build(next(builds.iterdir()))
    return bundle.write(out, Contents({**prepare(), **changes}, (tree,), HERE), part_bytes=part_bytes)


def test_a_bundle_holds_the_agent_the_wheels_builds_and_the_models_manifest_and_an_index_over_them(
    tmp_path: Path, builds: Path
) -> None:
    made = written(tmp_path / "box.tar", builds, model={"kind": "package", "id": "m-1", "requirement": "model==1.0", "files": {}})
    with tarfile.open(tmp_path / "box.tar", "r:") as archive:
        names = archive.getnames()
        told = json.loads(archive.extractfile("index.json").read())  # type: ignore[union-attr]
        for name, size, sha in told["members"]:
            data = archive.extractfile(name).read()  # type: ignore[union-attr]
            assert (len(data), hashlib.sha256(data).hexdigest()) == (size, sha)
    (tree,) = told["builds"]
    assert names[0] == "index.json"
    assert {"wheels/tiny-1.0-py3-none-any.whl", "wheels/model-1.0-py3-none-any.whl", "model.json"} <= set(names)
    assert {f"builds/{tree}/manifest.json", f"builds/{tree}/site/pkg/a.py"} <= set(names)
    assert any(name.startswith("agent/") and name.endswith(".pyz") for name in names)
    assert open_bundle(tmp_path / "box.tar").id == made.id


def test_the_same_members_are_the_same_bytes(tmp_path: Path, builds: Path) -> None:
    written(tmp_path / "one.tar", builds)
    written(tmp_path / "two.tar", builds)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_parts_are_of_the_size_that_was_asked_for_and_read_as_one(tmp_path: Path, builds: Path) -> None:
    whole = written(tmp_path / "one.tar", builds)
    parts = written(tmp_path / "two.tar", builds, part_bytes=100_000)
    assert [path.name for path in parts.files][:2] == ["two.tar.001", "two.tar.002"]
    assert {path.stat().st_size for path in parts.files[:-1]} == {100_000}
    assert b"".join(path.read_bytes() for path in parts.files) == (tmp_path / "one.tar").read_bytes()
    for name in ("two.tar", "two.tar.001", "two.tar.002"):
        assert open_bundle(tmp_path / name).id == whole.id


def test_more_parts_than_have_a_number_are_refused_with_the_size_that_would_do(
    tmp_path: Path, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MOST_PARTS", 2)
    with pytest.raises(GpuopsError) as refused:
        written(tmp_path / "out" / "box.tar", builds, part_bytes=100_000)
    assert refused.value.code == 2 and refused.value.next == "--split 1M, or more"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_wheel_of_ones_own_is_taken_instead_of_the_indexs_of_the_same_version(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    mine = wheel(own, "tiny", tiny_patched="YES = True\n")
    contents = Contents(prepare(lock="Tiny==1.0\nmodel==1.0\n"), (), HERE, own)
    bundle.write(tmp_path / "box.tar", contents)
    with tarfile.open(tmp_path / "box.tar", "r:") as archive:
        assert archive.extractfile("wheels/tiny-1.0-py3-none-any.whl").read() == mine.read_bytes()  # type: ignore[union-attr]
        assert "wheels/model-1.0-py3-none-any.whl" in archive.getnames()


def test_a_wheel_of_ones_own_for_another_platform_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    wheel(own, "tiny", tag="cp39-cp39-win_amd64")
    with pytest.raises(GpuopsError) as refused:
        bundle.write(tmp_path / "box.tar", Contents(prepare(), (), HERE, own))
    assert refused.value.kind == "download" and "tiny" in refused.value.evidence


def test_a_bundle_that_is_there_is_not_overwritten(tmp_path: Path, builds: Path) -> None:
    written(tmp_path / "box.tar", builds)
    with pytest.raises(GpuopsError, match="is there already"):
        written(tmp_path / "box.tar", builds)


def refused(path: Path) -> GpuopsError:
    with pytest.raises(GpuopsError) as error:
        open_bundle(path)
    assert error.value.kind == "bundle" and error.value.next
    return error.value


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.98])
def test_a_bundle_that_is_cut_is_refused(share: float, tmp_path: Path, builds: Path) -> None:
    path = written(tmp_path / "box.tar", builds).files[0]
    with tarfile.open(path, "r:") as archive:
        last = archive.getmembers()[-1]
    end = last.offset_data + last.size
    with path.open("r+b") as file:
        file.truncate(int(end * share))
    assert "is cut or altered" in refused(path).what


def test_an_altered_member_is_named(tmp_path: Path, builds: Path) -> None:
    path = written(tmp_path / "box.tar", builds).files[0]
    with tarfile.open(path, "r:") as archive:
        member = archive.getmember("wheels/tiny-1.0-py3-none-any.whl")
    with path.open("r+b") as file:
        file.seek(member.offset_data + 5)
        file.write(b"\xff\xfe")
    assert refused(path).evidence.startswith("wheels/tiny-1.0-py3-none-any.whl is altered")


def test_a_missing_part_is_named(tmp_path: Path, builds: Path) -> None:
    parts = written(tmp_path / "box.tar", builds, part_bytes=100_000).files
    parts[1].unlink()
    assert "part box.tar.002 is missing" in refused(tmp_path / "box.tar").what
    for part in parts[2:]:
        part.unlink()
    assert "is cut" in refused(tmp_path / "box.tar").evidence


def with_index(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """The bundle with a changed index, and all its members."""
    with tarfile.open(path, "r:") as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive.getmembers()]  # type: ignore[union-attr]
    told = json.loads(members[0][1])
    changed = change(told)
    index = json.dumps(told if changed is None else changed).encode()
    members[0][0].size = len(index)
    with tarfile.open(path, "w") as archive:
        for member, data in [(members[0][0], index), *members[1:]]:
            archive.addfile(member, io.BytesIO(data))


FORMS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda told: told["for"].__delitem__("overlay"), "its index.json lacks 'overlay'"),
    (lambda told: told.update({"for": {}}), "its index.json lacks 'runtime'"),
    (lambda told: told["for"].update(runtime=[]), "[] in its index.json is of another form"),
    (lambda told: told.update(members=7), "'int' object is not iterable"),
    (lambda told: told.update(members=[7]), "cannot unpack non-iterable int object"),
    (lambda told: told.update(builds=[3]), "3 in its index.json is of another form"),
    (lambda told: told.update(room="much"), "'much' in its index.json is of another form"),
    (lambda told: told.update(caches="x"), "'x' in its index.json is of another form"),
    (lambda told: [told], "is of another form"),
    (lambda told: "words", "'words' in its index.json is of another form"),
]


def test_an_index_of_another_form_is_an_altered_bundle(tmp_path: Path, builds: Path) -> None:
    whole = written(tmp_path / "box.tar", builds).files[0]
    for number, (change, evidence) in enumerate(FORMS):
        path = shutil.copy(whole, tmp_path / f"{number}.tar")
        with_index(path, change)
        error = refused(path)
        assert error.what == f"the bundle {path} is cut or altered" and evidence in error.evidence


@pytest.mark.parametrize("content", [b"", b"words", bytes(20_480)])
def test_what_is_no_bundle_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    refused(tmp_path / "x.tar")
    assert refused(tmp_path / "y.tar").what == f"there is no bundle {tmp_path / 'y.tar'}"


def test_a_bundle_for_another_runtime_or_model_is_refused(tmp_path: Path, builds: Path) -> None:
    written(tmp_path / "box.tar", builds)
    bundled = open_bundle(tmp_path / "box.tar")
    bundled.must_fit(prepare())
    with pytest.raises(GpuopsError) as other:
        bundled.must_fit({**prepare(), "model": {"kind": "path", "path": "/other"}, "build": {"requirements": ["x==1"]}})
    assert "another model and overlay" in other.value.what and other.value.code == 3
    assert "gpuops builds bundle" in other.value.next


def test_a_package_without_a_wheel_for_the_host_is_told_with_pips_words(tmp_path: Path, index: Path, builds: Path) -> None:
    wheel(index, "native", "cp310-cp310-win_amd64")
    with pytest.raises(GpuopsError) as failed:
        written(tmp_path / "box.tar", builds, runtime={**prepare()["runtime"], "lock": "native==1.0\n"})
    assert failed.value.kind == "download" and "native==1.0" in failed.value.evidence
    assert not (tmp_path / "box.tar").exists()


def test_wheels_are_those_of_the_host_and_not_of_this_machine(tmp_path: Path, index: Path, builds: Path) -> None:
    other = HostPlatform((3, 12), "aarch64", (2, 31))
    for tag in ("cp312-cp312-manylinux_2_17_aarch64", "cp312-cp312-manylinux_2_39_aarch64", "cp311-cp311-manylinux_2_17_x86_64"):
        wheel(index, "native", tag)
    told = {**prepare(), "runtime": {**prepare()["runtime"], "lock": "native==1.0\n"}}
    bundle.write(tmp_path / "box.tar", Contents(told, (), other))
    with tarfile.open(tmp_path / "box.tar", "r:") as archive:
        assert "wheels/native-1.0-cp312-cp312-manylinux_2_17_aarch64.whl" in archive.getnames()


def test_a_locks_comments_and_options_are_no_packages() -> None:
    assert requirements("# x\n--hash=1\n\na==1  # 5 B\nb==2\n") == ["a==1", "b==2"]
