"""Bundles over the wire: a host without a registry gets all it needs, in pieces that a cut link does not undo."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patching import PATCH, runtime
from preparing import Bench
from rollouts import Lab

from gpuops.agent.client import Agent
from gpuops.builds import bundle, carry
from gpuops.builds.bundle import Contents
from gpuops.builds.carry import Bundle, open_bundle
from gpuops.builds.download import HostPlatform
from gpuops.builds.make import make
from gpuops.errors import GpuopsError, OutcomeUnknown

HERE = HostPlatform((sys.version_info[0], sys.version_info[1]), "x86_64", (2, 28))

RUNTIME: dict[str, Any] = {
    "kind": "lock",
    "id": "rt-tiny",
    "lock": "tiny==1.0\n",
    "files": {},
    "python": sys.executable,
    "torch_backend": None,
    "download_bytes": 1000,
}


@pytest.fixture
def bundled(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle of one wheel and one build; afterwards no index can be reached from here."""
    (tmp_path / "index").mkdir()
    bench = Bench(tmp_path / "index", monkeypatch)
    bench.wheel("tiny", data_bin="x" * 50_000)
    (tmp_path / "patches" / "engine-1.0").mkdir(parents=True)
    (tmp_path / "patches" / "engine-1.0" / "b.patch").write_text(PATCH)
    made = make(tmp_path / "builds", None, name="fix", patch_folder=tmp_path / "patches")
    prepare = {"runtime": RUNTIME, "model": {"kind": "path", "path": str(lab.model)}, "build": None}
    out = tmp_path / "box.tar"
    bundle.write(out, Contents(prepare, (made.tree,), HERE))
    shutil.rmtree(bench.wheels)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setattr(carry, "PIECE", 16 << 10)
    return open_bundle(out)


class CutLink(Agent):
    """Loses the link after so many pieces; ``sent`` counts the bytes that were put on it."""

    pieces = 0
    last = 10**9
    sent = 0

    def call(self, verb: str, **args: Any) -> dict[str, Any]:
        if verb == "bundle.put":
            self.pieces += 1
            self.sent += len(args["payload"])
            if self.pieces > self.last:
                # Half of it arrives.
                args["payload"] = args["payload"][: len(args["payload"]) // 2]
                super().call(verb, **args)
                raise OutcomeUnknown("the link was lost")
        return super().call(verb, **args)


def over(lab: Lab, last: int = 10**9) -> CutLink:
    link = CutLink(lab.agent.transport, str(lab.path), sys.executable)
    link.last = last
    return link


def test_a_rollout_with_a_bundle_needs_no_registry(lab: Lab, bundled: Bundle) -> None:
    assert carry.send(lab.agent, bundled)
    assert not carry.send(lab.agent, bundled), "it is there already"
    order = lab.order()
    order["prepare"] = {**order["prepare"], "runtime": RUNTIME, "bundle": bundled.id}
    played = lab.play(order)
    assert played.name == "promoted", played.outcome
    assert list((lab.root.runtimes / "rt-tiny").glob("lib/python3*/site-packages/tiny/data.bin"))


def test_without_the_bundle_the_same_rollout_fails_before_anything_is_touched(lab: Lab, bundled: Bundle) -> None:
    order = lab.order()
    order["prepare"] = {**order["prepare"], "runtime": {**RUNTIME, "id": "rt-other"}}
    played = lab.play(order)
    assert (played.name, played.code) == ("failed", 5)
    order = lab.order()
    order["prepare"] = {**order["prepare"], "bundle": bundled.id}
    played = lab.play(order)
    assert (played.outcome["kind"], played.outcome["next"]) == ("bundle", "gpuops up --bundle FILE")


def test_the_builds_of_a_bundle_are_the_hosts_builds(lab: Lab, bundled: Bundle) -> None:
    carry.send(lab.agent, bundled)
    (build,) = bundled.builds
    assert lab.agent.call("build.verify", id=build)["wrong"] == []
    assert lab.agent.call("build.list")["builds"][0]["about"]["patches"] == ["engine-1.0"]


@pytest.mark.failure_mode("bundle-cut")
def test_a_cut_transfer_goes_on_where_it_stopped(lab: Lab, bundled: Bundle) -> None:
    cut = over(lab, last=2)
    with pytest.raises(OutcomeUnknown):
        carry.send(cut, bundled)
    stream = next(lab.root.bundles.glob(".incoming-*.tar"))
    arrived = stream.stat().st_size
    assert arrived == 2 * carry.PIECE + carry.PIECE // 2
    again = over(lab)
    assert carry.send(again, bundled)
    assert again.sent == bundled.bytes - arrived
    assert (lab.root.bundles / bundled.id / "index.json").exists() and not stream.exists()


def test_a_bundle_that_changed_on_its_way_is_refused_removed_and_can_be_sent_again(lab: Lab, bundled: Bundle) -> None:
    cut = over(lab, last=2)
    with pytest.raises(OutcomeUnknown):
        carry.send(cut, bundled)
    stream = next(lab.root.bundles.glob(".incoming-*.tar"))
    with stream.open("r+b") as file:
        file.seek(30_000)
        file.write(b"!")
    with pytest.raises(GpuopsError) as refused:
        carry.send(lab.agent, bundled)
    assert (refused.value.code, refused.value.kind) == (5, "bundle")
    assert "is altered" in refused.value.evidence and "the running server was not touched" in refused.value.next
    assert list(lab.root.bundles.iterdir()) == []
    assert carry.send(lab.agent, bundled)


@pytest.mark.parametrize(
    ("told", "member", "kind", "why"),
    [
        ({"builds": ["../../elsewhere"]}, "x", tarfile.REGTYPE, "does not hold the build ../../elsewhere"),
        ({"builds": []}, "../../elsewhere", tarfile.REGTYPE, "leads out of the bundle"),
        ({"builds": []}, "/tmp/elsewhere", tarfile.REGTYPE, "leads out of the bundle"),
        ({"builds": []}, "x", tarfile.SYMTYPE, "x is no plain file"),
    ],
)
def test_a_bundle_that_leads_out_of_its_folder_is_refused(
    told: dict[str, Any], member: str, kind: bytes, why: str, lab: Lab
) -> None:
    index = json.dumps({**told, "members": [[member, 0, hashlib.sha256().hexdigest()]]}).encode()
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        head = tarfile.TarInfo("index.json")
        head.size = len(index)
        archive.addfile(head, io.BytesIO(index))
        info = tarfile.TarInfo(member)
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    name, data = bundle.identity(index), whole.getvalue()
    lab.agent.call("bundle.have", id=name, bytes=len(data), room=0, runtime=None)
    lab.agent.call("bundle.put", id=name, offset=0, size=len(data), payload=data)
    with pytest.raises(GpuopsError) as refused:
        lab.agent.call("bundle.commit", id=name)
    assert (refused.value.code, refused.value.kind) == (5, "bundle") and why in refused.value.evidence
    assert list(lab.root.bundles.iterdir()) == []


@pytest.mark.failure_mode("bundle-cut")
def test_a_host_without_room_refuses_before_anything_is_sent(lab: Lab, bundled: Bundle) -> None:
    large = replace(bundled, index={**bundled.index, "room": 1 << 60})
    link = over(lab)
    with pytest.raises(GpuopsError) as refused:
        carry.send(link, large)
    assert (refused.value.code, refused.value.kind) == (5, "disk_full")
    assert "gpuops prune" in refused.value.next and link.sent == 0


def test_a_runtime_that_is_there_already_needs_no_room(lab: Lab, bundled: Bundle) -> None:
    made = lab.root.runtimes / "rt-tiny"
    made.mkdir(parents=True)
    (made / "runtime.json").write_text("{}")
    assert carry.send(lab.agent, replace(bundled, index={**bundled.index, "room": 1 << 60}))


def test_two_that_send_the_same_do_not_mix_their_pieces(lab: Lab, bundled: Bundle) -> None:
    lab.agent.call("bundle.have", id=bundled.id, bytes=bundled.bytes, room=0)
    lab.agent.call("bundle.put", id=bundled.id, offset=0, size=3, payload=b"abc")
    with pytest.raises(GpuopsError) as late:
        lab.agent.call("bundle.put", id=bundled.id, offset=0, size=3, payload=b"abc")
    assert late.value.kind == "offset"


def test_a_name_that_leads_elsewhere_is_refused(lab: Lab) -> None:
    for name in ("../x", "a/b", ""):
        with pytest.raises(GpuopsError, match="no name for a bundle"):
            lab.agent.call("bundle.have", id=name, bytes=1, room=0)


def test_the_host_says_what_wheels_must_fit(lab: Lab) -> None:
    told = lab.agent.call("bundle.platform", python=None)
    assert told["python"][0] == 3 and told["machine"] and len(told["glibc"]) == 2
    with pytest.raises(GpuopsError) as none:
        lab.agent.call("bundle.platform", python="python9.9")
    assert none.value.kind == "no_python"


def test_a_patched_release_starts_with_its_overlay_and_not_without(lab: Lab) -> None:
    """The whole way: push, overlay, the server's environment, and a look at the overlay before a restore."""
    engine = lab.order()["engine"]
    shutil.rmtree(lab.runtime)
    lab.runtime.mkdir()
    runtime(lab.runtime, engine["version"])
    site = next(lab.runtime.glob("lib/python3*/site-packages"))
    (site / f"engine-{engine['version']}.dist-info").rename(site / f"{engine['name']}-{engine['version']}.dist-info")
    patches = lab.folder / "patches"
    (patches / f"{engine['name']}-{engine['version']}").mkdir(parents=True)
    (patches / f"{engine['name']}-{engine['version']}" / "b.patch").write_text(PATCH)
    made = make(lab.folder / "builds", None, name="fix", patch_folder=patches)
    from gpuops.builds.push import push

    assert push(lab.agent, made.tree) is not None
    order = lab.order(env={"PYTHONPATH": "@{pythonpath}"})
    order["prepare"]["build"] = {"kind": "tree", "id": made.tree.id}
    played = lab.play(order)
    assert played.name == "promoted", played.outcome
    document = json.loads((lab.service.release(played.outcome["release"]) / "release.json").read_text())
    overlay = Path(document["build"]["overlay"]["site"])
    assert document["env"]["PYTHONPATH"] == f"{overlay}:{lab.root.builds / made.tree.id / 'site'}"
    assert "B = 3" in (overlay / "engine" / "core.py").read_text()
    # What a release names stays, whatever is pruned.
    gone = lab.agent.call("prune", keep=1, by="t", dry_run=True, kinds=["build", "overlay"])
    assert gone["gone"] == [] and {each["kind"] for each in gone["kept"]} == {"build", "overlay"}
    lab.down()
    shutil.rmtree(overlay)
    back = lab.restore(played.outcome["release"])
    assert (back.name, back.outcome["kind"]) == ("failed", "build")
    assert str(overlay) in back.outcome["evidence"]
