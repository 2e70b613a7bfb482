"""`gpuops caches` and the caches of `gpuops up --bundle`: what they ask for, what they print and how they end."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import replay

from gpuops.errors import Exit, GpuopsError

HOST = ("--host", "gpu-box", "--service", "svc")

CACHE: dict[str, Any] = {
    "key": "a1b2c3d4e5f6",
    "build": "pack-1",
    "card": "NVIDIA H200",
    "runtime": "rt-1",
    "versions": {"torch": "2.11.0", "triton": "3.6.0"},
    "created": 1.0,
    "last_used": 2.0,
    "came": None,
    "reset": None,
    "last_start": {"at": 2.0, "misses": 3},
    "entries": 4,
    "bytes": 5_000_000,
    "files": {"triton": 3, "": 1},
    "used_by": [{"service": "svc", "release": 2, "current": True, "known_good": True}],
}
LOADED = {
    "loaded": [{"key": "a1b2", "build": "stock", "entries": 2, "bytes": 2000}],
    "there": [],
    "unfit": [],
    "notes": ["beware"],
}


def packed(**changes: Any) -> tuple[str, bytes]:
    """A file of one cache of one file, as the agent packs it: its id and its content; ``changes`` are those of its cache in the index."""
    cache = {
        "key": "a1b2",
        "build": "stock",
        "card": "cpu",
        "versions": {},
        "member": "a1b2.tar.xz",
        "files": [["t/k", 420, 5, "x", 1]],
        **changes,
    }
    member = b"compressed"
    listed = [["a1b2.tar.xz", len(member), hashlib.sha256(member).hexdigest()]]
    index = json.dumps({"version": 1, "kind": "caches", "host": "box", "caches": [cache], "members": listed}).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in (("index.json", index), ("a1b2.tar.xz", member)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return f"caches-{hashlib.sha256(index).hexdigest()[:12]}", out.getvalue()


@pytest.fixture
def saving(agent):
    """A host that packs that file."""
    name, data = packed()

    def get(args: dict[str, Any], on_event: Any) -> dict[str, Any]:
        on_event({"event": "chunk", "data": base64.b64encode(data[args["offset"] :]).decode()})
        return {"bytes": len(data)}

    left_out = [{"key": "ffff", "why": "it is empty"}]
    return agent(
        **{"cache.pack": {"id": name, "bytes": len(data), "caches": [], "left_out": left_out}, "cache.get": get, "cache.drop": {}}
    )


def test_list_tells_of_each_cache_what_it_is_and_who_uses_it(gpuops, agent):
    others = [
        {**CACHE, "key": "b" * 12, "last_start": None, "came": {"from": "box"}, "used_by": []},
        {**CACHE, "key": f"{'c' * 12}.poisoned-op", "last_start": None, "used_by": []},
    ]
    agent(**{"cache.list": {"caches": [CACHE, *others]}})
    lines = gpuops("caches", "list", *HOST).out.splitlines()
    assert lines[0] == "3 caches on gpu-box"
    assert lines[1].split("  ")[1:5] == ["a1b2c3d4e5f6", *[""] * 3]
    assert "pack-1" in lines[1] and "5.0 MB" in lines[1] and "NVIDIA H200, torch 2.11.0, Triton 3.6.0" in lines[1]
    assert "3 misses" in lines[1] and lines[1].endswith("svc 2 (current, known-good)")
    assert "from box, not started with yet" in lines[2] and lines[2].endswith("no release uses it")
    assert lines[3].endswith("put aside: it was damaged")
    assert "triton 3" in gpuops("caches", "list", *HOST, "-v").out
    assert gpuops("caches", "list", *HOST, "--json").objects[0]["caches"][0]["key"] == CACHE["key"]


def test_save_writes_the_file_and_says_how_to_use_it(gpuops, saving):
    said = gpuops("caches", "save", "box", *HOST)
    assert said.code == 0, said.err
    assert Path("box").read_bytes() == packed()[1]
    assert said.out.startswith("box: 1 cache, ") and "gpuops caches load box, before the first `gpuops up`" in said.out
    assert "ffff is left out: it is empty" in said.err
    assert saving.calls[0] == ("cache.pack", {"service": "svc", "keys": [], "releases": [], "everything": False})
    assert [verb for verb, _ in saving.calls] == ["cache.pack", "cache.get", "cache.drop"]


def test_save_does_not_write_over_a_file_and_asks_the_host_for_nothing_then(gpuops, saving):
    Path("box.002").write_text("a part")
    said = gpuops("caches", "save", "box", *HOST, "--split", "100k")
    assert said.code == 1 and "box.002 is there already" in said.err and saving.calls == []


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("--all",), {"keys": [], "releases": [], "everything": True}),
        (("--release", "2", "--release", "3"), {"keys": [], "releases": [2, 3], "everything": False}),
        (("a1", "b2"), {"keys": ["a1", "b2"], "releases": [], "everything": False}),
    ],
)
def test_save_packs_what_is_named(gpuops, saving, words, asked):
    assert gpuops("caches", "save", "box", *words, *HOST, "--json").objects[0]["caches"][0]["entries"] == 1
    assert saving.calls[0][1] == {"service": "svc", **asked}


@pytest.mark.parametrize("words", [("--release", "two"), ("--all", "--release", "2"), ("a1", "--all"), ("--split", "1")])
def test_save_refuses_what_makes_no_sense(gpuops, saving, words):
    said = gpuops("caches", "save", "box", *words, *HOST)
    assert said.code == Exit.USAGE and "next:" in said.err and saving.calls == []


def sent(agent: Any, **answers: Any) -> Any:
    return agent(**{"bundle.have": {"present": False, "received": 0}, "bundle.put": {"received": len(packed()[1])}, **answers})


def test_load_sends_the_file_and_tells_what_became_of_it(gpuops, agent):
    name, data = packed()
    Path("box").write_bytes(data)
    fake = sent(
        agent, **{"cache.load": {**LOADED, "there": [{"key": "c3", "build": "pack-1", "why": "the host has this cache"}]}}
    )
    said = gpuops("caches", "load", "box", *HOST)
    assert said.code == 0, said.err
    assert said.out.splitlines() == [
        "1 cache loaded on gpu-box",
        "  + a1b2  stock   2 files, 2.0 kB",
        "  = c3    pack-1  left as it is: the host has this cache",
        "beware",
    ]
    assert fake.calls[-1] == ("cache.load", {"id": name, "strict": True, "service": "svc", "runtime": None})
    assert fake.calls[0][1] == {"id": name, "bytes": len(data), "room": 5, "runtime": None}


def test_load_ends_with_5_when_the_host_refuses(gpuops, agent):
    Path("box").write_bytes(packed()[1])
    sent(agent, **{"cache.load": GpuopsError("these caches do not fit", next="pack others", code=Exit.HOST_UNFIT, kind="caches")})
    said = gpuops("caches", "load", "box", *HOST)
    assert said.code == 5 and "these caches do not fit" in said.err


@pytest.mark.parametrize("changes", [{"files": 3}, {"files": [[]]}, {"files": [["t/k", 420, "x"]]}, {"key": None}])
def test_load_of_a_file_whose_index_is_of_another_form_asks_the_host_for_nothing(gpuops, agent, changes):
    Path("box.tar").write_bytes(packed(**changes)[1])
    fake = agent()
    said = gpuops("caches", "load", "box.tar", *HOST)
    assert (said.code, said.err.splitlines()[0]) == (1, "error: the file of caches box.tar is cut or altered")
    assert fake.calls == []


def test_load_of_a_cut_file_asks_the_host_for_nothing(gpuops, agent):
    Path("box").write_bytes(packed()[1][:1100])
    fake = sent(agent)
    said = gpuops("caches", "load", "box", *HOST)
    assert said.code == 1 and "is cut or altered" in said.err and fake.calls == []


def test_up_loads_the_caches_of_its_bundle_before_the_first_start(gpuops, agent):
    Path("caches").write_bytes(packed()[1])
    Path("box.yaml").write_text(
        "service: svc\nhost: gpu-box\nruntime: {path: /opt/venv}\nmodel: {path: /m}\nengine: {name: sglang, version: 0.5.23}\n"
    )
    said = gpuops("builds", "bundle", "box.tar", "-p", "box.yaml", "--python", "3.12", "--caches", "caches")
    assert said.code == 0, said.err
    unfit = [{"key": "c3", "build": "pack-1", "why": "is of NVIDIA H200, and this host has cpu"}]
    fake = agent(
        **{
            "bundle.have": {"present": True, "received": 0},
            "bundle.commit": {},
            "cache.load": {**LOADED, "there": [{"key": "d4", "build": "there-1", "why": "there"}], "unfit": unfit},
            "run": replay("promoted"),
        }
    )
    said = gpuops("up", "box.yaml", "--bundle", "box.tar")
    assert said.code == 0, said.err
    verbs = [verb for verb, _ in fake.calls]
    assert verbs.index("bundle.commit") < verbs.index("cache.load") < verbs.index("run")
    asked = dict(fake.calls)["cache.load"]
    assert (asked["id"], asked["strict"], asked["runtime"]["path"]) == (packed()[0], False, "/opt/venv")
    assert "cache a1b2 of stock came with the bundle: 2 files" in said.err and "beware" in said.err
    assert "cache c3 of pack-1 is not loaded: it is of NVIDIA H200" in said.err and "there-1" not in said.err
