"""From a trial file to the steps that are played."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from trial_samples import PLAYBOOK, trial_of

from gpuops.errors import GpuopsError, PlaybookError
from gpuops.trials import load, reference, steps
from gpuops.trials.steps import Prepared

TRIALS = Path(__file__).parents[3] / "playbooks" / "trials"


def prepared(trial, builds: Path, *, dry: bool = False) -> list[Prepared]:
    base = steps.base_playbook(trial, None, (), None)
    return [steps.prepared(trial, each, base, (), None, builds, dry=dry) for each in steps.variants(trial)]


def test_a_step_changes_the_base_by_its_environment_flags_and_keys(tmp_path):
    text = 'steps: [{name: a, env: {B: "2", A: null}, flags: {tp: 2, x: [1, 2]}, set: {deadlines.start_s: 7}}]\n'
    made = prepared(trial_of(tmp_path, text), tmp_path)[0].playbook.model
    assert made.server.env == {"B": "2"}
    assert made.server.flags == {"tp": 2, "x": (1, 2)}
    assert made.deadlines.start_s == 7


def test_a_base_in_the_home_of_nobody_is_said_with_its_line(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text("question: q\nhypothesis: h\nbase: ~no-such-user/b.yaml\nsteps: [{name: a}]\n")
    with pytest.raises(PlaybookError) as wrong:
        load.load(path)
    assert wrong.value.evidence == f"{path}:3: base: '~no-such-user/b.yaml' is no path: Could not determine home directory."


def test_a_step_on_others_has_their_changes_and_its_own_last(tmp_path):
    first = "{name: a, flags: {x: 1, y: 1}}, {name: b, flags: {z: 1}}"
    text = f"steps: [{first}, {{name: c, on: [a, b], flags: {{y: 2}}}}, {{name: d, on: c, flags: {{w: 1}}}}]\n"
    made = {each.variant.name: each.playbook.model.server.flags for each in prepared(trial_of(tmp_path, text), tmp_path)}
    assert made["c"] == {"tp": 1, "x": 1, "y": 2, "z": 1}
    assert made["d"] == {"tp": 1, "x": 1, "y": 2, "z": 1, "w": 1}


def test_a_matrix_has_every_combination_once_the_base_first(tmp_path):
    text = "mode: matrix\nsteps: [{name: a, flags: {x: 1}}, {name: b, flags: {y: 1}}]\n"
    names = [each.name for each in steps.variants(trial_of(tmp_path, text))]
    assert names == ["base", "a", "b", "a+b"]


def test_a_bisect_adds_one_change_after_the_other(tmp_path):
    text = "mode: bisect\nsteps: [{name: a, flags: {x: 1}}, {name: b, flags: {y: 1}}]\n"
    assert [each.name for each in steps.variants(trial_of(tmp_path, text))] == ["base", "a", "a+b"]


def test_steps_that_change_something_have_caches_of_their_own_unless_they_are_shared(tmp_path):
    text = "steps: [{name: a}, {name: b, flags: {x: 1}}, {name: c, flags: {x: 2}}]\n"
    trial = trial_of(tmp_path, text)
    apart = [each["order"]["cache_apart"] for each in steps.steps_of(trial, prepared(trial, tmp_path))]
    assert apart[0] == "" and len(set(apart)) == 3
    shared = trial_of(tmp_path, f"caches: shared\n{text}")
    assert {each["order"]["cache_apart"] for each in steps.steps_of(shared, prepared(shared, tmp_path))} == {""}


def test_a_step_is_measured_where_the_trial_or_the_step_says_so(tmp_path):
    trial = trial_of(tmp_path, "bench: [c1]\nsteps: [{name: a}, {name: b, flags: {x: 1}, bench: false}]\n")
    benched = [each["bench"] for each in steps.steps_of(trial, prepared(trial, tmp_path))]
    assert [cell["name"] for cell in benched[0]["cells"]] == ["c1"] and benched[1] is None
    wrong = trial_of(tmp_path, "bench: [c9]\nsteps: [{name: a}]\n")
    with pytest.raises(GpuopsError, match="'c9'"):
        steps.steps_of(wrong, prepared(wrong, tmp_path))


def test_open_loops_of_the_base_are_not_measured_in_a_trial(tmp_path):
    trial = trial_of(tmp_path, "bench: true\nsteps: [{name: a}]\n")
    (step,) = steps.steps_of(trial, prepared(trial, tmp_path))
    assert [cell["name"] for cell in step["bench"]["cells"]] == ["c1"]
    wrong = trial_of(tmp_path, "bench: [users]\nsteps: [{name: a}]\n")
    with pytest.raises(GpuopsError, match="'users', which its base does not have as a closed loop"):
        steps.steps_of(wrong, prepared(wrong, tmp_path))


def test_a_change_that_the_playbook_cannot_have_names_its_step(tmp_path):
    trial = trial_of(tmp_path, "steps: [{name: a, set: {no.such.key: 1}}]\n")
    with pytest.raises(GpuopsError, match="step a: "):
        prepared(trial, tmp_path)


def test_a_build_takes_the_place_of_the_bases_and_false_takes_it_away(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "site").mkdir(parents=True)
        (tmp_path / name / "site" / "m.py").write_text(name)
    playbook = f"{PLAYBOOK}build: {{tree: {tmp_path}/one/site}}\n"
    trial = trial_of(tmp_path, "steps: [{name: a}, {name: b, build: false}]\n", playbook)
    with_build, without = prepared(trial, tmp_path)
    assert with_build.tree is not None and without.tree is None
    assert without.playbook.model.build is None


def test_patches_become_a_build(tmp_path):
    folder = tmp_path / "patches" / "sglang-0.5.23"
    folder.mkdir(parents=True)
    (folder / "one.patch").write_text("--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n")
    trial = trial_of(tmp_path, "steps: [{name: a, patch: patches}]\n")
    assert prepared(trial, tmp_path / "builds", dry=True)[0].missing == "patches of patches"
    assert not (tmp_path / "builds").exists()
    made = prepared(trial, tmp_path / "builds")[0]
    assert made.tree is not None and made.tree.id.startswith("t-patches-")


def test_the_key_changes_with_what_a_step_runs_and_not_with_its_words(tmp_path):
    def key(text: str) -> str:
        trial = trial_of(tmp_path, text)
        return steps.key(trial, steps.steps_of(trial, prepared(trial, tmp_path)))

    one = key("steps: [{name: a, flags: {x: 1}}]\n")
    assert one == key("steps: [{name: a, flags: {x: 1}, why: another}]\n")
    assert one != key("steps: [{name: a, flags: {x: 2}}]\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("steps: []\n", "expected a list of at least one"),
        ("steps: [{name: a}, {name: a}]\n", "two steps are called 'a'"),
        ("steps: [{name: a, on: b}, {name: b}]\n", "which is no step before it"),
        ("steps: [{name: a, flags: {x: [true]}}]\n", "flags.x: expected a list of texts and numbers"),
        ("steps: [{name: a, env: {X: true}}]\n", "write it in quotes"),
        ("steps: [{name: a, build: b, patch: p}]\n", "are both builds"),
        ("mode: bisect\nsteps: [{name: a}]\n", "each step is one, without `on`"),
        ("mode: matrix\nsteps: [" + ",".join(f"{{name: a{n}, flags: {{x: {n}}}}}" for n in range(6)) + "]\n", "has 64 steps"),
        ("steps: [{name: a}]\nverdict: {step: b, against: a}\n", "'b', which is no step"),
        ("steps: [{name: a, patch: nowhere}]\n", "there is no folder"),
        ("stepz: 1\nsteps: [{name: a}]\n", "stepz: there is no such key; did you mean 'steps'?"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, problem):
    with pytest.raises(GpuopsError, match="is not a valid trial") as raised:
        trial_of(tmp_path, text)
    assert problem in raised.value.evidence
    assert re.match(r".*t\.yaml:\d+: ", raised.value.evidence)


@pytest.mark.parametrize("path", sorted(TRIALS.glob("*.yaml")), ids=lambda path: path.name)
def test_a_shipped_trial_is_valid_and_plans_without_a_card(path, tmp_path, monkeypatch):
    from gpuops.trials.load import load

    for name in ("GPU_HOST", "SGLANG_VENV", "MODEL_DIR"):
        monkeypatch.setenv(name, "x")
    trial = load(path)
    made = prepared(trial, tmp_path, dry=True)
    told = steps.steps_of(trial, made)
    assert len({each["order"]["spec"] for each in told}) >= len(told) - sum(bool(each.missing) for each in made)
    assert all(step.why for step in trial.model.steps)
    assert trial.model.verdict is not None


def test_the_page_about_trials_is_the_generated_one():
    docs = Path(__file__).parents[3] / "docs" / "trials.md"
    assert docs.read_text(encoding="utf-8") == reference.page(), "run: python -m gpuops.trials.reference > docs/trials.md"
