"""Comparisons on the host: launches that take nobody's place, and the records of comparisons."""

from __future__ import annotations

import pytest
from measured_rollouts import PROBE, order, record
from rollouts import Lab

from gpuops.errors import GpuopsError


def tried(lab: Lab, *words: str) -> dict:
    return lab.play({**order(lab, *words), "trial": True})


def test_a_comparison_passes_every_gate_serves_and_is_not_promoted(lab: Lab) -> None:
    lab.play(order(lab))
    played = tried(lab, "--gap-ms", "3")
    assert (played.name, played.code, played.outcome["release"], played.outcome["known_good"]) == ("launched", 0, 2, 1)
    assert (lab.link("current"), lab.link("good")) == (2, 1)
    assert lab.state(2)["state"] == "good" and played.names("probe") == ["probe"]


def test_a_comparison_of_what_runs_already_is_a_launch_of_its_own(lab: Lab) -> None:
    first = lab.play(order(lab))
    played = tried(lab)
    assert (played.name, played.outcome["release"]) == ("launched", 1)
    assert played.outcome["pid"] != first.outcome["pid"]


def test_a_release_is_tried_again_by_its_number_through_every_probe(lab: Lab) -> None:
    lab.play({**order(lab), "probes": [PROBE, {**PROBE, "name": "again"}]})
    tried(lab, "--gap-ms", "3")
    played = lab.play({**lab.simple("relaunch", release=1), "trial": True})
    assert (played.name, played.outcome["release"], played.outcome["known_good"]) == ("launched", 1, 1)
    assert [each["name"] for each in played.all("probe")] == ["text", "again"], "the short gate would put one"


def test_a_comparison_that_fails_gives_way_to_the_known_good_release(lab: Lab) -> None:
    lab.play(order(lab))
    played = tried(lab, "--garbage")
    assert (played.name, played.code, played.outcome["release"], played.outcome["failed"]) == ("restored", 10, 1, 2)
    assert lab.state(2)["state"] == "bad"


def test_after_a_comparison_whose_controller_is_gone_a_restore_goes_back(lab: Lab) -> None:
    lab.play(order(lab))
    tried(lab, "--gap-ms", "3")
    played = lab.restore()
    assert (played.name, played.outcome["release"], lab.link("good")) == ("restored", 1, 1)


def test_a_comparison_is_rolled_out_for_good_by_the_next_up_of_it(lab: Lab) -> None:
    lab.play(order(lab))
    tried(lab, "--gap-ms", "3")
    lab.restore()
    played = lab.play(order(lab, "--gap-ms", "3"))
    assert (played.name, played.outcome["release"], lab.link("good")) == ("promoted", 2, 2)


def save(lab: Lab, *, take: bool = False, **changes: object) -> dict:
    return lab.agent.call("ab.save", service="demo", record=record(**changes), take=take)


def test_a_record_is_kept_with_the_stack_that_it_is_about_and_found_again(lab: Lab) -> None:
    lab.play(order(lab))
    save(lab, take=True)
    save(lab, take=True, id="ab-2", began=2.0)
    latest = lab.agent.call("ab.load", service="demo", id=None)
    assert latest["id"] == "ab-2" and latest["stack"]["engine"] == ["sglang", "0.5.23"] and latest["stack"]["card"]
    assert lab.agent.call("ab.load", service="demo", id="ab-1")["began"] == 1.0
    listed = lab.agent.call("ab.list", service="demo")["comparisons"]
    assert [(each["id"], each["done"]) for each in listed] == [("ab-1", 0), ("ab-2", 0)]


def test_a_comparison_that_another_process_took_over_is_not_written_any_more(lab: Lab) -> None:
    lab.play(order(lab))
    save(lab, take=True)
    save(lab, take=True, token="another")
    with pytest.raises(GpuopsError) as caught:
        save(lab)
    assert (caught.value.kind, int(caught.value.code)) == ("taken", 13)
    assert save(lab, token="another") == {"id": "ab-1"}


def test_an_unknown_comparison_is_said_with_the_known_ones(lab: Lab) -> None:
    lab.play(order(lab))
    with pytest.raises(GpuopsError) as caught:
        lab.agent.call("ab.load", service="demo", id="ab-9")
    assert caught.value.evidence == "none was ever begun"
    save(lab, take=True)
    with pytest.raises(GpuopsError) as caught:
        lab.agent.call("ab.load", service="demo", id="ab-9")
    assert caught.value.evidence == "comparisons: ab-1"


def test_an_id_that_is_a_path_is_refused(lab: Lab) -> None:
    with pytest.raises(GpuopsError):
        save(lab, take=True, id="../../x")
