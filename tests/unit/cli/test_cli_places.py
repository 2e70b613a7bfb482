"""Which playbook and which host a command line is about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuops.cli import last, places
from gpuops.cli.places import DEADLINES, Where
from gpuops.cli.talk import Talk
from gpuops.errors import Exit, GpuopsError

TALK = Talk()


def playbook(path: Path, service: str = "svc", host: str = "box-a", more: str = "") -> str:
    path.write_text(f"service: {service}\nhost: {host}\n{more}")
    return str(path)


def test_an_option_wins_over_everything(folder, monkeypatch):
    monkeypatch.setenv("GPUOPS_PLAYBOOK", "other.yaml")
    playbook(folder / "gpuops.yaml")
    assert places.find(Where(playbook="named.yaml"), TALK).playbook == "named.yaml"


def test_the_environment_wins_over_the_folder(folder, monkeypatch):
    monkeypatch.setenv("GPUOPS_PLAYBOOK", "other.yaml")
    playbook(folder / "gpuops.yaml")
    assert places.find(Where(), TALK).playbook == "other.yaml"


def test_the_folders_own_playbook_wins_over_the_last_one(folder):
    last.remember(folder, Path(playbook(folder / "used.yaml")), None, ())
    playbook(folder / "gpuops.yaml")
    assert places.find(Where(), TALK).playbook == "gpuops.yaml"


def test_the_last_playbook_of_this_folder_is_used_and_said(folder, capsys):
    used = playbook(folder / "used.yaml")
    last.remember(folder, Path(used), None, ())
    assert places.find(Where(), TALK).playbook == used
    assert used in capsys.readouterr().err


def test_the_last_playbook_of_another_folder_is_not_used(folder, tmp_path):
    last.remember(tmp_path, Path(playbook(folder / "used.yaml")), None, ())
    assert places.find(Where(), TALK).playbook is None


def test_a_last_playbook_that_is_gone_is_not_used(folder):
    last.remember(folder, folder / "gone.yaml", None, ())
    assert places.find(Where(), TALK).playbook is None


def test_where_it_was_rolled_out_is_remembered_with_it(folder):
    last.remember(folder, Path(playbook(folder / "used.yaml")), "box-b", ("service=other", "server.env.KEY=secret"))
    found = places.target(Where(), TALK)
    assert (found.service, found.address.name) == ("other", "box-b")


def test_another_host_forgets_what_was_set_about_the_remembered_one(folder):
    last.remember(folder, Path(playbook(folder / "used.yaml")), None, ("service=other", "host.root=/srv"))
    found = places.target(Where(host="box-c"), TALK)
    assert (found.service, found.address.name, found.root) == ("other", "box-c", "~/.gpuops")


def test_values_of_set_that_do_not_say_where_are_not_written_down(folder):
    last.remember(folder, Path(playbook(folder / "used.yaml")), None, ("server.env.KEY=hidden",))
    assert "hidden" not in last.state_file().read_text()


@pytest.mark.parametrize("damage", ["", "[]", '{"FOLDER": {"playbook": 1}}', '{"FOLDER": null}'])
def test_a_damaged_state_file_counts_as_none(folder, damage):
    last.state_file().parent.mkdir(parents=True)
    last.state_file().write_text(damage.replace("FOLDER", str(folder)))
    assert last.recall(folder) is None


def test_only_the_latest_folders_are_remembered(folder, tmp_path):
    for number in range(last.FOLDERS + 3):
        last.remember(tmp_path / str(number), folder / "used.yaml", None, ())
    known = list(json.loads(last.state_file().read_text()))
    assert len(known) == last.FOLDERS
    assert known[-1] == str(tmp_path / str(last.FOLDERS + 2))


def test_a_host_alone_needs_no_playbook():
    found = places.target(Where(host="ann@box:2222", service="svc", accept_new_host_key=True), TALK)
    assert (found.service, found.address.name, found.root, found.python) == ("svc", "ann@box:2222", "~/.gpuops", "python3")
    assert found.address.accept_new_host_key


def test_a_host_replaces_the_playbooks(folder):
    found = places.target(Where(playbook=playbook(folder / "a.yaml"), host="box-c"), TALK)
    assert (found.service, found.address.name) == ("svc", "box-c")


def test_a_service_replaces_the_playbooks(folder):
    assert places.target(Where(playbook=playbook(folder / "a.yaml"), service="other"), TALK).service == "other"


def test_a_host_that_ssh_would_take_for_an_option_is_refused():
    with pytest.raises(GpuopsError, match="is not a host") as caught:
        places.target(Where(host="-oProxyCommand=x"), TALK)
    assert caught.value.code == Exit.USAGE


def test_nothing_named_is_a_usage_error_that_says_the_choices(gpuops):
    said = gpuops("status")
    assert said.code == 2
    for choice in ("-p FILE", "$GPUOPS_PLAYBOOK", "./gpuops.yaml", "used last", "--host HOST"):
        assert choice in said.err


def test_two_playbooks_are_a_usage_error(gpuops):
    said = gpuops("plan", "a.yaml", "-p", "b.yaml")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: two playbooks are named")


def test_deadlines_come_from_the_playbook_without_the_rest_of_it(folder):
    path = playbook(folder / "a.yaml", more="deadlines: {stop_s: 5}\nmodel: {nonsense: true}\nsecrets: [NOT_SET]\n")
    assert places.deadlines(Where(playbook=path), TALK) == {**DEADLINES, "stop_s": 5.0}


@pytest.mark.parametrize("value", ["soon", "-1", "true", "[1]", "null"])
def test_a_deadline_that_is_no_number_of_seconds_is_the_usual_one(folder, value):
    path = playbook(folder / "a.yaml", more=f"deadlines: {{stop_s: {value}}}\n")
    assert places.deadlines(Where(playbook=path), TALK) == DEADLINES


def test_the_usual_deadlines_are_those_of_the_playbook_model():
    from gpuops.playbook.models import Deadlines

    assert Deadlines().model_dump() == DEADLINES


def test_a_present_folder_that_was_deleted_is_said(gpuops, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = gpuops("status")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: the present folder is not there any more")
    monkeypatch.chdir(tmp_path)
