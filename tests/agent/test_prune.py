"""Pruning real folders, and over the wire beside a real server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import files, inventory, journal, locks, operations, pins, prune, releases, retention
from gpuops_agent.paths import Root, Service
from gpuops_agent.prune import Pruning
from gpuops_agent.wire import AgentError
from process_lab import bystander
from rollouts import Lab

from gpuops.errors import GpuopsError

EVIDENCE = ("release.json", "state.json", "gates.json", "fingerprint.json", "server.log", "server.log.1")


class Disk:
    """A ROOT with whatever a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.root = Root(folder / "root")
        self.service: Service = self.root.service("demo")
        self.service.releases.mkdir(parents=True)
        self.service.operations.mkdir()

    def release(self, *uses: Path, state: str = "good") -> int:
        document = {"argv": [f"--x={path}/y" for path in uses], "port": 1}
        number = releases.stage(self.service, document).number
        releases.set_state(self.service, number, state)
        for name in EVIDENCE[2:]:
            (self.service.release(number) / name).write_text("evidence")
        return number

    def serve(self, number: int) -> None:
        releases.point(self.service, self.service.current, number)
        releases.point(self.service, self.service.good, number)

    def runtime(self, name: str) -> Path:
        return self.folder(self.root.runtimes / name)

    def cache(self, name: str) -> Path:
        return self.folder(self.root.caches / name)

    def build(self, name: str) -> Path:
        path = self.folder(self.root.builds / name / "site").parent
        (path / "manifest.json").write_text("{}")
        files.write_json(self.folder(self.root.builds / "recipes") / f"of-{name}.json", {"id": name})
        return path

    def model(self, name: str, *, ours: bool = True) -> Path:
        path = self.folder(self.root.models / name)
        if ours:
            files.write_json(path / "model.json", {"id": name})
        return path

    def folder(self, path: Path) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        (path / "content").write_bytes(b"x" * 10_000)
        return path

    def operation(self, name: str, ended_at: float) -> Path:
        path = self.service.operation(name)
        path.mkdir()
        files.write_json(path / "outcome.json", {"outcome": "promoted"})
        os.utime(path / "outcome.json", (ended_at, ended_at))
        return path

    def pruning(self, keep: int = 1, *, later_s: float = 2 * inventory.YOUNG_S) -> Pruning:
        return Pruning(self.root, keep, None, "test@here", "present", time.time() + later_s)

    def prune(self, keep: int = 1) -> dict[str, Any]:
        return self.pruning(keep).do()

    def trash(self) -> list[Path]:
        return list(self.root.path.rglob(".trash-*"))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def names(told: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(each["kind"], each["name"]) for each in told}


def test_an_old_release_goes_with_all_that_only_it_used(disk: Disk) -> None:
    old = [disk.runtime("rt-1"), disk.build("b-1"), disk.model("m-1"), disk.cache("c-1")]
    new = [disk.runtime("rt-10"), disk.build("b-10"), disk.model("m-10"), disk.cache("c-10")]
    disk.release(*old)
    disk.serve(disk.release(*new))
    result = disk.prune()
    gone = {("release", "1"), ("runtime", "rt-1"), ("build", "b-1"), ("model", "m-1"), ("cache", "c-1")}
    assert (names(result["gone"]), result["failed"]) == (gone, [])
    assert not any(path.exists() for path in [*old, disk.service.release(1)])
    assert all(path.exists() for path in [*new, disk.service.release(2)])
    assert [path.name for path in (disk.root.builds / "recipes").glob("*.json")] == ["of-b-10.json"]
    assert disk.trash() == []


def test_the_evidence_of_a_bad_release_stays_and_what_it_used_goes(disk: Disk) -> None:
    build = disk.build("b-1")
    disk.release(build, state="bad")
    disk.serve(disk.release())
    assert names(disk.prune()["gone"]) == {("build", "b-1")}
    assert {path.name for path in disk.service.release(1).iterdir()} == set(EVIDENCE)


def test_a_cancellation_goes_once_its_order_cannot_come_any_more(disk: Disk) -> None:
    operations.cancel(disk.root, {"service": "demo", "op": "op-1", "before": True})
    forbidden = disk.service.forbidden("op-1")
    disk.pruning(later_s=0).do()
    assert forbidden.exists()
    disk.prune()
    assert not forbidden.exists()


def test_a_dry_run_tells_the_same_and_deletes_nothing(disk: Disk) -> None:
    disk.release(disk.cache("c-1"))
    disk.serve(disk.release())
    before = sorted(disk.root.path.rglob("*"))
    told = disk.pruning().rehearse()
    assert sorted(disk.root.path.rglob("*")) == before
    done = disk.prune()
    assert {**told, "dry_run": False} == done


def test_what_was_freed_is_what_the_disk_has_gained(disk: Disk) -> None:
    cache = disk.cache("c-1")
    on_disk = sum(path.lstat().st_blocks * 512 for path in [cache, *cache.iterdir()])
    result = disk.prune()
    assert (result["bytes"], [each["bytes"] for each in result["gone"]]) == (on_disk, [on_disk])


def test_a_file_that_another_build_shares_frees_nothing(disk: Disk) -> None:
    one, two = disk.build("b-1"), disk.build("b-2")
    (two / "site" / "content").unlink()
    os.link(one / "site" / "content", two / "site" / "content")
    shared = (one / "site" / "content").stat().st_blocks * 512
    assert prune.freed((one, two)) - prune.freed((one,)) - prune.freed((two,)) == shared > 0


def test_a_model_that_gpuops_did_not_make_stays(disk: Disk) -> None:
    mine = disk.model("mine", ours=False)
    assert disk.prune()["gone"] == [] and mine.exists()


def test_a_link_is_not_followed_and_not_deleted(disk: Disk, tmp_path: Path) -> None:
    elsewhere = disk.folder(tmp_path / "elsewhere")
    disk.root.caches.mkdir()
    (disk.root.caches / "c-1").symlink_to(elsewhere)
    cache = disk.cache("c-2")
    (cache / "link").symlink_to(elsewhere)
    os.chmod(elsewhere, 0o500)
    assert names(disk.prune()["gone"]) == {("cache", "c-2")}
    assert (elsewhere / "content").exists() and elsewhere.stat().st_mode & 0o777 == 0o500
    assert (disk.root.caches / "c-1").is_symlink()


def test_a_build_that_has_just_arrived_stays(disk: Disk) -> None:
    disk.build("b-1")
    assert disk.pruning(later_s=0).do()["gone"] == []
    assert names(disk.prune()["gone"]) == {("build", "b-1")}


def test_what_of_a_build_has_arrived_before_its_push_was_given_up_goes(disk: Disk) -> None:
    incoming = disk.folder(disk.root.builds / ".incoming-b-1" / "site").parent
    assert disk.pruning(later_s=0).do()["gone"] == [] and incoming.is_dir()
    assert names(disk.prune()["gone"]) == {("build", ".incoming-b-1")}
    assert not incoming.exists()


def test_old_operations_go_and_their_journal_lines_stay(disk: Disk) -> None:
    for number in range(retention.KEEP_OPERATIONS + 1):
        disk.operation(f"op-{number}", ended_at=1e9 + number)
    cut = disk.service.operation("op-cut")
    cut.mkdir()
    journal.write(disk.service, "outcome", op="op-0", outcome="promoted")
    assert names(disk.prune()["gone"]) == {("operation", "op-0")}
    assert cut.is_dir() and disk.service.operation("op-1").is_dir()
    assert any(entry.get("op") == "op-0" for entry in journal.entries(disk.service))


def test_every_deletion_is_in_the_journal_before_it_happens(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.release(disk.cache("c-1"))
    disk.serve(disk.release())

    def refuse(path: Path, kind: str) -> Path:
        entry = list(journal.entries(disk.service))[-1]
        assert (entry["event"], entry["kind"], entry["by"]) == ("pruned", kind, "test@here")
        assert entry["name"] == path.name and entry["why"]
        raise OSError("not today")

    monkeypatch.setattr(prune, "_to_trash", refuse)
    result = disk.prune()
    assert (result["gone"], names(result["failed"])) == ([], {("release", "1"), ("cache", "c-1")})
    assert {each["why"] for each in result["failed"]} == {"not today"}


def test_a_prune_that_was_cut_leaves_nothing_half_there_and_the_next_one_ends_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = disk.cache("c-1")

    def die(trash: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(prune, "_remove", die)
        with pytest.raises(KeyboardInterrupt):
            disk.prune()
    assert not old.exists() and len(disk.trash()) == 1
    disk.prune()
    assert disk.trash() == []


def test_a_service_that_is_being_changed_refuses_and_loses_nothing(disk: Disk) -> None:
    disk.cache("c-1")
    script = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from gpuops_agent import locks, paths, proc; import os, signal\n"
        "me = proc.identify(os.getpid())\n"
        "owner = {'op': 'op-7', 'kind': 'up', 'by': 'ann', 'runner': me.to_json()}\n"
        "fd = locks.acquire(paths.Root(Path(sys.argv[2])).service('demo'), owner)\n"
        "print('held', flush=True); signal.pause()"
    )
    remote = str(Path(prune.__file__).parents[1])
    holder = subprocess.Popen([sys.executable, "-c", script, remote, str(disk.root.path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(AgentError) as busy:
            disk.prune()
        assert (busy.value.code, busy.value.kind) == (13, "locked")
        assert disk.pruning().rehearse()["gone"] == []
        assert disk.cache("c-1").exists()
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert names(disk.prune()["gone"]) == {("cache", "c-1")}


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Disk]:
    """A ROOT with something to prune, on a disk without a byte of room."""
    mount = tmp_path / "disk"
    mount.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a tmpfs needs root: {mounted.stderr.strip()}")
    try:
        disk = Disk(mount)
        disk.cache("c-1")
        disk.serve(disk.release())
        disk.prune(keep=9)
        disk.cache("c-1")
        with (mount / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_can_be_pruned_and_the_journal_says_so_afterwards(full_disk: Disk) -> None:
    with pytest.raises(AgentError, match="disk is full"):
        # An entry longer than what is left of the journal's last page.
        journal.write(full_disk.service, "nothing", text="x" * 8192)
    before = len(list(journal.entries(full_disk.service)))
    result = full_disk.prune()
    assert (names(result["gone"]), result["failed"]) == ({("cache", "c-1")}, [])
    assert [entry["name"] for entry in list(journal.entries(full_disk.service))[before:]] == ["c-1"]


def test_a_service_that_a_person_has_locked_refuses(disk: Disk) -> None:
    locks.lock(disk.root, {"service": "demo", "by": "ann", "reason": "looking into release 1"})
    with pytest.raises(AgentError) as locked:
        disk.prune()
    assert (locked.value.code, locked.value.kind) == (13, "locked_by_person")


def test_nothing_is_locked_afterwards(disk: Disk) -> None:
    disk.prune()
    assert locks.owner(disk.service) is None
    os.close(locks.acquire(disk.service, {}))


def test_a_service_that_begins_meanwhile_keeps_what_is_shared(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.cache("c-1")
    disk.release()
    disk.serve(disk.release())
    sized = prune.freed

    def another(paths: tuple[Path, ...]) -> int:
        (disk.root.services / "other").mkdir(exist_ok=True)
        return sized(paths)

    monkeypatch.setattr(prune, "freed", another)
    result = disk.prune()
    assert (names(result["gone"]), names(result["failed"])) == ({("release", "1")}, {("cache", "c-1")})


def test_agents_that_neither_serve_nor_run_go(disk: Disk) -> None:
    agents = disk.root.agents
    agents.mkdir()
    for name in ("present", "alive", "old"):
        (agents / f"{name}.pyz").write_text("import signal; print('up', flush=True); signal.pause()")
        disk.folder(agents / name)
    with bystander(sys.executable, str(agents / "alive.pyz")):
        result = disk.prune()
    assert names(result["gone"]) == {("agent", "old")}
    assert {path.name for path in agents.iterdir()} == {"present", "present.pyz", "alive", "alive.pyz"}
    assert names(disk.prune()["gone"]) == {("agent", "alive")}


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_read_only_build_can_be_deleted_by_its_owner() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuops-") as name:
        os.chmod(name, 0o777)
        script = (
            "import os, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
            # Imported first: that user may not see our Python.
            "from gpuops_agent import prune; os.setuid(65534)\n"
            "trash = Path(sys.argv[2]) / '.trash-1'; inner = trash / 'site' / 'a'; inner.mkdir(parents=True)\n"
            "(inner / 'f').write_text('x')\n"
            "for path, mode in ((inner / 'f', 0o444), (inner, 0), (trash / 'site', 0o555), (trash, 0o555)): path.chmod(mode)\n"
            "prune._remove(trash); assert not trash.exists()"
        )
        subprocess.run([sys.executable, "-c", script, str(Path(prune.__file__).parents[1]), name], check=True)


def test_a_pinned_release_stays_until_it_is_unpinned(disk: Disk) -> None:
    cache = disk.cache("c-1")
    disk.release(cache)
    disk.serve(disk.release())
    pins.pin(disk.root, {"service": "demo", "release": 1, "by": "ann", "reason": "the paper's figures"})
    assert disk.prune()["gone"] == [] and cache.exists()
    was = pins.unpin(disk.root, {"service": "demo", "release": 1, "by": "ann"})["was"]
    assert (was["by"], was["reason"]) == ("ann", "the paper's figures")
    assert names(disk.prune()["gone"]) == {("release", "1"), ("cache", "c-1")}
    entries = [entry["event"] for entry in journal.entries(disk.service)]
    assert entries.index("pinned") < entries.index("unpinned") < entries.index("pruned")


def test_a_pin_that_cannot_be_read_holds(disk: Disk) -> None:
    disk.release()
    disk.serve(disk.release())
    (disk.service.release(1) / "pin.json").write_text("{cut")
    for _ in range(2):
        assert disk.prune()["gone"] == []
    assert pins.unpin(disk.root, {"service": "demo", "release": 1})["was"]["reason"] == "its pin.json is unreadable"
    assert pins.pinned(disk.service, 1) is None


@pytest.mark.parametrize("verb", [pins.pin, pins.unpin])
def test_only_a_release_that_exists_can_be_pinned(disk: Disk, verb: Callable[..., Any]) -> None:
    with pytest.raises(AgentError) as none:
        verb(disk.root, {"service": "demo", "release": 3})
    assert none.value.kind == "no_release"


def test_prune_over_the_wire_beside_a_running_server(lab: Lab) -> None:
    lab.good("--flavour", "one")
    lab.good("--flavour", "two")
    pid = lab.good("--flavour", "three").outcome["pid"]
    lab.agent.call("pin", service="demo", release=1, by="ann", reason="kept")
    assert {each["release"]: bool(each["pinned"]) for each in lab.history()["releases"]} == {1: True, 2: False, 3: False}
    result = lab.agent.call("prune", service="demo", keep=1, by="ann")
    assert [(each["kind"], each["name"]) for each in result["gone"]] == [("release", "2")]
    status = lab.status(check=True)
    assert (status["server"]["pid"], status["check"]["state"], status["operation"]) == (pid, "serving", None)
    assert lab.restore(1).name == "restored"


def test_prune_refuses_to_keep_nothing_and_a_service_that_is_not_there(lab: Lab) -> None:
    with pytest.raises(GpuopsError) as nothing:
        lab.agent.call("prune", keep=0)
    with pytest.raises(GpuopsError) as absent:
        lab.agent.call("prune", service="nobody")
    assert (nothing.value.code, absent.value.kind) == (2, "no_service")
    assert json.loads(json.dumps(lab.agent.call("prune")))["gone"] == []


def overlay(disk: Disk, name: str) -> Path:
    path = disk.folder(disk.root.overlays / name)
    (path / "overlay.json").write_text("{}")
    return path


def bundle(disk: Disk, name: str) -> Path:
    path = disk.folder(disk.root.bundles / name)
    (path / "index.json").write_text("{}")
    return path


def test_the_patched_copy_that_a_release_starts_with_stays_and_others_go(disk: Disk) -> None:
    used, unused = overlay(disk, "b-1-k1"), overlay(disk, "b-1-k2")
    disk.serve(disk.release(used))
    assert names(disk.prune()["gone"]) == {("overlay", "b-1-k2")}
    assert used.exists() and not unused.exists()


def test_a_bundle_goes_when_it_is_old_whole_or_cut_and_stays_while_it_is_young(disk: Disk) -> None:
    bundle(disk, "bundle-1")
    (disk.root.bundles / ".incoming-bundle-2.tar").write_bytes(b"half")
    assert disk.pruning(later_s=0.0).do()["gone"] == []
    assert names(disk.prune()["gone"]) == {("bundle", "bundle-1"), ("bundle", ".incoming-bundle-2.tar")}
    assert list(disk.root.bundles.iterdir()) == []


def test_only_the_kinds_that_were_asked_for_go(disk: Disk) -> None:
    disk.build("b-1")
    disk.cache("c-1")
    later = time.time() + 2 * inventory.YOUNG_S
    result = Pruning(disk.root, 1, None, "test@here", "present", later, ["build", "overlay"]).do()
    assert names(result["gone"]) == {("build", "b-1")} and (disk.root.caches / "c-1").exists()
