"""Another build under a running service: what is tried before the old server stops, what its ranks must prove, and what its cache knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rollouts import Lab
from swapping import COMPILER, FAILING, build, order

ACTIVE = ("--prove", "{}")


def with_modules(wanted: dict[str, Any]) -> dict[str, Any]:
    """The order, with a part of the cache that ninja builds in."""
    engine = wanted["engine"]
    return {**wanted, "engine": {**engine, "caches": [*engine["caches"], {"folder": "modules", "packages": [], "ninja": True}]}}


def refused(lab: Lab, wanted: dict[str, object], kind: str) -> dict[str, object]:
    """Play an order that has to be refused while the old server serves on; returns the outcome."""
    pid = lab.status()["server"]["pid"]
    played = lab.play(wanted)
    assert (played.name, played.code, played.outcome["kind"]) == ("failed", 5, kind), played.outcome
    assert "the running server was not touched" in played.outcome["next"]
    assert "stopping" not in played.names("stopping")
    assert lab.status()["server"]["pid"] == pid
    return played.outcome


def test_everything_that_needs_no_card_is_done_before_the_old_server_is_asked_to_stop(lab: Lab) -> None:
    lab.good()
    played = lab.play(order(lab, build(lab, "pack", proof=True, compiler=COMPILER), *ACTIVE))
    assert played.name == "promoted", played.outcome
    story = [entry["event"] for entry in lab.journal() if entry.get("op") == played.outcome["op"]]
    before = story[: story.index("stopping")]
    assert before == ["op", "checked", "imported", "compiled", "warmed", "staged"]
    after = played.events[[event["event"] for event in played.events].index("stopping") :]
    assert {event["phase"] for event in after if event["event"] == "phase"} <= {
        *("stop", "launch", "weights", "capture", "warm-up", "listening", "generating", "probes")
    }
    assert {"import", "compile", "warm", "stop", "launch"} <= played.outcome["phases"].keys()


def test_the_outage_is_told_from_the_stop_to_the_first_answer(lab: Lab) -> None:
    assert "outage_s" not in lab.good().outcome
    outcome = lab.good("--flavour", "b").outcome
    assert 0 < outcome["outage_s"] <= outcome["seconds"]


@pytest.mark.failure_mode("build-broken")
def test_a_build_whose_import_fails_is_refused_with_the_imports_own_words(lab: Lab) -> None:
    lab.good()
    outcome = refused(lab, order(lab, build(lab, "broken", broken=True)), "imports")
    assert "import broken: ModuleNotFoundError: No module named 'no_such_module'" in str(outcome["evidence"])


@pytest.mark.failure_mode("build-broken")
def test_a_kernel_that_does_not_compile_is_refused_by_name(lab: Lab) -> None:
    lab.good()
    outcome = refused(lab, order(lab, build(lab, "pack", compiler=FAILING)), "compile")
    assert "kernel indexer: too many registers" in str(outcome["evidence"])


@pytest.mark.failure_mode("build-broken")
def test_a_compiler_that_does_not_say_what_it_did_is_not_believed(lab: Lab) -> None:
    lab.good()
    outcome = refused(lab, order(lab, build(lab, "pack", compiler="print('done')\n")), "compile")
    assert "does not say what it compiled" in str(outcome["reason"])


def test_kernels_that_were_compiled_ahead_are_no_misses_of_the_start(lab: Lab) -> None:
    lab.good()
    played = lab.play(order(lab, build(lab, "pack", compiler=COMPILER), "--compile", "3"))
    [compiled], [cache] = played.all("compiled"), played.all("cache")
    assert (compiled["capability"], compiled["compiled"], compiled["cached"]) == ("cpu", 3, 0)
    assert (cache["before"]["entries"], cache["after"]["entries"], cache["misses"]) == (3, 3, 0)


def test_a_second_start_on_the_same_card_misses_nothing(lab: Lab) -> None:
    chosen = build(lab, "pack")
    first = lab.play(order(lab, chosen, "--compile", "4"))
    assert [each["misses"] for each in first.all("cache")] == [4]
    again = lab.restart()
    assert [each["misses"] for each in again.all("cache")] == [0]
    assert [entry["misses"] for entry in lab.journal() if entry["event"] == "cache"] == [4, 0]


def test_a_cache_that_is_kept_apart_begins_with_what_its_build_has_compiled_before(lab: Lab) -> None:
    kernels = build(lab, "kernels", compiler=COMPILER)
    assert lab.play(order(lab, kernels)).name == "promoted"
    assert lab.play(order(lab, None)).name == "promoted"
    played = lab.play({**order(lab, kernels, "--flavour", "b"), "cache_apart": "a-step"})
    [seeded], [compiled] = played.all("seeded"), played.all("compiled")
    assert (seeded["build"], compiled["compiled"], compiled["cached"]) == (kernels, 0, 3)


def test_a_new_builds_cache_is_seeded_from_the_known_good_releases_and_is_a_copy(lab: Lab) -> None:
    lab.play(order(lab, build(lab, "old"), "--compile", "4"))
    played = lab.play(order(lab, build(lab, "new"), "--compile", "4"))
    assert played.name == "promoted", played.outcome
    [seeded], [cache] = played.all("seeded"), played.all("cache")
    assert (seeded["parts"], seeded["files"], cache["misses"]) == (["triton"], 4, 0)
    old, new = (json.loads((lab.service.release(number) / "release.json").read_text())["cache"] for number in (1, 2))
    assert old != new and new == cache["cache"]
    file = "triton/kernel0/binary"
    assert (lab.root.caches / old / file).stat().st_ino != (lab.root.caches / new / file).stat().st_ino
    assert lab.service.cache_link.resolve() == lab.root.caches / new


def test_a_copied_module_of_ninjas_is_built_for_its_new_folder_before_the_old_server_stops(lab: Lab) -> None:
    wanted = order(lab, build(lab, "old"))
    played = lab.play(with_modules(wanted))
    [cache] = played.all("cache")
    module = lab.root.caches / cache["cache"] / "modules" / "m"
    module.mkdir(parents=True)
    (module / "source").write_text("code")
    (module / "build.ninja").write_text(f"rule copy\n  command = cp $in $out\nbuild m.so: copy {module.resolve()}/source\n")
    (module / "m.so").write_text("code")
    played = lab.play(with_modules(order(lab, build(lab, "new"))))
    assert played.name == "promoted", played.outcome
    told = [event.get("text", event["event"]) for event in played.events]
    [built] = [number for number, text in enumerate(told) if text.startswith("1 compiled module of the cache built")]
    assert built < told.index("stopping")
    assert [event["misses"] for event in played.all("cache")] == [0]


def test_a_known_good_build_finds_its_cache_warm_when_it_comes_back(lab: Lab) -> None:
    good = lab.play(order(lab, build(lab, "old"), "--compile", "4")).outcome["release"]
    played = lab.play(order(lab, build(lab, "wrong"), "--compile", "4", "--garbage"))
    assert (played.name, played.outcome["release"]) == ("restored", good)
    [cache] = played.all("cache")
    assert (cache["release"], cache["misses"]) == (good, 0)
    assert lab.service.cache_link.resolve().name == cache["cache"].rpartition("/")[2]


def test_status_shows_the_cache_and_whether_it_is_warm(lab: Lab) -> None:
    chosen = build(lab, "pack")
    lab.play(order(lab, chosen, "--compile", "4"))
    cache = lab.status()["cache"]
    assert (cache["build"], cache["card"], cache["entries"], cache["misses"]) == (chosen, "cpu", 4, 4)
    lab.restart()
    assert lab.status()["cache"]["misses"] == 0


@pytest.mark.failure_mode("poisoned-cache")
def test_a_damaged_cache_is_put_aside_and_the_start_is_tried_once_more(lab: Lab) -> None:
    chosen = build(lab, "pack")
    wanted = order(lab, chosen, "--compile", "4", "--suspect")
    cache = lab.play(wanted).all("cache")[0]["cache"]
    (lab.root.caches / cache / "triton" / "damaged").write_text("cut")
    played = lab.restart()
    assert played.name == "promoted", played.outcome
    [reset] = played.all("cache_reset")
    assert "Ran out of input" in reset["because"] and (lab.root.caches / reset["kept"] / "triton" / "damaged").exists()
    told = lab.status()["cache"]
    assert (told["path"], told["entries"]) == (cache, 4) and told["reset"]["kept"] == reset["kept"]


def test_a_pack_that_proves_itself_is_promoted_and_the_proof_is_everywhere(lab: Lab) -> None:
    lab.good()
    chosen = build(lab, "pack", proof=True)
    played = lab.play(order(lab, chosen, *ACTIVE))
    assert played.name == "promoted", played.outcome
    text = "1 of 1 ranks, swiglu active"
    assert played.outcome["proof"] == {"build": chosen, "state": "active", "text": text}
    assert played.names("ready", "proof", "probe") == ["ready", "proof", "probe", "probe"]
    gates = json.loads((lab.service.release(2) / "gates.json").read_text())
    assert (gates["passed"], gates["proof"]["text"]) == (True, text)
    assert lab.status()["proof"]["text"] == text
    assert (lab.service.release(2) / "proofs" / "tp0.json").exists()


@pytest.mark.failure_mode("kernels-unproved")
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"stage": "started"}, "its proof is from before the model was loaded"),
        ({"build": "another-000000000000"}, "it runs the build another-000000000000, not pack-"),
        ({"content": "0ther"}, "it runs content 0ther, the build has c0ffee"),
        ({"pid": 1}, "pid 1 is no living process of this server"),
        ({"schema": 2}, "schema 2, expected 1"),
        ({"families": {"indexer": {"state": "failed", "reason": "bound-twice"}}}, "indexer failed: bound-twice"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_pack_that_does_not_prove_itself_gives_way_before_any_probe(lab: Lab, fields: dict[str, object], why: str) -> None:
    lab.good()
    played = lab.play(order(lab, build(lab, "pack", proof=True), "--prove", json.dumps(fields)))
    assert (played.name, played.code, played.outcome["kind"]) == ("restored", 10, "proof"), played.outcome
    assert why in played.outcome["reason"] or why in played.outcome["evidence"]
    assert played.outcome["release"] == 1 and lab.state(2)["state"] == "bad"
    assert [event["name"] for event in played.all("probe")] == ["capital"]
    assert not json.loads((lab.service.release(2) / "gates.json").read_text())["passed"]


@pytest.mark.failure_mode("kernels-unproved")
def test_a_pack_without_any_proof_gives_way(lab: Lab) -> None:
    lab.good()
    played = lab.play(order(lab, build(lab, "pack", proof=True)))
    assert played.outcome["reason"].endswith("0 of 1 ranks: 0 proofs for 1 ranks"), played.outcome


@pytest.mark.failure_mode("kernels-unproved")
def test_a_pack_that_refuses_to_serve_is_named_by_its_own_line(lab: Lab) -> None:
    lab.good()
    line = "rank-tp0:-swiglu-is-missing"
    played = lab.play(order(lab, build(lab, "pack", proof=True), "--refuse", line))
    assert (played.name, played.outcome["class"]) == ("restored", "kernel_pack_refused"), played.outcome
    assert f"refusing to serve: {line}" in played.outcome["evidence"]


def test_a_pack_with_nothing_for_a_host_without_a_card_passes_unless_the_playbook_requires_it(lab: Lab) -> None:
    nothing = json.dumps({"families": {"indexer": {"state": "not applicable", "reason": "no-card"}}})
    chosen = build(lab, "pack", proof=True)
    played = lab.play(order(lab, chosen, "--prove", nothing))
    assert (played.name, played.outcome["proof"]["state"]) == ("promoted", "not applicable")
    failed = lab.play(order(lab, chosen, "--prove", nothing, "--flavour", "b", required=True))
    assert (failed.name, failed.outcome["kind"]) == ("restored", "proof")


def test_a_build_that_cannot_prove_itself_is_refused_where_the_playbook_requires_it(lab: Lab) -> None:
    lab.good()
    refused(lab, order(lab, build(lab, "pack"), required=True), "proof")


def test_a_known_good_release_whose_proof_is_missing_comes_back_all_the_same(lab: Lab) -> None:
    lab.play(order(lab, build(lab, "pack", proof=True), *ACTIVE, "--tell", "hello"))
    lab.faults.write_text('--prove {"stage":"started"}')
    played = lab.restore()
    assert (played.name, played.code) == ("restored", 0), played.outcome
    assert any("without the proof of its kernels" in note["text"] for note in played.all("note"))
    assert not lab.status()["proof"]["passed"]


def test_a_pack_that_the_playbook_switches_off_has_nothing_to_prove(lab: Lab) -> None:
    played = lab.play(order(lab, build(lab, "pack", proof=True), env={"GPUOPS_KERNELS": "off"}))
    assert played.name == "promoted" and played.all("proof") == []


def test_the_environment_names_the_build_and_is_strict_unless_the_playbook_says_otherwise(lab: Lab) -> None:
    chosen = build(lab, "pack", proof=True)
    for said, mode in (({}, b"strict"), ({"GPUOPS_KERNELS": "auto"}, b"auto")):
        pid = lab.play(order(lab, chosen, *ACTIVE, env=said)).outcome["pid"]
        seen = (lab.folder / "/proc" / str(pid) / "environ").read_bytes().split(b"\0")
        assert b"GPUOPS_BUILD=" + chosen.encode() in seen and b"GPUOPS_KERNELS=" + mode in seen


def test_weights_are_not_read_ahead_where_the_playbook_forbids_it(lab: Lab) -> None:
    lab.good()
    wanted = lab.order("--flavour", "b")
    wanted["prepare"]["model"]["warm"] = False
    played = lab.play(wanted)
    assert played.all("warmed") == []
    assert any("model.warm: false" in note["text"] for note in played.all("note"))


def test_weights_are_read_ahead_while_the_old_server_serves(lab: Lab) -> None:
    lab.good()
    [warmed] = lab.good("--flavour", "b").all("warmed")
    assert warmed["bytes"] == warmed["total"] == (lab.model / "model.safetensors").stat().st_size


def test_an_unknown_build_is_refused(lab: Lab) -> None:
    lab.good()
    pid = lab.status()["server"]["pid"]
    played = lab.play(order(lab, "pack-000000000000"))
    assert (played.outcome["kind"], played.code) == ("build", 5)
    assert lab.status()["server"]["pid"] == pid
