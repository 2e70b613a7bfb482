"""The light path to where a service runs, which agrees with a full load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playbook_samples import ENVIRON, MINIMAL, Write

from gpuops.errors import Exit, GpuopsError, PlaybookError
from gpuops.playbook import Target, load, target
from gpuops.transport.base import Address

HOSTS = [
    "gpu-box",
    "ops@gpu-box:2222",
    "local",
    "'[::1]:22'",
    "{address: a, root: ~/other}",
    "{address: a, ssh_config: ssh_config, python: python3.11, transport: fabric}",
    "{address: a, ssh_config: missing}",
    "{address: '${MODEL_NAME}'}",
    "'${API_KEY}'",
    "'${NOWHERE}'",
    "{sandbox: box}",
    "{sandbox: box, transport: openssh}",
    "{sandbox: nowhere}",
    "{sandbox: box, root: /x}",
    "{sandbox: box, address: a}",
    "{sandbox: ''}",
    "{address: a, root: relative}",
    "{address: a, root: null}",
    "{address: a, sandbox: null}",
    "{address: null, sandbox: box}",
    "null",
    "{address: a, python: 'python3; x'}",
    "{address: a, transport: telnet}",
    "{address: a, extra: 1, x-extra: 1}",
    "{address: 5}",
    "{}",
    "[a]",
    "5",
    "''",
    "a b",
    "a:99999",
    "-F",
]
SERVICES = ["demo", "a", "A", "'-a'", "5", "a/b", "x" * 63, "x" * 64]


@pytest.fixture
def box(write: Write) -> Path:
    """A folder with the record of a sandbox, and an ssh configuration beside it."""
    write("", "ssh_config")
    return write(json.dumps({"port": 1, "python": "/usr/bin/python3.12"}), "box/sandbox.json").parent


def test_a_plain_address_gets_the_defaults(write: Write) -> None:
    assert target(write(), environ={}) == Target("demo", Address("gpu-box"), "~/.gpuops", "python3", "auto")


def test_a_full_host_section_is_taken_over(full: Path) -> None:
    assert target(full, environ={}) == Target(
        "demo",
        Address("ops@gpu-box:2222", ssh_config=full.parent / "ssh_config"),
        root="/srv/gpuops",
        python="/usr/bin/python3.11",
        transport="openssh",
    )


def test_a_sandbox_is_read_from_its_folder(write: Write, box: Path) -> None:
    assert target(write(MINIMAL.replace("gpu-box", "{sandbox: box}")), environ={}) == Target(
        "demo",
        Address(
            "gpuops-sandbox",
            ssh_config=box / "ssh_config",
            when_unreachable=f"gpuops sandbox start --dir {box}   (or: make up)",
        ),
        root=str(box / "root"),
        python="/usr/bin/python3.12",
        transport="auto",
    )


def test_a_missing_sandbox_says_how_to_make_it(write: Write, tmp_path: Path) -> None:
    with pytest.raises(GpuopsError) as caught:
        target(write(MINIMAL.replace("gpu-box", "{sandbox: nowhere}")), environ={})

    assert caught.value.code == Exit.UNREACHABLE
    assert caught.value.next == f"make up   (or: gpuops sandbox start --dir {tmp_path}/nowhere)"


def test_a_command_for_a_folder_with_a_space_can_be_pasted(write: Write, tmp_path: Path) -> None:
    with pytest.raises(GpuopsError) as error:
        target(write(MINIMAL.replace("gpu-box", "{sandbox: no where}")))
    assert f"gpuops sandbox start --dir '{tmp_path}/no where'" in error.value.next


def test_a_missing_sandbox_does_not_keep_a_playbook_from_loading(write: Write) -> None:
    assert load(write(MINIMAL.replace("gpu-box", "{sandbox: nowhere}")), environ={}).model.service == "demo"


def test_the_rest_of_the_playbook_is_not_looked_at(write: Write) -> None:
    assert target(write("service: demo\nhost: a\nnonsense: ${NOT_LISTED}\n"), environ={}).service == "demo"


def test_a_mistake_is_reported_as_a_full_load_does(write: Write) -> None:
    with pytest.raises(PlaybookError) as caught:
        target(write(MINIMAL.replace("gpu-box", "{address: a, pyton: b}")), environ={})

    assert caught.value.evidence.endswith("playbook.yaml:2: host.pyton: no such key; did you mean 'python'?")


def test_overrides_and_the_host_option_apply(write: Write) -> None:
    assert target(write(), ["service=other"], "ops@b", environ={}) == Target(
        "other", Address("ops@b"), "~/.gpuops", "python3", "auto"
    )


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("host", HOSTS)
def test_the_light_path_agrees_with_a_full_load(write: Write, box: Path, service: str, host: str) -> None:
    path = write(MINIMAL.replace("demo", service).replace("gpu-box", host) + "env: [MODEL_NAME]\nsecrets: [API_KEY]\n")
    below = write("extends: ../playbook.yaml\n", "below/playbook.yaml")

    for playbook in (path, below):
        assert light(playbook) == complete(playbook)


def light(path: Path) -> object:
    return outcome(lambda: target(path, environ=ENVIRON))


def complete(path: Path) -> object:
    return outcome(lambda: load(path, environ=ENVIRON).target())


def outcome(call: Callable[[], Target]) -> object:
    """What a call gave, or the exit code it failed with and the keys it blamed."""
    try:
        return call()
    except GpuopsError as error:
        blamed = sorted(line.split(": ")[1] for line in error.evidence.splitlines()) if error.code == Exit.PLAYBOOK else []
        return error.code, blamed
