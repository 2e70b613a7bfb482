"""`up` on real processes: what is promoted, what is left alone, and what a release is."""

from __future__ import annotations

import json

from gpuops_agent import records
from process_lab import eventually, kill
from rollouts import AGAIN, CAPITAL, Lab


def test_the_first_up_is_promoted_and_every_record_says_so(lab: Lab) -> None:
    played = lab.up()
    assert (played.name, played.code) == ("promoted", 0), played.outcome
    assert played.outcome["release"] == played.outcome["known_good"] == 1
    assert played.states() == [(1, "starting"), (1, "ready"), (1, "verified"), (1, "good")]
    story = ["op", "staged", "server", "ready", "probe", "probe", "outcome"]
    assert played.names(*story) == story
    journal = [(entry["event"], entry.get("state") or entry.get("link")) for entry in lab.journal()]
    assert [entry for entry in journal if entry[0] in ("state", "link", "staged", "server", "ready", "outcome")] == [
        ("state", "staged"),
        ("staged", None),
        ("link", "current"),
        ("state", "starting"),
        ("server", None),
        ("ready", None),
        ("state", "ready"),
        ("state", "verified"),
        ("link", "good"),
        ("state", "good"),
        ("outcome", None),
    ]
    assert (lab.link("current"), lab.link("good")) == (1, 1)
    assert lab.state(1)["state"] == "good"
    gates = json.loads((lab.service.release(1) / "gates.json").read_text())
    assert gates["passed"] and [probe["name"] for probe in gates["probes"]] == ["capital", "again"]
    fingerprint = json.loads((lab.service.release(1) / "fingerprint.json").read_text())
    assert fingerprint["model"]["path"] == str(lab.model)
    assert fingerprint["host"]["boot_id"] and fingerprint["card"]


def test_the_phases_of_a_start_are_told_in_their_order(lab: Lab) -> None:
    phases = [event["phase"] for event in lab.good().all("phase")]
    once = list(dict.fromkeys(phases))
    order = ["launch", "weights", "capture", "warm-up", "listening", "generating", "probes"]
    # Where the port is seen before the log's word for the warm-up is read, that word comes too late to be told.
    assert [phase for phase in order if phase in once or phase != "warm-up"] == once
    assert phases == sorted(phases, key=order.index)


def test_a_release_document_is_all_that_a_later_start_needs(lab: Lab) -> None:
    lab.good()
    document = json.loads((lab.service.release(1) / "release.json").read_text())
    assert document["argv"][0] == str(lab.runtime / "bin" / "python")
    assert str(document["port"]) in document["argv"] and str(lab.model) in document["argv"]
    assert not [word for word in document["argv"] if "@{" in word]
    assert document["env"]["PATH"].startswith(f"{lab.runtime}/bin:")
    assert {"engine", "probes", "deadlines", "spec", "agent"} <= document.keys()


def test_the_same_again_is_unchanged_and_asks_one_probe(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    played = lab.up()
    assert (played.name, played.code, played.outcome["release"]) == ("unchanged", 0, 1)
    assert played.names("probe", "server", "staged", "stopping") == ["probe"]
    assert played.outcome["pid"] == pid
    assert [probe["name"] for probe in json.loads((lab.service.release(1) / "gates.json").read_text())["probes"]] == [
        "capital",
        "again",
    ]


def test_without_required_probes_unchanged_still_means_a_generation(lab: Lab) -> None:
    lab.good(probes=[AGAIN])
    before = lab.logs()[0].count("POST /generate")
    assert lab.up(probes=[AGAIN]).name == "unchanged"
    assert lab.logs()[0].count("POST /generate") == before + 1


def test_a_probe_that_is_new_in_the_playbook_is_asked_of_the_release_that_runs(lab: Lab) -> None:
    lab.good()
    played = lab.up(probes=[{**CAPITAL, "name": "new"}])
    assert played.name == "unchanged"
    assert [probe["name"] for probe in played.all("probe")] == ["new"]


def test_content_equal_to_a_good_stopped_release_is_started_again_under_its_number(lab: Lab) -> None:
    lab.good()
    lab.good("--flavour", "b")
    played = lab.good()
    assert played.outcome["release"] == 1
    assert "staged" not in played.names("staged")
    assert (lab.link("current"), lab.link("good")) == (1, 1)
    # Its first log is kept beside the new one.
    assert (lab.service.release(1) / "server.log.1").exists()


def test_a_new_release_takes_the_place_and_the_port_of_the_old_one(lab: Lab) -> None:
    first = lab.good().outcome
    second = lab.good("--flavour", "b").outcome
    assert (second["release"], second["port"]) == (2, first["port"])
    assert second["pid"] != first["pid"]
    assert lab.engines() == [second["pid"]]


def test_the_old_server_is_proved_gone_before_the_new_one_starts(lab: Lab) -> None:
    lab.good()
    played = lab.good("--flavour", "b")
    assert played.names("stopping", "stopped", "server") == ["stopping", "stopped", "server"]
    proof = played.all("stopped")[0]["proof"]
    assert proof["clean"] and not proof["survivors"] and not proof["port_held"]


def test_a_server_that_ignores_term_is_killed_and_replaced(lab: Lab) -> None:
    lab.good("--stubborn")
    played = lab.up(stop_s=0.2)
    assert played.name == "promoted"
    signals = [sent["signal"] for sent in played.all("stopped")[0]["proof"]["signals"]]
    assert signals == ["SIGUSR1", "SIGTERM", "SIGKILL"]


def test_down_stops_with_proof_and_down_again_says_that_nothing_ran(lab: Lab) -> None:
    lab.good()
    played = lab.down()
    assert (played.name, played.code, played.outcome["serving"]) == ("stopped", 0, False)
    assert played.outcome["proof"]["clean"]
    assert lab.engines() == [] and lab.link("current") is None and lab.link("good") == 1
    again = lab.down()
    assert (again.name, again.code) == ("not_running", 0)


def test_up_after_down_starts_the_good_release_again(lab: Lab) -> None:
    lab.good()
    lab.down()
    played = lab.up()
    assert (played.name, played.outcome["release"]) == ("promoted", 1)


def test_restart_gives_the_same_release_a_new_process(lab: Lab) -> None:
    first = lab.good().outcome
    played = lab.restart()
    assert (played.name, played.outcome["release"], played.outcome["port"]) == ("promoted", 1, first["port"])
    assert played.outcome["pid"] != first["pid"]


def test_restart_without_any_release_is_refused_in_words(lab: Lab) -> None:
    played = lab.restart()
    assert (played.name, played.code) == ("failed", 1)
    assert played.outcome["reason"] == "there is no release to restart"


def test_a_server_that_died_by_itself_is_found_and_started_again(lab: Lab) -> None:
    first = lab.good().outcome
    record = records.server_alive(lab.service)
    assert record is not None
    kill(record.pid)
    eventually(lambda: lab.status()["state"] == "died")
    played = lab.up()
    assert (played.name, played.outcome["release"], played.outcome["port"]) == ("promoted", 1, first["port"])


def test_a_busy_server_is_waited_for(lab: Lab) -> None:
    assert lab.up("--busy", "3").name == "promoted"
