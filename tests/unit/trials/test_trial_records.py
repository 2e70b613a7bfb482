"""What a trial keeps while it is played, and what stays of it."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from trial_samples import PLAYBOOK, Json, block, result, trial_of

from gpuops.errors import GpuopsError, OutcomeUnknown
from gpuops.playbook import load as load_playbook
from gpuops.trials import export, load, markdown, record, redact, replay, state, steps
from gpuops.trials.play import Player
from gpuops.trials.schema import Judged
from gpuops.trials.state import State
from gpuops.trials.verdict import judge, unexpected

JUDGED = Judged(step="b", against="a", margin=0.05)
TWO = "steps: [{name: a, expect: passes}, {name: b, flags: {x: 1}, expect: passes, why: to see}]\n"


def host(*outcomes: Json | Exception):
    """A host that tells these outcomes; what it was asked for is kept in ``orders``."""
    orders: list[Json] = []
    rest = list(outcomes)

    def play(order: Json, hear) -> Json:
        orders.append(order)
        outcome = rest.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        for each in outcome["steps"]:
            hear({"event": "tried", "t": 1.0, "op": order["op"], **each})
        return {"op": order["op"], "code": 0, "seconds": 1.0, **outcome}

    return play, orders


def player(folder, known: State | None = None, wanted=("a", "b")) -> Player:
    count = iter(range(100))
    begun = known or State("t", "k", "svc", 1.0)
    return Player(
        begun, folder, lambda done: {"op": f"op{next(count)}", "done": dict(done)}, lambda told: set(wanted) <= set(told)
    )


def test_what_was_found_is_kept_after_every_step(tmp_path):
    def play(order, hear):
        hear({"event": "tried", "t": 1.0, "op": "x", **result("a")})
        assert state.load(tmp_path, "t").verdicts == {"a": "passed"}
        raise OutcomeUnknown("the link is lost")

    with pytest.raises(OutcomeUnknown):
        player(tmp_path).play("box", play)
    kept = state.load(tmp_path, "t")
    assert (kept.op, kept.hosts, kept.verdicts) == ("op0", ("box",), {"a": "passed"})


def test_an_operation_that_may_still_run_is_asked_for_by_its_id_and_then_the_rest_is_played(tmp_path):
    known = State("t", "k", "svc", 1.0, op="earlier")
    play, orders = host({"outcome": "trial_cut", "steps": [result("a")]}, {"outcome": "tried", "steps": [result("b")]})
    trial = player(tmp_path, known)
    assert trial.play("box", play)["outcome"] == "tried" and trial.complete
    assert [order["op"] for order in orders] == ["earlier", "op1"]
    assert orders[1]["done"] == {"a": "passed"}
    assert state.load(tmp_path, "t").op is None


def test_a_trial_that_is_cut_again_is_left_for_the_next_time(tmp_path):
    play, orders = host({"outcome": "trial_cut", "steps": [result("a")]})
    trial = player(tmp_path)
    assert trial.play("box", play)["outcome"] == "trial_cut"
    assert len(orders) == 1 and not trial.complete


def test_a_runner_that_died_is_not_asked_for_again(tmp_path):
    play, _ = host(OutcomeUnknown("its runner died", kind="runner_died"))
    with pytest.raises(OutcomeUnknown):
        player(tmp_path).play("box", play)
    assert state.load(tmp_path, "t").op is None


def test_a_step_that_is_heard_twice_counts_once(tmp_path):
    known = State("t", "k", "svc", 1.0).with_result(result("a"))
    assert known.with_result(result("a", "failed")) is known


def test_an_unfinished_trial_is_neither_forgotten_nor_taken_up_unasked(tmp_path):
    state.save(tmp_path, State("t", "k", "svc", 1.0).with_result(result("a")))
    with pytest.raises(GpuopsError, match="is unfinished: 1 steps"):
        state.begun(tmp_path, "t", "k", "svc", 2.0, resume=False, fresh=False)
    with pytest.raises(GpuopsError, match="is another one by now"):
        state.begun(tmp_path, "t", "other", "svc", 2.0, resume=True, fresh=False)
    assert state.begun(tmp_path, "t", "k", "svc", 2.0, resume=True, fresh=False).verdicts == {"a": "passed"}
    assert state.begun(tmp_path, "t", "k", "svc", 2.0, resume=False, fresh=True).results == ()


def test_a_step_that_no_host_could_prepare_yet_is_tried_again(tmp_path):
    state.save(tmp_path, State("t", "k", "svc", 1.0).with_result(result("a", "unfit")).with_result(result("b", "failed")))
    assert state.begun(tmp_path, "t", "k", "svc", 2.0, resume=True, fresh=False).verdicts == {"b": "failed"}


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        (result("a", blocks=[block("c1", 100)]), result("b", blocks=[block("c1", 110)]), "adopt"),
        (result("a", blocks=[block("c1", 100)]), result("b", blocks=[block("c1", 90)]), "reject"),
        (result("a", blocks=[block("c1", 100)]), result("b", blocks=[block("c1", 103)]), "inconclusive"),
        (
            result("a", blocks=[block("c1", 100), block("c2", 100)]),
            result("b", blocks=[block("c1", 120), block("c2", 94)]),
            "reject",
        ),
        (result("a"), result("b", "failed"), "reject"),
        (result("a", "failed"), result("b"), "inconclusive"),
        (result("a"), result("b"), "inconclusive"),
        (result("a", blocks=[block("c1", 100, valid=False)]), result("b", blocks=[block("c1", 110)]), "inconclusive"),
    ],
)
def test_the_verdict_rests_on_the_declared_margin(a, b, word):
    assert judge([a, b], JUDGED).word == word


def test_what_came_out_otherwise_than_expected_is_named():
    assert unexpected([result("a", "failed"), result("b")], {"a": "passes", "b": "passes"}) == [
        "a was expected to pass, and has failed"
    ]


SECRETS = PLAYBOOK.replace(
    '{tp: 1}, env: {A: "1"}', "{tp: 1, api-key: sk-inline-1}, env: {HF_TOKEN: hf_inline_2, KEYED: '${NAMED}'}"
)
SECRETS += "secrets: [NAMED]\n"


def recorded(tmp_path, monkeypatch, *results: Json):
    monkeypatch.setenv("NAMED", "by-name-3")
    trial = trial_of(tmp_path, f"{TWO}verdict: {{step: b, against: a}}\n", SECRETS)
    base = steps.base_playbook(trial, None, (), None)
    made = [steps.prepared(trial, each, base, (), None, tmp_path, dry=False) for each in steps.variants(trial)]
    known = [*base.secret_values.values(), *redact.secrets_in(base.model.model_dump(mode="json"))]
    redactor = redact.Redactor(known)
    told = State("t", "k", "svc", 1.0, hosts=("box",), results=tuple(results))
    built = record.build(trial, made, told, redactor, "me@here", 100.0)
    folder = tmp_path / "records"
    files = {
        record.PAGE: markdown.page(built),
        record.PLAYBOOK: redactor.known_in(replay.playbook_text(trial, None, (), None, folder / built["id"])),
        record.TRIAL: replay.trial_text(trial, redactor),
    }
    record.save(folder, built, files)
    return record.find(folder, None)


def test_a_record_says_what_was_tried_on_what_and_what_it_means(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a", blocks=[block("c1", 100)]), result("b", blocks=[block("c1", 120)]))
    told = found.record
    assert told["verdict"]["verdict"] == "adopt"
    assert [(step["name"], step["changes"], step["figures"][0]["tok_s"]) for step in told["steps"]] == [
        ("a", [], 100),
        ("b", ["server.flags.x = 1"], 120),
    ]
    assert told["fingerprints"][0]["card"] == "H200" and told["steps"][1]["fingerprint"] == 0
    page = (found.path / "record.md").read_text()
    assert "**Verdict: adopt.**" in page and "| b | `server.flags.x = 1` | passed |  | 5 s | 120.0 |" in page


def test_no_file_of_a_record_holds_a_secret(tmp_path, monkeypatch):
    evidence = "server_args=ServerArgs(api_key='sk-inline-1', admin_api_key='sk-other-4', tp=1) HF_TOKEN=hf_inline_2 by-name-3"
    found = recorded(tmp_path, monkeypatch, result("a", evidence=evidence), result("b", "failed", evidence=evidence))
    for path in found.path.iterdir():
        text = path.read_text()
        for secret in ("sk-inline-1", "hf_inline_2", "by-name-3", "sk-other-4"):
            assert secret not in text, path
    assert "[redacted]" in (found.path / "record.json").read_text()


def test_a_records_playbook_can_be_loaded_as_it_is_once_its_secrets_are_set(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    with pytest.raises(GpuopsError, match="not a valid playbook"):
        load_playbook(found.path / "playbook.yaml")
    monkeypatch.setenv("API_KEY", "again")
    monkeypatch.setenv("HF_TOKEN", "again")
    model = load_playbook(found.path / "playbook.yaml").model
    assert model.server.flags == {"tp": 1, "api-key": "@{secret:API_KEY}"}
    assert load.load(found.path / "trial.yaml").model.base == "playbook.yaml"


def test_a_trial_whose_step_holds_a_secret_can_be_played_again_once_it_is_set(tmp_path, monkeypatch):
    held = "steps: [{name: a, flags: {admin-api-key: sk-step-5}}, {name: b, set: {server.env.HF_TOKEN: hf_step_6}}]\n"
    trial = trial_of(tmp_path, held)
    again = tmp_path / "again"
    again.mkdir()
    (again / "playbook.yaml").write_text(replay.playbook_text(trial, None, (), None, again))
    (again / "t.yaml").write_text(replay.trial_text(trial, redact.Redactor(("sk-step-5", "hf_step_6"))))
    assert not any("_6" in path.read_text() or "-5" in path.read_text() for path in again.iterdir())
    for name in ("ADMIN_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "again")
    kept = load.load(again / "t.yaml")
    base = steps.base_playbook(kept, None, (), None)
    first, second = (
        steps.prepared(kept, each, base, (), None, tmp_path, dry=True).playbook.model.server for each in steps.variants(kept)
    )
    assert first.flags["admin-api-key"] == "@{secret:ADMIN_API_KEY}" and second.env["HF_TOKEN"] == "@{secret:HF_TOKEN}"


def test_a_step_is_exported_as_a_playbook_of_its_own(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    export.export(found, tmp_path / "out", "b")
    for name in ("API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "again")
    assert load_playbook(tmp_path / "out" / "step.yaml").model.server.flags["x"] == 1
    with pytest.raises(GpuopsError, match="has no step c"):
        export.export(found, tmp_path / "other", "c")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("--api-key sk-abc --tp 8", "--api-key [redacted] --tp 8"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"),
        ("max_total_tokens=8192, tokenizer_path='/m'", None),
        ("eos_token='</s>'", None),
        ("api_key=None", None),
        ("'@{secret:KEY}' and ${API_KEY}", None),
        ('api-token = "${API_TOKEN}"', None),
        ('api-token = "[redacted]"', None),
    ],
)
def test_what_stands_where_secrets_stand_is_redacted_and_nothing_else(text, hidden):
    assert redact.Redactor(())(text) == (hidden or text)


def test_records_are_listed_newest_first_and_found_by_a_part_of_their_id(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    later = {**found.record, "id": record.record_id("other", 10_000_000.0), "name": "other"}
    record.save(found.path.parent, later, {})
    (found.path.parent / "broken").mkdir()
    (found.path.parent / "broken" / "record.json").write_text("{")
    assert [each.id for each in record.listed(found.path.parent)] == [later["id"], found.id]
    assert record.find(found.path.parent, "other").id == later["id"]
    with pytest.raises(GpuopsError, match="names 2 records"):
        record.find(found.path.parent, "1970")


def test_of_a_trial_that_was_played_twice_the_later_record_is_found_by_its_name(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    later = {**found.record, "id": record.record_id(found.record["name"], 10_000_000.0)}
    record.save(found.path.parent, later, {})
    assert record.find(found.path.parent, found.record["name"]).id == later["id"]


def test_a_trial_file_keeps_what_removes_a_key(tmp_path):
    trial = trial_of(tmp_path, "steps: [{name: a, env: {A: null}}]\n")
    assert yaml.safe_load(replay.trial_text(trial, redact.Redactor(())))["steps"] == [{"name": "a", "env": {"A": None}}]


def test_a_record_is_written_whole(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    assert json.loads((found.path / "record.json").read_text()) == found.record
    assert not list(found.path.glob(".*"))
    assert replace(State("t", "k", "s", 1.0), results=()).verdicts == {}


def full_at(monkeypatch, name: str) -> None:
    """The disk is full as soon as a file of this name is written."""
    write = Path.write_text

    def write_text(self: Path, text: str, **options) -> int:
        if self.name == name:
            write(self, text[:1], **options)
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write(self, text, **options)

    monkeypatch.setattr(Path, "write_text", write_text)


@pytest.mark.failure_mode("trial-unkept")
def test_a_record_that_the_disk_does_not_take_leaves_nothing(tmp_path, monkeypatch):
    full_at(monkeypatch, "record.md")
    with pytest.raises(GpuopsError, match="the disk is full") as full:
        recorded(tmp_path, monkeypatch, result("a"), result("b"))
    assert "No space left" in full.value.evidence and "df -h" in full.value.next
    assert not list(tmp_path.glob("**/record.json")) and not list(tmp_path.glob("**/.*incoming"))


def test_a_record_takes_the_place_of_one_that_was_kept_before_and_half_a_one_is_not_listed(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    folder = found.path.parent
    assert record.save(folder, {**found.record, "by": "another"}, {"record.md": "new"}) == found.path
    assert sorted(file.name for file in found.path.iterdir()) == ["record.json", "record.md"]
    shutil.copytree(found.path, folder / ".2-t.incoming")
    assert [(each.id, each.record["by"]) for each in record.listed(folder)] == [(found.id, "another")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is no object"),
        ({"version": 9}, "it is of version 9, this gpuops reads 1"),
        ({"verdict": None}, "subscriptable"),
        ({"verdict": {"verdict": 3, "why": []}}, "it has no question, or no verdict"),
        ({"id": None}, "id is no text"),
        ({"began": "today"}, "str"),
        ({"began": 1e300}, "out of range"),
        ({"steps": [{"name": "a"}]}, "it lacks 'figures'"),
        ({"question": " "}, "it has no question"),
    ],
)
def test_a_damaged_record_costs_that_record_and_no_other(tmp_path, monkeypatch, change, why):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    folder = found.path.parent
    other = folder / "20010101-000000-other"
    shutil.copytree(found.path, other)
    (other / "record.json").write_text(change if isinstance(change, str) else json.dumps({**found.record, **change}))
    assert [each.id for each in record.listed(folder)] == [found.id]
    assert record.find(folder, None).id == found.id
    (told,) = record.unreadable(folder)
    with pytest.raises(GpuopsError, match="the record 20010101-000000-other cannot be read") as shown:
        record.find(folder, "other")
    assert why in shown.value.evidence and told.as_dict() == shown.value.as_dict()


def test_an_export_that_the_disk_does_not_take_leaves_nothing(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    full_at(monkeypatch, "trial.yaml")
    out = tmp_path / "elsewhere" / "out"
    with pytest.raises(GpuopsError, match="the disk is full"):
        export.export(found, out, None)
    assert list(out.parent.iterdir()) == []


def test_a_record_without_one_of_its_files_is_no_export(tmp_path, monkeypatch):
    found = recorded(tmp_path, monkeypatch, result("a"), result("b"))
    (found.path / "record.md").unlink()
    with pytest.raises(GpuopsError, match=r"is not whole: its record\.md cannot be read"):
        export.export(found, tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


@pytest.mark.failure_mode("trial-unkept")
def test_what_cannot_be_kept_while_a_trial_is_played_is_a_note(tmp_path):
    folder = tmp_path / "records"
    play, _ = host({"outcome": "tried", "steps": [result("a"), result("b")]})
    notes: list[str] = []

    def spoiled(order, hear):
        shutil.rmtree(folder)
        folder.write_text("no folder any more")
        return play(order, hear)

    begun = State("t", "k", "svc", 1.0)
    trial = Player(begun, folder, lambda done: {"op": "o"}, lambda told: len(told) == 2, note=notes.append)
    assert trial.play("box", spoiled)["outcome"] == "tried" and trial.complete
    assert len(notes) == 3 and all("cannot be written" in note and "--resume" in note for note in notes)
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_a_trial_whose_operation_cannot_be_noted_asks_no_host(tmp_path):
    (tmp_path / "records").write_text("no folder")
    play, orders = host()
    with pytest.raises(GpuopsError, match="cannot be written"):
        player(tmp_path / "records").play("box", play)
    assert orders == []


def test_what_is_left_of_a_damaged_state_is_begun_anew_by_the_trials_file(tmp_path):
    state.path(tmp_path, "t").write_text("{")
    with pytest.raises(GpuopsError) as damaged:
        state.begun(tmp_path, "t", "k", "svc", 1.0, resume=True, fresh=False, trial=Path("my trials/t.yaml"))
    assert damaged.value.next == "gpuops trial 'my trials/t.yaml' --fresh begins anew"
