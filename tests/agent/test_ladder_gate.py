"""The ladder as a gate, in whole rollouts: who passes is promoted with its rungs on record, and who does not gives way with the evidence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rollouts import Lab, Played

from gpuops.engines.measuring import load_words
from gpuops.playbook.measuring import Ladder

Json = dict[str, Any]

# The imitation of the engine knows the capital of France, and cannot add.
KNOWS, CANNOT = 2, 3


def ladder(level: int, **sections: Json) -> Json:
    told = Ladder.model_validate(sections).model_dump(mode="json", exclude_none=True)
    return {"level": level, "sections": told, "load": load_words()}


def candidate(lab: Lab, level: int, name: str = "1", **sections: Json) -> Played:
    return lab.play({**lab.order(env={"ANOTHER": name}), "ladder": ladder(level, **sections)})


def stored(lab: Lab, release: int) -> Json:
    found: Json = json.loads((lab.service.release(release) / "gates.json").read_text())
    return found


def test_a_candidate_that_is_right_is_promoted_with_its_rungs_on_record(lab: Lab) -> None:
    played = candidate(lab, KNOWS)
    assert played.name == "promoted"
    assert [(rung["name"], rung["verdict"]) for rung in stored(lab, 1)["ladder"]["rungs"]] == [
        ("identity", "right"),
        ("answers", "right"),
    ]
    assert stored(lab, 1)["probes"], "the probes' record is still there"
    assert played.names("rung", "state")[-4:] == ["rung", "rung", "state", "state"], "before it is verified and promoted"


@pytest.mark.failure_mode("right-until-looked-at")
def test_a_candidate_whose_required_rung_is_wrong_gives_way_with_question_and_answer(lab: Lab) -> None:
    assert candidate(lab, KNOWS).name == "promoted"
    played = candidate(lab, CANNOT, "2")
    assert (played.name, played.code, played.outcome["failed"], played.outcome["kind"]) == ("restored", 10, 2, "wrong_answers")
    assert "rung 3 of the ladder, arithmetic, is wrong" in played.outcome["reason"]
    assert "0 of 20 right; expected: at least 90%" in played.outcome["evidence"]
    assert lab.state(2)["state"] == "bad" and lab.link("good") == 1


def test_a_wanted_rung_is_only_told(lab: Lab) -> None:
    played = candidate(lab, CANNOT, arithmetic={"gate": "wanted"})
    assert played.name == "promoted"
    assert [rung["verdict"] for rung in played.all("rung")] == ["right", "right", "wrong"]


def test_a_good_release_that_has_passed_is_not_put_to_the_ladder_at_every_start(lab: Lab) -> None:
    assert candidate(lab, KNOWS).name == "promoted"
    assert lab.play(lab.order(env={"ANOTHER": "2"})).name == "promoted"
    again = candidate(lab, KNOWS)
    assert (again.name, again.outcome["release"], again.all("rung")) == ("promoted", 1, [])
    higher = lab.play({**lab.order(env={"ANOTHER": "2"}), "ladder": ladder(KNOWS)})
    assert (higher.outcome["release"], len(higher.all("rung"))) == (2, 2), "it never passed one"
