"""Surviving a logout: which way a host offers, and the command that takes it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpuops_agent import session
from gpuops_agent.paths import Root, Service
from gpuops_agent.session import PLAIN, SYSTEM_UNIT, USER_UNIT, Choice, Facts

SERVICE = Service(Root(Path("/srv/g")), "demo")

USER = Facts(
    uid=1000,
    user="ann",
    systemd=True,
    user_manager=True,
    linger=True,
    kill_user_processes=False,
    remove_ipc=False,
    session_scope="session-3.scope",
    systemd_run="/usr/bin/systemd-run",
    version=255,
    runtime_dir="/run/user/1000",
)


def with_facts(**changes: object) -> Choice:
    return session.choose(dataclasses.replace(USER, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "how", "reason"),
    [
        ({}, USER_UNIT, "ann lingers"),
        ({"uid": 0, "user": "root"}, SYSTEM_UNIT, "root can start system units"),
        ({"uid": 0, "user": "root", "linger": False, "user_manager": False}, SYSTEM_UNIT, "root can start system units"),
        ({"systemd": False}, PLAIN, "systemd is not the init"),
        ({"systemd": False, "uid": 0}, PLAIN, "systemd is not the init"),
        ({"systemd_run": ""}, PLAIN, "systemd-run is not installed"),
        ({"systemd_run": "", "uid": 0}, PLAIN, "systemd-run is not installed"),
        ({"linger": False}, PLAIN, "ann does not linger"),
        ({"user_manager": False}, PLAIN, "cannot be reached (/run/user/1000/systemd/private)"),
    ],
)
@pytest.mark.failure_mode("logout-kills")
def test_the_safest_way_that_the_host_offers_is_chosen(changes: dict[str, object], how: str, reason: str) -> None:
    choice = with_facts(**changes)
    assert choice.how == how and reason in choice.reason


@pytest.mark.parametrize(
    ("changes", "killers"),
    [
        ({}, []),
        ({"linger": False}, []),
        ({"linger": False, "kill_user_processes": True}, ["KillUserProcesses=yes: the end of session-3.scope ends it"]),
        ({"linger": False, "kill_user_processes": None}, ["if KillUserProcesses=yes (logind.conf cannot be read)"]),
        ({"linger": False, "kill_user_processes": True, "session_scope": ""}, []),
        ({"linger": False, "remove_ipc": True}, ["RemoveIPC=yes: the last logout deletes its shared memory"]),
        ({"remove_ipc": True}, []),
        ({"linger": False, "version": 252}, ["an OOM kill of anything else in session-3.scope"]),
        ({"linger": False, "version": None}, ["an OOM kill of anything else in session-3.scope"]),
        ({"version": 252}, []),
        ({"uid": 0, "kill_user_processes": True}, []),
        ({"systemd": False, "kill_user_processes": True, "remove_ipc": True, "linger": False}, []),
    ],
)
@pytest.mark.failure_mode("remove-ipc")
def test_what_can_still_end_it_is_named(changes: dict[str, object], killers: list[str]) -> None:
    named = with_facts(**changes).killers
    assert len(named) == len(killers)
    assert all(text in name for text, name in zip(killers, named, strict=True))


@pytest.mark.failure_mode("logout-kills")
def test_a_user_without_linger_is_told_how_to_get_it() -> None:
    assert with_facts(linger=False).next == "loginctl enable-linger ann, then gpuops restart"
    assert with_facts().next == ""


@pytest.mark.failure_mode("oom-session")
def test_a_system_unit_is_a_scope_of_its_own_that_an_oom_kill_does_not_end() -> None:
    argv = session.command(with_facts(uid=0), SERVICE, ["python3", "a b"], token="f00d")
    assert argv == [
        "/usr/bin/systemd-run",
        "--system",
        "--scope",
        "--quiet",
        "--collect",
        "--unit=gpuops-demo-supervisor-f00d",
        "--description=gpuops supervisor of demo in /srv/g",
        "--property=Delegate=yes",
        "--property=OOMPolicy=continue",
        "--property=ManagedOOMPreference=avoid",
        "--",
        "python3",
        "a b",
    ]


def test_a_user_unit_asks_the_users_own_systemd() -> None:
    argv = session.command(with_facts(), SERVICE, ["x"], role="runner", token="1")
    assert argv[:2] == ["/usr/bin/systemd-run", "--user"] and "--unit=gpuops-demo-runner-1" in argv


def test_a_user_unit_finds_the_users_systemd_although_the_environment_does_not_name_it() -> None:
    argv = session.command(with_facts(runtime_dir_set=False), SERVICE, ["x"])
    assert argv[:3] == ["env", "XDG_RUNTIME_DIR=/run/user/1000", "/usr/bin/systemd-run"]


def test_a_plain_session_runs_the_command_as_it_is() -> None:
    assert session.command(with_facts(systemd=False), SERVICE, ["python3", "x"], token="1") == ["python3", "x"]


@pytest.mark.parametrize(("version", "settings"), [(None, 0), (247, 1), (249, 2), (252, 2), (253, 3), (257, 3)])
def test_an_old_systemd_is_not_given_settings_that_it_would_refuse(version: int | None, settings: int) -> None:
    argv = session.command(with_facts(version=version), SERVICE, ["x"])
    assert sum(word.startswith("--property=") for word in argv) == settings


def test_the_unit_file_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    choice = dataclasses.replace(with_facts(uid=0), facts=dataclasses.replace(USER, version=_installed_version()))
    unit = tmp_path / "gpuops-demo.service"
    unit.write_text(session.unit_text(choice, SERVICE, ["/bin/echo", 'a "b" $c 100%']))
    assert verify(unit) == ""
    unit.write_text(unit.read_text().replace("Restart=", "Restrat="))
    assert "Restrat" in verify(unit), "a mistake is noticed"


def _installed_version() -> int | None:
    return session.facts().version


def verify(unit: Path) -> str:
    try:
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("systemd-analyze is not installed")
    # It also reads the host's own units, which are none of ours.
    said = [line for line in done.stderr.splitlines() if unit.stem in line]
    if done.returncode != 0 and not said:
        pytest.skip(f"systemd-analyze cannot run here: {done.stderr.strip()[-200:]}")
    return "\n".join(said)


# The facts of a host, from its files.


class FakeHost:
    """A host's files under a folder."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def write(self, path: str, text: str = "") -> "FakeHost":
        file = self.base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def facts(self, uid: int = 4242, **environ: str) -> Facts:
        return session.facts(self.base, {"PATH": "", **environ}, uid)


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_an_empty_host_has_no_systemd_and_nothing_is_known_of_logind(fake: FakeHost) -> None:
    facts = fake.facts()
    assert not (facts.systemd or facts.user_manager or facts.linger or facts.session_scope or facts.systemd_run)
    assert (facts.kill_user_processes, facts.remove_ipc, facts.version) == (None, None, None)


@pytest.mark.parametrize(("comm", "runs"), [("systemd\n", True), ("bash\n", False), (None, True)])
def test_systemd_runs_when_it_says_so_and_is_process_1_or_process_1_is_hidden(
    fake: FakeHost, comm: str | None, runs: bool
) -> None:
    (fake.base / "run/systemd/system").mkdir(parents=True)
    if comm is not None:
        fake.write("proc/1/comm", comm)
    assert fake.facts().systemd is runs


def test_the_users_systemd_is_found_with_and_without_the_environment(fake: FakeHost) -> None:
    fake.write("run/user/4242/systemd/private")
    assert fake.facts().user_manager and not fake.facts().runtime_dir_set
    assert not fake.facts(XDG_RUNTIME_DIR="/elsewhere").user_manager


def test_linger_and_the_login_session_are_read(fake: FakeHost) -> None:
    fake.write("var/lib/systemd/linger/4242").write("proc/self/cgroup", "0::/user.slice/user-4242.slice/session-c7.scope\n")
    facts = fake.facts()
    assert facts.linger and facts.session_scope == "session-c7.scope"


def test_a_service_is_in_no_login_session(fake: FakeHost) -> None:
    fake.write("proc/self/cgroup", "0::/system.slice/ssh.service\n")
    assert fake.facts().session_scope == ""


LOGIND = "[Login]\n#KillUserProcesses=no\n#KillExcludeUsers=root\n#RemoveIPC=yes\n"


@pytest.mark.parametrize(
    ("files", "kills", "removes"),
    [
        ({"etc/systemd/logind.conf": LOGIND}, False, True),
        ({"usr/lib/systemd/logind.conf": LOGIND, "etc/systemd/logind.conf": "[Login]\n"}, False, True),
        ({"etc/systemd/logind.conf": LOGIND + "KillUserProcesses=yes\nRemoveIPC=0\n"}, True, False),
        ({"etc/systemd/logind.conf": LOGIND, "etc/systemd/logind.conf.d/9.conf": "[Login]\nKillUserProcesses=on\n"}, True, True),
        (
            {
                "etc/systemd/logind.conf": LOGIND + "KillUserProcesses=yes\n",
                "usr/lib/systemd/logind.conf.d/50.conf": "[Login]\nKillUserProcesses=no\nRemoveIPC=no\n",
            },
            False,
            False,
        ),
        (
            {
                "etc/systemd/logind.conf": LOGIND,
                "usr/lib/systemd/logind.conf.d/50.conf": "[Login]\nKillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/50.conf": "[Login]\n",
            },
            False,
            True,
        ),
        ({"etc/systemd/logind.conf": LOGIND + "[Other]\nKillUserProcesses=yes\n"}, False, True),
        ({"etc/systemd/logind.conf": LOGIND + "KillUserProcesses=yes\nKillExcludeUsers=root 4242\n"}, False, True),
        ({"etc/systemd/logind.conf": LOGIND + "KillUserProcesses=yes\nKillOnlyUsers=bob\n"}, False, True),
        ({"etc/systemd/logind.conf": LOGIND + "KillUserProcesses=yes\nKillOnlyUsers=bob 4242\n"}, True, True),
    ],
    ids=[
        "defaults as comments",
        "defaults of the vendor's file",
        "main file",
        "drop-in",
        "a drop-in comes after the main file",
        "a drop-in of /etc masks one of /usr",
        "another section",
        "excluded user",
        "other users only",
        "this user too",
    ],
)
def test_logind_conf_is_merged_as_systemd_does(fake: FakeHost, files: dict[str, str], kills: bool, removes: bool) -> None:
    for path, text in files.items():
        fake.write(path, text)
    facts = fake.facts()
    assert (facts.kill_user_processes, facts.remove_ipc) == (kills, removes)


@pytest.mark.parametrize(("uid", "removes"), [(0, False), (499, False), (500, True), (4242, True)])
@pytest.mark.failure_mode("remove-ipc")
def test_remove_ipc_spares_system_users(fake: FakeHost, uid: int, removes: bool) -> None:
    fake.write("etc/systemd/logind.conf", LOGIND).write("etc/login.defs", "SYS_UID_MAX\t\t499\n")
    assert fake.facts(uid).remove_ipc is removes


@pytest.mark.parametrize(
    "path",
    [
        "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-255.so",
        "usr/lib64/systemd/libsystemd-shared-255-3.el10.so",
        "usr/lib/systemd/libsystemd-shared-255.4-1ubuntu8.so",
    ],
)
def test_the_version_of_systemd_is_told_by_its_library(fake: FakeHost, path: str) -> None:
    assert fake.write(path).facts().version == 255


# Starting.


def test_where_systemd_does_not_run_nothing_is_put_before_the_command() -> None:
    if session.facts().systemd:
        pytest.skip("systemd runs here")
    assert session.prefix(SERVICE) == []


def test_a_prefix_starts_the_same_process_with_its_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    fake = tools / "systemd-run"
    # As the real one: it takes its options, then becomes the command.
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do echo "$1" >> "$0.said"; shift; done\nshift\nexec "$@"\n')
    fake.chmod(0o755)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    facts = session.facts(tmp_path, os.environ, 0)
    argv = session.command(
        session.choose(facts), SERVICE, [sys.executable, "-c", "import os; print(input(), os.getpid())"], token="7"
    )
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate("word\n")
    assert out == f"word {process.pid}\n"
    assert "--unit=gpuops-demo-supervisor-7" in (tools / "systemd-run.said").read_text().splitlines()
