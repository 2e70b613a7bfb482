"""Caches from one host to another: packed, fetched, checked, and put under the key that their identity gives."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import installed
import pytest
from gpuops_agent import cache_file, caches, inventory, runtimes
from gpuops_agent.caches import Identity
from gpuops_agent.paths import Root
from rollouts import Lab

from gpuops.agent.client import Agent
from gpuops.builds import bundle, carry
from gpuops.builds import caches as files
from gpuops.builds.bundle import Contents
from gpuops.builds.download import HostPlatform
from gpuops.errors import GpuopsError, OutcomeUnknown
from gpuops.playbook.targets import Target
from gpuops.rollout.session import Session
from gpuops.transport.base import Address
from gpuops.transport.local import LocalTransport

HERE = HostPlatform((sys.version_info[0], sys.version_info[1]), "x86_64", (2, 28))
ALL = {"everything": True}

# The lab's runtime has no packages: its id stands for their versions.
VERSIONS = {"torch": "2.11.0+cpu", "triton": "3.6.0", "sglang": "0.5.23"}


class Host:
    """A host of its own: a ROOT and its agent."""

    def __init__(self, folder: Path, agent_folder: Path, agent: type[Agent] = Agent) -> None:
        self.path = folder / "root"
        installed.link(agent_folder, self.path)
        self.root = Root(self.path)
        self.agent = agent(LocalTransport(), str(self.path), sys.executable)

    def session(self) -> Session:
        return Session(Target("demo", Address("local"), str(self.path), sys.executable, "local"), self.agent)

    def cache(self, build: str = "stock", card: str = "cpu", **versions: str) -> Path:
        """A used cache, whose Triton groups lead to where it lies."""
        identity = Identity(build, card, "rt-1", {**VERSIONS, **versions})
        path = caches.folder(self.root, identity)
        files = {
            "triton/K/kernel.cubin": b"\x00cubin" * 1000,
            "flashinfer/op/.ninja_log": b"# ninja log v5\n",
            "triton/K/lock": b"",
        }
        for name, data in {**files, "pycache/x.pyc": b"code"}.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        group = {
            "child_paths": {"a": f"{path}/triton/K/kernel.cubin", "b": f"{self.path}/services/demo/cache/triton/K/kernel.cubin"}
        }
        (path / "triton/K/__grp__kernel.json").write_text(json.dumps(group))
        (path / "flashinfer/op/op.so").write_bytes(b"\x7fELF")
        (path / "flashinfer/op/op.so").chmod(0o755)
        os.utime(path / "flashinfer/op/op.so", ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
        (path / caches.FILE).write_text(json.dumps({"version": 1, **identity.to_json(), "created": 1.0}))
        return path

    def release(self, cache: Path, number: int = 1, *links: str) -> None:
        """A release of the service demo that starts with a cache."""
        service = self.root.service("demo")
        service.release(number).mkdir(parents=True)
        engine = {"caches": [{"folder": "triton", "packages": ["triton"], "rebase": "__grp__*"}]}
        (service.release(number) / "release.json").write_text(
            json.dumps({"number": number, "cache": str(cache), "engine": engine})
        )
        for link in links:
            (service.path / link).symlink_to(f"releases/{number}")

    def saved(self, out: Path, wanted: dict[str, Any] | None = None, **options: Any) -> files.Saved:
        return files.save(self.session, out, wanted or ALL, **options)

    def load(self, cached: files.Cached, **wanted: Any) -> dict[str, Any]:
        return files.load(self.agent, cached, wanted)


@pytest.fixture
def one(tmp_path: Path, agent_folder: Path) -> Host:
    return Host(tmp_path / "one", agent_folder)


@pytest.fixture
def other(tmp_path: Path, agent_folder: Path) -> Host:
    return Host(tmp_path / "other", agent_folder)


def content(cache: Path) -> dict[str, bytes]:
    return {path.relative_to(cache).as_posix(): path.read_bytes() for path, _ in caches.counted(cache)}


def test_a_cache_is_the_same_on_a_host_that_had_nothing(one: Host, other: Host, tmp_path: Path) -> None:
    cache = one.cache()
    one.release(cache, 1, "current", "good")
    saved = one.saved(tmp_path / "box", {"service": "demo"})
    assert not list(one.root.bundles.iterdir()), "the packed file is gone once it was fetched"
    told = other.load(saved.file)
    assert [each["key"] for each in told["loaded"]] == [cache.name] and told["notes"] == []
    there = other.root.caches / cache.name
    unchanged = {name: data for name, data in content(cache).items() if "__grp__" not in name}
    assert {name: data for name, data in content(there).items() if "__grp__" not in name} == unchanged
    library = (there / "flashinfer/op/op.so").stat()
    assert (library.st_mtime_ns, library.st_mode & 0o777) == (1_600_000_000_123_456_789, 0o755)
    assert not (there / "pycache").exists() and not (there / "triton/K/lock").exists()
    known = json.loads((there / caches.FILE).read_text())
    assert Identity.from_json(known).key == cache.name and known["came"]["file"] == saved.file.id
    assert list(other.root.bundles.iterdir()) == []


def test_paths_in_it_lead_to_where_it_lies_now(one: Host, other: Host, tmp_path: Path) -> None:
    cache = one.cache()
    one.release(cache, 1, "good")
    other.load(one.saved(tmp_path / "box").file)
    there = other.root.caches / cache.name / "triton/K"
    group = json.loads((there / "__grp__kernel.json").read_text())
    assert set(group["child_paths"].values()) == {str(there / "kernel.cubin")}


def test_another_service_hears_that_tools_look_for_other_paths(one: Host, other: Host, tmp_path: Path) -> None:
    one.release(one.cache(), 1, "good")
    told = other.load(one.saved(tmp_path / "box").file, service="demo")
    assert "what a tool keeps by its path is compiled again" in told["notes"][0]


def test_a_new_host_takes_the_loaded_cache_for_its_first_start(lab: Lab, other: Host, tmp_path: Path) -> None:
    lab.good()
    (cache,) = lab.root.caches.iterdir()
    (cache / "triton").mkdir(exist_ok=True)
    (cache / "triton" / "kernel").write_text("compiled")
    saved = files.save(lambda: Session(other.session().target, lab.agent), tmp_path / "box", {"service": "demo"})
    lab.down()
    shown = lab.agent.call("cache.list")["caches"]
    assert [(each["key"], each["last_start"]["misses"], each["used_by"][0]["known_good"]) for each in shown] == [
        (cache.name, 0, True)
    ]
    for path in cache.rglob("*"):
        if path.is_file():
            path.unlink()
    files.load(lab.agent, saved.file, {})
    assert lab.good().all("cache")[0]["before"]["files"] == {"triton": 1}


def test_those_of_the_known_good_and_the_current_release_are_packed_unless_others_are_named(one: Host, tmp_path: Path) -> None:
    stock, pack, old = one.cache(), one.cache("pack-1"), one.cache("pack-0")
    for number, (cache, links) in enumerate([(old, ()), (stock, ("good",)), (pack, ("current",))], 1):
        one.release(cache, number, *links)

    def keys(**wanted: Any) -> set[str]:
        name = tmp_path / "-".join(["box", *wanted])
        return {each["key"] for each in one.saved(name, {"service": "demo", **wanted}).file.index["caches"]}

    assert keys() == {stock.name, pack.name}
    assert keys(releases=[1]) == {old.name}
    assert keys(keys=[old.name[:6], stock.name]) == {old.name, stock.name}
    assert keys(everything=True) == {old.name, stock.name, pack.name}


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        ({"keys": ["nothing"]}, "nothing names no cache of the host"),
        ({"service": "demo", "releases": [7]}, "there is no release 7 of demo"),
        ({"service": "demo"}, "there is no cache to pack"),
    ],
)
def test_what_is_not_there_cannot_be_packed(one: Host, tmp_path: Path, wanted: dict[str, Any], what: str) -> None:
    one.cache()
    with pytest.raises(GpuopsError) as refused:
        one.saved(tmp_path / "box", wanted)
    assert refused.value.what == what and list(tmp_path.glob("*box*")) == []


def test_a_cache_that_its_name_does_not_tell_and_an_empty_one_are_left_out(one: Host, tmp_path: Path) -> None:
    cache, aside = one.cache(), one.cache("pack-1")
    aside.rename(aside.with_name(f"{aside.name}.poisoned-op"))
    empty = caches.folder(one.root, Identity("pack-2", "cpu", "rt-1", VERSIONS))
    empty.mkdir()
    (empty / caches.FILE).write_text(json.dumps(Identity("pack-2", "cpu", "rt-1", VERSIONS).to_json()))
    saved = one.saved(tmp_path / "box")
    assert [each["key"] for each in saved.file.index["caches"]] == [cache.name]
    assert sorted(each["why"].split(":")[0] for each in saved.left_out) == [
        "it is empty",
        "its name is not what its identity gives",
    ]


def test_parts_are_one_file_and_a_missing_one_is_named(one: Host, other: Host, tmp_path: Path) -> None:
    cache = one.cache()
    (cache / "triton" / "noise").write_bytes(os.urandom(250_000))
    saved = one.saved(tmp_path / "box", part_bytes=100_000)
    assert [path.name for path in saved.file.files] == ["box.001", "box.002", "box.003"]
    assert len(other.load(files.open_caches(tmp_path / "box"))["loaded"]) == 1
    (tmp_path / "box.002").unlink()
    with pytest.raises(GpuopsError) as missing:
        files.open_caches(tmp_path / "box")
    assert "part box.002 is missing" in missing.value.what


def test_a_file_that_was_altered_is_refused_here_and_a_bundle_is_no_file_of_caches(one: Host, tmp_path: Path) -> None:
    one.cache()
    path = one.saved(tmp_path / "box").file.files[0]
    with pytest.raises(GpuopsError) as wrong:
        carry.open_bundle(path)
    assert wrong.value.evidence == "this is a caches file, no bundle"
    with tarfile.open(path) as archive:
        member = archive.getmembers()[1]
    with path.open("r+b") as file:
        file.seek(member.offset_data + 20)
        file.write(b"!!!")
    with pytest.raises(GpuopsError) as altered:
        files.open_caches(path)
    assert altered.value.kind == "caches" and "is altered" in altered.value.evidence


@pytest.mark.failure_mode("caches-foreign")
def test_one_that_changed_on_its_way_is_refused_before_anything_is_put(one: Host, other: Host, tmp_path: Path) -> None:
    one.cache(), one.cache("pack-1")
    cached = one.saved(tmp_path / "box").file
    # The last member: what was unpacked before must not be put either.
    data = bytearray(cached.files[0].read_bytes())
    with tarfile.open(cached.files[0]) as archive:
        data[archive.getmembers()[-1].offset_data + 20] ^= 0xFF
    cached.files[0].write_bytes(data)
    with pytest.raises(GpuopsError) as refused:
        other.load(cached)
    assert (refused.value.code, refused.value.kind) == (5, "caches") and "altered" in refused.value.evidence
    assert not other.root.caches.exists() and not list(other.root.bundles.iterdir())


@pytest.mark.failure_mode("caches-foreign")
@pytest.mark.parametrize(
    ("made", "runtime", "why"),
    [
        ({"card": "NVIDIA H200"}, None, "is of NVIDIA H200, and this host has cpu"),
        ({}, "torch==2.12.0\n", "is of torch 2.11.0+cpu, and here is 2.12.0"),
        ({}, "torch==2.11.0\ntriton==3.7.0  # new\n", "is of triton 3.6.0, and here is 3.7.0"),
    ],
)
def test_one_of_another_card_torch_or_triton_is_refused(
    one: Host, other: Host, tmp_path: Path, made: dict[str, str], runtime: str | None, why: str
) -> None:
    one.cache(), one.cache("pack-1", **made)
    spec = {"kind": "lock", "id": "rt-1", "lock": runtime} if runtime else None
    with pytest.raises(GpuopsError) as refused:
        other.load(one.saved(tmp_path / "box").file, runtime=spec)
    assert (refused.value.code, refused.value.kind) == (5, "caches") and why in refused.value.what
    assert not other.root.caches.exists() and not list(other.root.bundles.iterdir())


def test_another_version_of_the_engine_is_loaded_and_told(one: Host, other: Host, tmp_path: Path) -> None:
    one.cache()
    spec = {"kind": "lock", "id": "rt-1", "lock": "torch==2.11.0\nsglang==0.5.24\n"}
    told = other.load(one.saved(tmp_path / "box").file, runtime=spec)
    assert len(told["loaded"]) == 1 and "is of sglang 0.5.23, and here is 0.5.24" in told["notes"][0]


@pytest.mark.failure_mode("caches-foreign")
def test_a_cache_that_is_there_stays_and_an_empty_one_is_replaced(one: Host, other: Host, tmp_path: Path) -> None:
    cache, pack = one.cache(), one.cache("pack-1")
    cached = one.saved(tmp_path / "box").file
    mine = other.root.caches / cache.name / "triton"
    mine.mkdir(parents=True)
    (mine / "own").write_text("own")
    (other.root.caches / pack.name).mkdir()
    told = other.load(cached)
    assert [each["key"] for each in told["loaded"]] == [pack.name]
    assert [(each["key"], each["why"]) for each in told["there"]] == [(cache.name, "the host has this cache, with 1 files")]
    assert content(mine.parent) == {"triton/own": b"own"} and content(other.root.caches / pack.name)
    assert sorted(path.name for path in other.root.caches.iterdir()) == sorted([cache.name, pack.name])


def test_what_a_living_server_changes_while_it_is_read_is_left_out(
    one: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = one.cache()
    read = Path.read_bytes

    def changing(path: Path) -> bytes:
        data = read(path)
        if path.name == "kernel.cubin":
            path.write_bytes(b"more")
        return data

    monkeypatch.setattr(Path, "read_bytes", changing)
    known = json.loads((cache / caches.FILE).read_text())
    _, _, index = cache_file.write(tmp_path, [cache_file.Source(cache, known, (), {})], "here")
    assert "triton/K/kernel.cubin" not in {row[0] for row in index["caches"][0]["files"]}


@pytest.mark.parametrize("name", ["../escape", "/etc/escape", "a/../../escape"])
def test_no_file_leads_out_of_the_cache(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        cache_file._inside(tmp_path, name)


def test_a_python_without_lzma_packs_with_gzip(one: Host, other: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = one.cache()
    known = json.loads((cache / caches.FILE).read_text())
    monkeypatch.setattr(cache_file, "lzma", None)
    name, path, index = cache_file.write(tmp_path, [cache_file.Source(cache, known, (), {})], "here")
    monkeypatch.undo()
    assert cache_file.read(path, name) == index and index["caches"][0]["member"].endswith(".tar.gz")
    target = tmp_path / "target"
    target.mkdir()
    cache_file.extract(path, index["caches"][0], target, target)
    assert content(target) == content(cache)


class LostLink(Agent):
    """Loses the link in the middle of what is fetched, once."""

    lost = False

    def call(self, verb: str, **args: Any) -> dict[str, Any]:
        if verb == "cache.get" and not self.lost:
            self.lost = True
            hear = args["on_event"]

            def cut(event: Any) -> None:
                hear(event)
                raise OutcomeUnknown("the link was lost")

            args["on_event"] = cut
        return super().call(verb, **args)


def test_a_lost_link_costs_nothing_that_has_arrived(tmp_path: Path, agent_folder: Path) -> None:
    host = Host(tmp_path / "one", agent_folder, LostLink)
    (host.cache() / "triton" / "noise").write_bytes(os.urandom(1_500_000))
    seen: list[int] = []
    saved = host.saved(tmp_path / "box", told=lambda done, total: seen.append(done))
    assert host.agent.lost and seen == sorted(set(seen)) and seen[-1] == saved.file.bytes


def test_a_bundle_brings_caches_along_and_leaves_out_what_does_not_fit(one: Host, other: Host, tmp_path: Path) -> None:
    cache, foreign = one.cache(), one.cache("pack-1", card="NVIDIA H200")
    cached = one.saved(tmp_path / "box", part_bytes=100_000).file
    prepared = {"runtime": {"kind": "path", "path": "/opt/venv"}, "model": {"kind": "path", "path": "/m"}, "build": None}
    bundle.write(tmp_path / "box.tar", Contents(prepared, (), HERE, caches=cached.for_bundle()))
    bundled = carry.open_bundle(tmp_path / "box.tar")
    assert bundled.caches == (cached.id,)
    carry.send(other.agent, bundled)
    told = other.agent.call("cache.load", id=cached.id, bundle=bundled.id, strict=False)
    assert [each["key"] for each in told["loaded"]] == [cache.name]
    assert [(each["key"], each["why"]) for each in told["unfit"]] == [(foreign.name, "is of NVIDIA H200, and this host has cpu")]


def test_a_cache_that_waits_for_its_first_start_is_not_pruned(one: Host, other: Host, tmp_path: Path) -> None:
    one.cache()
    other.load(one.saved(tmp_path / "box").file)
    other.cache("pack-1")
    things = {thing.name: thing.needed for thing in inventory.things(other.root, "agent", time.time()) if thing.kind == "cache"}
    assert sorted(bool(why) for why in things.values()) == [False, True]


def test_a_packed_file_that_nobody_fetched_goes_with_a_prune(one: Host) -> None:
    one.cache()
    name = one.agent.call("cache.pack", everything=True)["id"]
    (left,) = [
        thing for thing in inventory.things(one.root, "agent", time.time() + 2 * inventory.YOUNG_S) if thing.kind == "bundle"
    ]
    assert (left.name, left.needed) == (f".outgoing-{name}.tar", "")


def test_sources_of_an_installed_runtime_are_older_than_any_cache(tmp_path: Path) -> None:
    for name in ("pkg/a.cuh", "pkg/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    runtimes._make_sources_old(tmp_path)
    assert (tmp_path / "pkg/a.cuh").stat().st_mtime == 315_532_800
    assert (tmp_path / "pkg/a.py").stat().st_mtime > 315_532_800, "byte-code tells its source by its time"
