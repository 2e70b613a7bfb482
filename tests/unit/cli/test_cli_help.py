"""The lazy table: what it says is true, and help costs no more than help."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from gpuops.cli.table import VERBS

HEAVY = {"pydantic", "fabric", "paramiko", "httpx", "yaml", "tenacity"}
GROUPS = {
    "sandbox": ("start", "stop", "status"),
    "builds": ("make", "list", "show", "verify", "diff", "push", "prune", "bundle"),
    "caches": ("list", "save", "load"),
    "records": ("list", "show", "export"),
    "profile": ("show", "diff"),
}


def imported(*words: str) -> set[str]:
    """The top-level packages in a fresh interpreter after a command line has run."""
    program = (
        "import sys\n"
        f"sys.argv = {['gpuops', *words]!r}\n"
        "from gpuops.cli.entry import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "print('\\nMODULES', *{name.split('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def test_the_main_help_imports_nothing_heavy():
    assert not imported("--help") & HEAVY


def test_the_version_imports_nothing_heavy_and_no_rich():
    assert not imported("--version") & (HEAVY | {"rich"})


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_a_verbs_help_imports_nothing_heavy(verb):
    assert not imported(verb, "--help") & HEAVY


def test_the_main_help_imports_no_verb():
    program = (
        "import sys\nsys.argv = ['gpuops', '--help']\nfrom gpuops.cli.entry import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('\\nMODULES', *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.rpartition("MODULES ")[2].split())
    assert not loaded & {verb.module for verb in VERBS}


def test_status_of_this_machine_runs_without_pydantic_or_ssh_libraries(folder):
    (folder / "gpuops.yaml").write_text(f"service: svc\nhost: {{address: local, root: {folder}/root}}\n")
    assert not imported("status", "-q") & (HEAVY - {"yaml"})


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_short_help_is_the_modules_first_line(verb):
    assert (import_module(verb.module).__doc__ or "").splitlines()[0] == verb.help


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_is_listed_with_its_help(verb, gpuops):
    listed = " ".join(gpuops("--help").out.replace("│", " ").split())
    assert f"{verb.name} {verb.help}" in listed


@pytest.mark.parametrize(
    "words",
    [(verb.name,) for verb in VERBS] + [(group, name) for group, names in GROUPS.items() for name in names],
    ids=lambda words: " ".join(words),
)
def test_every_verbs_help_shows_an_example(words, gpuops):
    said = gpuops(*words, "--help")
    assert said.code == 0
    assert f"gpuops {' '.join(words)}" in said.out.partition("Examples:")[2]


def test_a_misspelt_verb_is_a_usage_error_that_names_the_right_one(gpuops):
    said = gpuops("stauts")
    assert said.code == 2
    assert "'status'" in said.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("status", "--timeout", "soon"), "'soon' is not a number"),
        (("status", "--timeout", "0"), "0 is not at least 0.1"),
        (("status", "--timeout", "nan"), "nan is not at least 0.1"),
        (("status", "--transport", "telnet"), "'telnet' is not one of auto, fabric, openssh"),
        (("restore", "seven"), "'seven' is not a whole number"),
        (("logs", "-n", "-1"), "-1 is not at least 0"),
        (("chat",), "Missing argument 'TEXT'"),
    ],
)
def test_a_wrong_value_is_a_usage_error(words, complaint, gpuops):
    said = gpuops(*words)
    assert said.code == 2
    assert complaint in " ".join(said.err.replace("│", " ").split())
