"""``extends`` and ``--set``: what is laid over what."""

from __future__ import annotations

from pathlib import Path

import pytest
from playbook_samples import ENVIRON, MINIMAL, Write

from gpuops.errors import PlaybookError
from gpuops.playbook import load

BASE = MINIMAL + "server: {flags: {tp: 8, bs: [1, 2], log: info}}\nprobes: [{name: a, ask: b, expect: {contains: c}}]\n"


def test_mappings_are_merged_and_scalars_and_lists_replaced(write: Write) -> None:
    write(BASE, "base.yaml")
    path = write("extends: base.yaml\nserver: {flags: {tp: 4, bs: [3]}}\nprobes: []\n")

    model = load(path, environ={}).model

    assert model.server.flags == {"tp": 4, "bs": (3,), "log": "info"}
    assert model.probes == ()


def test_null_removes_a_key(write: Write) -> None:
    write(BASE, "base.yaml")
    path = write("extends: base.yaml\nserver: {flags: {log: null}}\nprobes: null\n")

    model = load(path, environ={}).model

    assert model.server.flags == {"tp": 8, "bs": (1, 2)}
    assert model.probes == ()


def test_another_kind_of_model_replaces_the_section(write: Write) -> None:
    write(BASE, "base.yaml")
    path = write("extends: base.yaml\nmodel: {hf: org/name}\n")

    assert load(path, environ={}).model.model.model_dump() == {"hf": "org/name", "revision": "main", "warm": None, "keep": None}


def test_a_models_configuration_starts_from_the_file_that_names_it_and_replaces_another_kind(write: Write) -> None:
    write("{}\n", "shared/random/config.json")
    write(MINIMAL.replace("{path: /models/m}", "{config: random}"), "shared/base.yaml")
    path = write("extends: ../shared/base.yaml\n", "site/playbook.yaml")
    assert load(path, environ={}).model.model.model_dump()["config"] == "../shared/random"

    other = write(MINIMAL, "site/other.yaml")
    folder = path.parents[1] / "shared" / "random"
    chosen = load(other, (f"model.config={folder}",), environ={}).model.model.model_dump()
    assert (chosen["config"], "path" in chosen) == (str(folder), False)


def test_playbooks_extend_over_several_steps(write: Write) -> None:
    write(BASE, "base.yaml")
    write("extends: base.yaml\nservice: middle\nserver: {flags: {tp: 4}}\n", "middle.yaml")
    path = write("extends: middle.yaml\nserver: {flags: {tp: 2}}\n")

    model = load(path, environ={}).model

    assert (model.service, model.server.flags["tp"], model.server.flags["log"]) == ("middle", 2, "info")


def test_paths_start_from_the_file_that_names_them(write: Write) -> None:
    write("locked\n", "shared/env.lock")
    write("script\n", "site/convert.py")
    write(MINIMAL.replace("{path: /opt/venv}", "{lock: env.lock}"), "shared/base.yaml")
    path = write("extends: ../shared/base.yaml\nmodel: {package: a==1, convert: convert.py}\n", "site/playbook.yaml")

    loaded = load(path, environ={})

    assert loaded.model.runtime.model_dump()["lock"] == "../shared/env.lock"
    assert loaded.asset("../shared/env.lock") == "locked\n"
    assert loaded.asset("convert.py") == "script\n"


def test_a_playbook_does_not_depend_on_the_current_folder(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load(full, environ=ENVIRON)
    monkeypatch.chdir(full.parent)

    after = load(full.name, environ=ENVIRON)

    assert after.model == before.model
    assert after.target() == before.target()


def test_a_path_in_an_override_starts_from_the_current_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(name="site/playbook.yaml")
    (tmp_path / "here" / "kernels").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")

    loaded = load(path, ["build.tree=kernels"], environ={})

    assert loaded.file(loaded.model.build.tree) == tmp_path / "here" / "kernels"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (["server.flags.tp=2"], {"tp": 2, "bs": (1, 2), "log": "info"}),
        (["server.flags.tp='2'"], {"tp": "2", "bs": (1, 2), "log": "info"}),
        (["server.flags.new=true"], {"tp": 8, "bs": (1, 2), "log": "info", "new": True}),
        (["server.flags.log=null"], {"tp": 8, "bs": (1, 2)}),
        (["server.flags.bs.1=9"], {"tp": 8, "bs": (1, 9), "log": "info"}),
        (["server.flags={tp: 1}"], {"tp": 1, "bs": (1, 2), "log": "info"}),
        (["server.flags.tp=2", "server.flags.tp=3"], {"tp": 3, "bs": (1, 2), "log": "info"}),
        (["server.flags.eq=a=b"], {"tp": 8, "bs": (1, 2), "log": "info", "eq": "a=b"}),
    ],
)
def test_overrides_follow_the_rules_of_layers(write: Write, options: list[str], flags: dict[str, object]) -> None:
    assert load(write(BASE), options, environ={}).model.server.flags == flags


def test_an_override_reaches_into_a_list(write: Write) -> None:
    (probe,) = load(write(BASE), ["probes.0.gate=wanted"], environ={}).model.probes

    assert (probe.name, probe.gate) == ("a", "wanted")


def test_an_override_makes_a_section_that_was_absent(write: Write) -> None:
    assert load(write(), ["deadlines.stop_s=5"], environ={}).model.deadlines.stop_s == 5


def test_an_override_of_another_kind_replaces_the_section(write: Write) -> None:
    assert load(write(BASE), ["model.hf=org/name"], environ={}).model.model.model_dump() == {
        "hf": "org/name",
        "revision": "main",
        "warm": None,
        "keep": None,
    }


def test_a_flag_that_the_playbook_sets_may_be_named_alone(write: Write) -> None:
    path = write(BASE)

    model = load(path, ["tp=2", "log=debug", "service=other"], environ={}).model

    assert model.server.flags == {"tp": 2, "bs": (1, 2), "log": "debug"}
    assert model.service == "other"


def test_the_short_name_of_a_flag_never_hides_a_section(write: Write) -> None:
    path = write(BASE.replace("log: info", "gates: 1, service: 2"))

    model = load(path, ["service=other"], environ={}).model

    assert (model.service, model.server.flags["service"]) == ("other", 2)


def test_a_short_name_of_a_flag_that_is_not_set_is_an_unknown_key_with_the_full_name(write: Write) -> None:
    path = write(BASE)

    with pytest.raises(PlaybookError) as caught:
        load(path, ["tpp=2"], environ={})

    assert caught.value.evidence.startswith("--set tpp: tpp: no such key")
    assert "--set server.flags.tpp=VALUE" in caught.value.next


def test_the_lab_runs_on_several_cards_by_one_short_word() -> None:
    playbook = Path(__file__).parents[3] / "playbooks" / "gpu-lab.yaml"

    assert [load(playbook, [f"tp={ranks}"]).model.server.flags["tp"] for ranks in (2, 4, 8)] == [2, 4, 8]
