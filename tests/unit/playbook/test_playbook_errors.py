"""Every mistake in a playbook is reported with file, line, key, what was expected, and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from playbook_samples import ENVIRON, MINIMAL, Write

from gpuops.errors import Exit, PlaybookError
from gpuops.playbook import load

ONE_PROBE = "probes:\n  - name: a\n    ask: b\n    expect: {contains: c}\n"

# (what is appended to the minimal playbook of five lines, the evidence without the folder)
APPENDED = {
    "an unknown key at the top": ("servr: {}\n", "playbook.yaml:6: servr: no such key; did you mean 'server'?"),
    "an unknown key below": ("server:\n  flagz: {}\n", "playbook.yaml:7: server.flagz: no such key; did you mean 'flags'?"),
    "an unknown key that is like no other": (
        "build: {tree: ., zzz: 1}\n",
        "playbook.yaml:6: build.zzz: no such key; known here: tree, proof",
    ),
    "text for a number": (
        "deadlines:\n  stop_s: 5\n  start_s: soon\n",
        "playbook.yaml:8: deadlines.start_s: expected a number, not 'soon'",
    ),
    "a switch for a number": ("deadlines: {stop_s: true}\n", "playbook.yaml:6: deadlines.stop_s: expected a number, not true"),
    "a negative deadline": ("deadlines: {stop_s: -1}\n", "playbook.yaml:6: deadlines.stop_s: expected a number above 0, not -1"),
    "a number for text": ("server: {bind: 1}\n", "playbook.yaml:6: server.bind: expected text, not 1"),
    "a mapping for a list": ("probes: {a: b}\n", "playbook.yaml:6: probes: expected a list, not a mapping"),
    "a list for a mapping": ("server: [a]\n", "playbook.yaml:6: server: expected a mapping, not a list"),
    "a port out of range": (
        "server: {port: 70000}\n",
        "playbook.yaml:6: server.port: expected a port from 1 to 65535, or 'auto', not 70000",
    ),
    "a flag with dashes": (
        "server: {flags: {--tp: 8}}\n",
        "playbook.yaml:6: server.flags.--tp: expected the name of a flag without its leading dashes, "
        "such as 'attention-backend', not '--tp'",
    ),
    "a nested list in a flag": (
        "server: {flags: {a: [[1]]}}\n",
        "playbook.yaml:6: server.flags.a: expected a list of texts and numbers, at least one",
    ),
    "a switch in the environment": (
        "server: {env: {A: true}}\n",
        "playbook.yaml:6: server.env.A: expected text: write it in quotes as the server shall see it, not true",
    ),
    "a bad variable name": (
        "server: {env: {A-B: x}}\n",
        "playbook.yaml:6: server.env.A-B: expected the name of an environment variable: letters, digits and '_', not 'A-B'",
    ),
    "a bad regex": (
        ONE_PROBE.replace("contains: c", "regex: '('"),
        "playbook.yaml:9: probes.0.expect.regex: no regular expression: missing ), unterminated subpattern at position 0",
    ),
    "two expectations": (
        ONE_PROBE.replace("contains: c", "contains: c, equals: d"),
        "playbook.yaml:9: probes.0.expect: expected exactly one of contains, regex, equals, output_ids; here: contains, equals",
    ),
    "no expectation": (
        ONE_PROBE.replace("contains: c", "ignore_case: true"),
        "playbook.yaml:9: probes.0.expect: expected exactly one of contains, regex, equals, output_ids; here: none",
    ),
    "token ids of a chat answer": (
        ONE_PROBE.replace("contains: c", "output_ids: [1]"),
        "playbook.yaml:7: probes.0: output_ids need prompt: a chat answer carries no token ids",
    ),
    "case of token ids": (
        ONE_PROBE.replace("ask", "prompt").replace("contains: c", "output_ids: [1], ignore_case: true"),
        "playbook.yaml:9: probes.0.expect: ignore_case means nothing for output_ids",
    ),
    "two questions": (
        ONE_PROBE + "    prompt: d\n",
        "playbook.yaml:7: probes.0: expected exactly one of ask and prompt; here: both",
    ),
    "no question": (
        ONE_PROBE.replace("    ask: b\n", ""),
        "playbook.yaml:7: probes.0: expected exactly one of ask and prompt; here: none",
    ),
    "an unknown gate": (
        ONE_PROBE + "    gate: require\n",
        "playbook.yaml:10: probes.0.gate: expected 'required' or 'wanted', not 'require'; did you mean 'required'?",
    ),
    "two probes of one name": (
        ONE_PROBE + "  - {name: a, ask: b, expect: {contains: c}}\n",
        "playbook.yaml:6: probes: two probes are called 'a'",
    ),
    "a missing tree": (
        "build: {tree: kernels}\n",
        "playbook.yaml:6: build.tree: there is no folder FOLDER/kernels",
    ),
    "an unpinned overlay": (
        "build: {overlay: [sglang]}\n",
        "playbook.yaml:6: build.overlay.0: expected a pinned requirement, NAME==VERSION, not 'sglang'",
    ),
    "an empty overlay": ("build: {overlay: []}\n", "playbook.yaml:6: build.overlay: expected a list of at least one"),
    "a duplicate key": (
        "server:\n  bind: a\n  bind: b\n",
        "playbook.yaml:8: server.bind: this key stands twice, first on line 7",
    ),
    "no YAML": (
        "server: {bind: [}\n",
        "playbook.yaml:6: no YAML: while parsing a flow node did not find expected node content",
    ),
    "a variable without quotes in a flow mapping": (
        "server: {bind: ${A}}\n",
        "playbook.yaml:6: no YAML: while parsing a flow mapping did not find expected ',' or '}'"
        "; inside {...} and [...] a value with ${NAME} must be in quotes",
    ),
    "a tag": ("server: !new {}\n", "playbook.yaml:6: server: the tag !new has no meaning in a playbook"),
    "nesting without end": (
        "x-a: " + "[" * 500 + "]" * 500 + "\n",
        "playbook.yaml:6: x-a: nested more than 50 deep",
    ),
    "an alias inside itself": (
        "x-a: &a [*a]\n",
        "playbook.yaml:6: x-a.0: an alias must not contain itself",
    ),
    "a variable that is not listed": (
        "env: [MODEL_DIR]\nserver:\n  bind: ${MODEL_DIRR}\n",
        "playbook.yaml:8: server.bind: the variable MODEL_DIRR is not listed under env or secrets; did you mean 'MODEL_DIR'?",
    ),
    "a variable that is not set": (
        "env: [UNSET]\nserver:\n  bind: ${UNSET}\n",
        "playbook.yaml:8: server.bind: the variable UNSET is not set",
    ),
    "a variable with an odd name": (
        "server:\n  bind: ${A B}\n",
        "playbook.yaml:7: server.bind: '${A B}' is no ${NAME} of a variable; write $${ for a literal ${",
    ),
    "a secret in a forbidden place": (
        "secrets: [API_KEY]\nserver:\n  bind: ${API_KEY}\n",
        "playbook.yaml:8: server.bind: the secret API_KEY may be used only in values of server.flags and server.env, "
        "and in notify[].webhook",
    ),
    "a secret beside a webhook": (
        "secrets: [API_KEY]\nnotify: [{webhook: https://x, on: ['${API_KEY}']}]\n",
        "playbook.yaml:7: notify.0.on.0: the secret API_KEY may be used only in values of server.flags and server.env, "
        "and in notify[].webhook",
    ),
    "a webhook that is no address": (
        "notify: [{webhook: chat.example.com}]\n",
        "playbook.yaml:6: notify.0.webhook: expected an http or https address, not 'chat.example.com'",
    ),
    "a hook of another name": (
        "hooks: {before-start: x.sh}\n",
        "playbook.yaml:6: hooks.before-start: no such key; did you mean 'before-stop'?",
    ),
    "a hook that is not there": (
        "hooks: {before-stop: x.sh}\n",
        "playbook.yaml:6: hooks.before-stop: there is no script FOLDER/x.sh",
    ),
    "no cards": ("gpus: []\n", "playbook.yaml:6: gpus: expected 'all', or a list of at least one card, not []"),
    "an odd card": (
        "gpus: [0, -1]\n",
        "playbook.yaml:6: gpus: expected a card's number or its UUID (GPU-... or MIG-...), not -1",
    ),
    "a card twice": ("gpus: [0, 0]\n", "playbook.yaml:6: gpus: the card 0 is named twice"),
    "a lost controller's fate": (
        "on_controller_lost: wait\n",
        "playbook.yaml:6: on_controller_lost: expected 'restore' or 'finish', not 'wait'",
    ),
    "a secret that is not set": (
        "secrets: [UNSET]\nserver:\n  env: {A: '${UNSET}'}\n",
        "playbook.yaml:8: server.env.A: the secret UNSET is not set, or empty",
    ),
    "a placeholder by hand": (
        "server:\n  env: {A: '@{secret:B}'}\n",
        "playbook.yaml:7: server.env.A: @{secret:NAME} is written by gpuops: write ${NAME} and list NAME under secrets",
    ),
    "a name both shown and secret": (
        "env: [A]\nsecrets: [A]\n",
        "playbook.yaml:7: secrets: A is listed under env too: it cannot be both shown and secret",
    ),
    "a playbook to extend that is missing": (
        "extends: playboook.yaml\n",
        "playbook.yaml:6: extends: there is no file FOLDER/playboook.yaml; did you mean 'playbook.yaml'?",
    ),
    "a playbook that extends itself": (
        "extends: playbook.yaml\n",
        "playbook.yaml:6: extends: runs in a circle: FOLDER/playbook.yaml -> FOLDER/playbook.yaml",
    ),
}

# (a line of the minimal playbook, what stands there instead, the evidence)
REPLACED = {
    "a bad service name": (
        "service: demo",
        "service: Demo",
        "playbook.yaml:1: service: expected a name of at most 63 lower-case letters, digits, '.', '_' and '-', "
        "which starts with a letter or digit, not 'Demo'",
    ),
    "a missing key": ("service: demo\n", "", "playbook.yaml:1: service: this key is required, and missing"),
    "an address that is an option": (
        "gpu-box",
        "-oProxyCommand=x",
        "playbook.yaml:2: host: expected an ssh alias, 'host', 'user@host' or 'user@host:port', or 'local', "
        "not '-oProxyCommand=x'",
    ),
    "a host of no kind": (
        "gpu-box",
        "{adress: a}",
        "playbook.yaml:2: host: expected exactly one of the keys address, sandbox; for 'adress', did you mean 'address'?",
    ),
    "a root that a shell would read": (
        "gpu-box",
        "{address: a, root: /x y}",
        "playbook.yaml:2: host.root: expected a path that starts with '/' or '~/', of letters, digits and _./=:@%+,~-, "
        "not '/x y'",
    ),
    "an unknown transport": (
        "gpu-box",
        "{address: a, transport: opensh}",
        "playbook.yaml:2: host.transport: expected 'auto', 'fabric' or 'openssh', not 'opensh'; did you mean 'openssh'?",
    ),
    "a model of two kinds": (
        "{path: /models/m}",
        "{path: /m, hf: a/b}",
        "playbook.yaml:4: model: expected exactly one of the keys path, config, hf, package; here: hf, path",
    ),
    "a missing folder of a model's configuration": (
        "{path: /models/m}",
        "{config: no-such}",
        "playbook.yaml:4: model.config: there is no folder FOLDER/no-such",
    ),
    "a missing lock file": (
        "{path: /opt/venv}",
        "{lock: playbok.yaml}",
        "playbook.yaml:3: runtime.lock: there is no file FOLDER/playbok.yaml; did you mean 'playbook.yaml'?",
    ),
    "two files of one name": (
        "{path: /opt/venv}",
        "{lock: playbook.yaml, files: [playbook.yaml, ./playbook.yaml]}",
        "playbook.yaml:3: runtime.files: two files have the base name 'playbook.yaml', and would overwrite each other",
    ),
    "a lock in the home of nobody": (
        "{path: /opt/venv}",
        "{lock: ~no-such-user/b.lock}",
        "playbook.yaml:3: runtime.lock: '~no-such-user/b.lock' is no path: Could not determine home directory.",
    ),
    "a path that is longer than any": (
        "{path: /opt/venv}",
        f"{{lock: {'x' * 5000}}}",
        f"playbook.yaml:3: runtime.lock: '{'x' * 60}...' is no path: File name too long",
    ),
    "a host with a port of too many digits": (
        "gpu-box",
        f"gpu-box:{'9' * 5000}",
        "playbook.yaml:2: host: expected an ssh alias, 'host', 'user@host' or 'user@host:port', or 'local', not "
        f"'gpu-box:{'9' * 5000}'",
    ),
    "a version that is a number": (
        "0.5.23",
        "5",
        "playbook.yaml:5: engine.version: expected text, not 5",
    ),
    "a misspelt engine": (
        "name: sglang",
        "name: sglng",
        "playbook.yaml:5: engine.name: expected 'sglang', not 'sglng'; did you mean 'sglang'?",
    ),
    "a misspelt key is one mistake, not two": (
        "service:",
        "servise:",
        "playbook.yaml:1: servise: no such key; did you mean 'service'?",
    ),
}


def evidence_of(path: Path, **options: object) -> str:
    with pytest.raises(PlaybookError) as caught:
        load(path, environ=ENVIRON, **options)  # type: ignore[arg-type]
    assert caught.value.code == Exit.PLAYBOOK
    assert str(path) in caught.value.what
    return caught.value.evidence.replace(f"{path.parent}/playbook.yaml:", "playbook.yaml:").replace(str(path.parent), "FOLDER")


@pytest.mark.parametrize(("text", "evidence"), APPENDED.values(), ids=list(APPENDED))
def test_a_mistake_is_named_with_its_place(write: Write, text: str, evidence: str) -> None:
    assert evidence_of(write(MINIMAL + text)) == evidence


@pytest.mark.parametrize(("old", "new", "evidence"), REPLACED.values(), ids=list(REPLACED))
def test_a_wrong_value_is_named_with_its_place(write: Write, old: str, new: str, evidence: str) -> None:
    assert evidence_of(write(MINIMAL.replace(old, new))) == evidence


@pytest.mark.parametrize(
    ("option", "evidence"),
    [
        ("server.flagz.tp=2", "--set server.flagz.tp: server.flagz: no such key; did you mean 'flags'?"),
        ("servr.port=2", "--set servr.port: servr: no such key; did you mean 'server'?"),
        ("server.port=high", "--set server.port: server.port: expected a port from 1 to 65535, or 'auto', not 'high'"),
        ("server.port=[", "--set server.port: no YAML: while parsing a flow node did not find expected node content"),
        ("server.prt=null", "--set server.prt: server.prt: there is no such key to remove; did you mean 'port'?"),
        ("probes.1.gate=wanted", "--set probes.1.gate: probes: is a list of 1: expected an index from 0 to 0, not '1'"),
        ("probes.a.gate=wanted", "--set probes.a.gate: probes: is a list of 1: expected an index from 0 to 0, not 'a'"),
        ("probes.0.gat=wanted", "--set probes.0.gat: probes.0.gat: no such key; did you mean 'gate'?"),
        (
            "service.name=x",
            "--set service.name: service: is 'demo' (playbook.yaml:1), no mapping: 'name' cannot be set in it",
        ),
        ("build.tree=nowhere", "--set build.tree: build.tree: there is no folder CWD/nowhere"),
    ],
)
def test_a_wrong_override_is_named_by_its_option(write: Write, option: str, evidence: str) -> None:
    path = write(MINIMAL + ONE_PROBE + "server: {port: 1}\n")

    assert evidence_of(path, overrides=[option]).replace(str(Path.cwd()), "CWD") == evidence


def test_an_override_without_a_value_is_explained_by_an_example(write: Write) -> None:
    with pytest.raises(PlaybookError) as caught:
        load(write(), ["server.port"], environ={})

    assert caught.value.next == "for example: --set server.flags.tp=2"


def test_all_mistakes_are_listed_in_the_order_of_their_lines(write: Write) -> None:
    path = write(MINIMAL + "deadlines:\n  stop_s: x\nserver:\n  bind: ${NOPE}\nbuild: {tree: none}\n" + "servce: 1\n")

    lines = [line.split(": ")[0] for line in evidence_of(path).splitlines()]

    assert lines == ["playbook.yaml:7", "playbook.yaml:9", "playbook.yaml:10", "playbook.yaml:11"]


def test_a_mistake_in_an_extended_playbook_names_that_file(write: Write) -> None:
    write(MINIMAL + "servr: {}\n", "base.yaml")
    path = write("extends: base.yaml\nservice: other\n")

    assert evidence_of(path) == "FOLDER/base.yaml:6: servr: no such key; did you mean 'server'?"


@pytest.mark.parametrize(
    ("extends", "evidence"),
    [
        (r'"a\0b"', "extends: 'a\\x00b' is no path: embedded null byte"),
        ("~no-such-user/x.yaml", "extends: '~no-such-user/x.yaml' is no path: Could not determine home directory."),
        ("x" * 5000, f"extends: '{'x' * 60}...' is no path: File name too long"),
        ("d.yaml", "extends: FOLDER/d.yaml is a folder: expected the path of another playbook"),
    ],
)
def test_what_cannot_be_extended_is_said(write: Write, extends: str, evidence: str) -> None:
    path = write(MINIMAL + f"extends: {extends}\n")
    (path.parent / "d.yaml").mkdir()
    assert evidence_of(path) == f"playbook.yaml:6: {evidence}"


@pytest.mark.parametrize("port", ["9" * 5000, "-" + "9" * 200])
def test_a_number_of_many_digits_is_refused_at_its_place(write: Write, port: str) -> None:
    assert evidence_of(write(MINIMAL + f"server: {{port: {port}}}\n")) == (
        f"playbook.yaml:6: server.port: a number of {len(port)} characters"
    )
    assert evidence_of(write(), overrides=[f"server.port={port}"]) == (f"--set server.port: a number of {len(port)} characters")


def test_an_index_of_many_digits_is_no_index(write: Write) -> None:
    path = write(MINIMAL + ONE_PROBE)
    assert "expected an index from 0 to 0" in evidence_of(path, overrides=[f"probes.{'9' * 5000}.gate=wanted"])


def test_too_many_values_are_one_problem(write: Write) -> None:
    lines = [f"x-{number}: 1" for number in range(50_100)]
    (only,) = evidence_of(write(MINIMAL + "\n".join(lines) + "\n")).splitlines()
    assert only.endswith("more than 50000 values, aliases counted as often as they are used")


def test_an_override_of_extends_is_refused(write: Write) -> None:
    with pytest.raises(PlaybookError, match="cannot change what a playbook extends") as caught:
        load(write(), ["extends=other.yaml"], environ={})
    assert (caught.value.code, caught.value.next) == (Exit.PLAYBOOK, "name the other playbook with -p")


def test_a_circle_of_two_playbooks_is_an_error(write: Write) -> None:
    path = write("extends: other.yaml\n")
    write("extends: playbook.yaml\n", "other.yaml")

    with pytest.raises(PlaybookError, match=r"other\.yaml is not a valid playbook") as caught:
        load(path, environ={})

    assert "other.yaml:1: extends: runs in a circle" in caught.value.evidence


def test_the_next_command_sets_the_variable(write: Write) -> None:
    with pytest.raises(PlaybookError) as caught:
        load(write(MINIMAL.replace("/models/m", '"${MODEL_DIR}"') + "env: [MODEL_DIR]\n"), environ={})

    assert caught.value.next == "export MODEL_DIR=VALUE"


def test_an_empty_secret_is_as_good_as_none(write: Write) -> None:
    path = write(MINIMAL + "secrets: [API_KEY]\nserver: {flags: {api-key: '${API_KEY}'}}\n")

    with pytest.raises(PlaybookError) as caught:
        load(path, environ={"API_KEY": ""})

    assert caught.value.next == "read -rs API_KEY && export API_KEY"


def test_a_missing_playbook_suggests_the_one_beside_it(write: Write) -> None:
    path = write(name="local.yaml")

    with pytest.raises(PlaybookError, match=r"there is no playbook .*locale.yaml; did you mean 'local.yaml'"):
        load(path.with_name("locale.yaml"), environ={})


def test_aliases_of_aliases_are_stopped(write: Write) -> None:
    lines = ["x-0: &a0 [1,1,1,1,1,1,1,1,1]"] + [f"x-{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]

    assert "more than 50000 values" in evidence_of(write(MINIMAL + "\n".join(lines) + "\n"))


@pytest.mark.parametrize("text", ["", "- a\n", "just text\n"])
def test_a_file_that_is_no_mapping_is_an_error(write: Write, text: str) -> None:
    assert evidence_of(write(text)) == "playbook.yaml:1: expected a mapping of keys such as 'service' and 'host'"
