"""Adopting: a server that was started by hand becomes release 0, and a supervisor that died gets a successor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import conceal, net, proc, records, releases
from gpuops_agent.records import lost_ranks, read_exit, run_processes, server_alive, supervisor_alive
from gpuops_agent.wire import REFUSED, AgentError
from process_lab import RANK, Host, bystander, eventually, gone, kill, own_port
from rollouts import CAPITAL, DEADLINES, ENGINE, Json, Lab

from gpuops.engines import facts
from gpuops.errors import GpuopsError

KEY, TOKEN, SHORT = "sk-adopt-0123456789", "hf_adoptedtoken42", "pw12"


@dataclass(frozen=True)
class ByHand:
    """A server that a person started."""

    process: subprocess.Popen[bytes]
    argv: list[str]
    env: dict[str, str]
    cwd: Path
    port: int
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid


@pytest.fixture
def by_hand(lab: Lab) -> Iterator[Callable[..., ByHand]]:
    """Starts imitations of the engine as a person would: by hand, with secrets in the environment and the arguments."""
    started: list[ByHand] = []

    def start(*words: str, listening: bool = True, **kwargs: Any) -> ByHand:
        cwd = lab.folder / "by hand"
        cwd.mkdir(exist_ok=True)
        port = own_port()
        argv = [
            sys.executable,
            "-ISB",
            str(ENGINE),
            "--model-path",
            "../model",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            *words,
        ]
        env = {
            "PATH": os.environ["PATH"],
            "LAB": str(lab.folder),
            "HF_TOKEN": TOKEN,
            "AUTH_HEADER": f"Bearer {KEY}",
            "DB_PASSWORD": SHORT,
            "TOKENIZERS_PARALLELISM": "false",
            "NAMES": "x=1 y=2",
        }
        log = cwd / f"{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **kwargs
            )
        made = ByHand(process, argv, env, cwd, port, log)
        started.append(made)
        if listening:
            eventually(lambda: net.listeners(port), f"the server listens: {log.read_text()}")
        return made

    yield start
    for made in started:
        if made.process.poll() is None:
            os.killpg(made.pid, signal.SIGKILL)
            made.process.wait()


def adopt(lab: Lab, service: str = "demo", version: str = "0.5.23", **which: Any) -> Json:
    engine = facts("sglang", version).as_order(schedulers=1)
    deadlines = {**DEADLINES, "generate_s": which.pop("generate_s", 10)}
    return lab.agent.call("adopt", service=service, by="ann@here", engine=engine, probes=[CAPITAL], deadlines=deadlines, **which)


def refusal(lab: Lab, **which: Any) -> GpuopsError:
    """Adopting must be refused, and leave nothing behind."""
    with pytest.raises(GpuopsError) as caught:
        adopt(lab, **which)
    assert caught.value.code == REFUSED
    assert not (lab.service.path / "current").exists() and not lab.service.release(0).exists()
    assert not list(lab.root.secrets.glob("*"))
    assert not supervisor_alive(lab.service)
    return caught.value


def environment(pid: int) -> dict[str, str]:
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in raw if "=" in entry)


def test_an_adopted_server_runs_on_as_a_good_release_under_supervision(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    adopted = adopt(lab, pid=server.pid)
    assert (adopted["release"], adopted["pid"], adopted["port"]) == (0, server.pid, server.port)
    status = lab.status(check=True)
    assert (status["state"], status["release"], status["known_good"]) == ("running", 0, 0)
    assert (status["release_state"]["state"], status["release_state"]["reason"]) == ("good", "adopted")
    assert status["server"]["supervised"] and status["server"]["listening"]
    assert status["check"]["state"] == "serving"


def test_a_server_is_found_by_its_port(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    assert adopt(lab, port=server.port)["pid"] == server.pid


def test_the_answer_names_what_a_person_should_know(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    adopted = adopt(lab, pid=by_hand("--api-key", KEY).pid)
    assert adopted["secrets"] == ["ADOPTED_API_KEY", "ADOPTED_DB_PASSWORD", "ADOPTED_HF_TOKEN"]
    assert f"its parent (pid {os.getpid()}" in adopted["notes"][0]
    assert (adopted["model"], adopted["engine"]) == ("../model", "sglang 0.5.23")


def test_a_new_release_replaces_the_adopted_server(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    adopt(lab, pid=server.pid)
    played = lab.good(port=server.port)
    assert played.outcome["release"] == 1 and lab.link("good") == 1
    assert gone(server.pid)
    assert len(lab.engines()) == 1


def test_a_bad_release_brings_the_adopted_server_back_as_it_was(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand("--api-key", KEY)
    adopt(lab, pid=server.pid)
    played = lab.up("--garbage", port=server.port)
    assert (played.name, played.outcome["release"]) == ("restored", 0)
    again = played.outcome["pid"]
    assert again != server.pid and gone(server.pid)
    assert proc.cmdline(again) == server.argv
    assert os.readlink(f"/proc/{again}/cwd") == str(server.cwd)
    assert {name: value for name, value in environment(again).items() if name != records.RUN_TAG} == server.env
    assert lab.status(check=True)["check"]["state"] == "serving"


def test_an_automatic_port_is_the_adopted_servers(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    adopt(lab, pid=server.pid)
    assert lab.good().outcome["port"] == server.port


def test_the_adopted_release_can_be_stopped_and_asked_for_again(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    adopt(lab, pid=server.pid)
    assert lab.down().name == "stopped"
    assert gone(server.pid)
    restored = lab.restore(0)
    assert (restored.name, restored.outcome["release"]) == ("restored", 0)


def test_no_secret_lies_in_the_service_s_folder(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    adopt(lab, pid=by_hand("--api-key", KEY).pid)
    eventually(lambda: run_processes(lab.service))
    written = [file for file in lab.service.path.rglob("*") if file.is_file() and not file.is_symlink()]
    assert lab.service.release(0) / "release.json" in written
    for secret in (KEY, TOKEN, SHORT):
        assert [file for file in written if secret.encode() in file.read_bytes()] == []
    assert (lab.root.secrets / "ADOPTED_HF_TOKEN").read_text() == TOKEN
    assert (lab.root.secrets / "ADOPTED_HF_TOKEN").stat().st_mode & 0o777 == 0o600


def test_the_log_of_the_adopted_server_can_be_read(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    adopt(lab, pid=by_hand().pid)
    assert "fired up and ready to roll" in lab.logs()[0]


def test_the_death_of_an_adopted_server_is_noticed_and_its_ranks_are_swept(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    adopt(lab, pid=server.pid)
    ranks = eventually(lambda: [each.pid for each, title in run_processes(lab.service) if title.startswith("sglang::scheduler")])
    kill(server.pid)
    ended = eventually(lambda: read_exit(lab.service))
    assert (ended.pid, ended.release, ended.code, ended.signal, ended.adopted) == (server.pid, 0, None, None, True)
    eventually(lambda: not supervisor_alive(lab.service))
    assert all(map(gone, ranks))
    assert lab.status()["state"] == "died"


def test_a_rank_that_an_adopted_server_loses_is_noted(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    adopt(lab, pid=by_hand().pid)
    (rank,) = eventually(
        lambda: [each.pid for each, title in run_processes(lab.service) if title.startswith("sglang::scheduler")]
    )
    os.kill(rank, signal.SIGKILL)
    assert eventually(lambda: lost_ranks(lab.service))[0].pid == rank
    assert lab.status()["state"] == "degraded"


def test_a_stop_leaves_what_else_runs_in_the_adopted_server_s_session(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    port = own_port()
    model = lab.folder / "model"
    server = f"{sys.executable} -ISB {ENGINE} --model-path {model} --host 127.0.0.1 --port {port}"
    script = f"sleep 600 & echo $! > {lab.folder}/neighbour; {server}; wait"
    shell = subprocess.Popen(
        ["/bin/sh", "-c", script], env={"LAB": str(lab.folder), "PATH": os.environ["PATH"]}, start_new_session=True
    )
    try:
        eventually(lambda: net.listeners(port))
        neighbour = int((lab.folder / "neighbour").read_text())
        adopt(lab, port=port)
        assert lab.down().name == "stopped"
        assert not net.listeners(port)
        assert not gone(neighbour) and os.getsid(neighbour) == shell.pid
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_shared_memory_named_after_the_adopted_server_goes_with_it_and_other_stays(
    lab: Lab, by_hand: Callable[..., ByHand]
) -> None:
    server = by_hand()
    own, other = (Path(f"/dev/shm/torch_{pid}_{lab.folder.parent.name}x_0") for pid in (server.pid, os.getpid()))
    try:
        own.touch()
        other.touch()
        adopt(lab, pid=server.pid)
        eventually(lambda: own.name in {each.name for each in records.read_run(lab.service).shm})
        assert lab.down().name == "stopped"
        assert (own.exists(), other.exists()) == (False, True)
    finally:
        for segment in (own, other):
            segment.unlink(missing_ok=True)


def test_an_adoption_that_was_cut_can_be_finished(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    adopt(lab, pid=server.pid)
    releases.set_state(lab.service, 0, releases.STAGED)
    lab.service.good.unlink()
    adopt(lab, pid=server.pid)
    assert (lab.link("good"), lab.state(0)["state"]) == (0, "good")


def test_a_second_adoption_is_refused(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    adopt(lab, pid=server.pid)
    with pytest.raises(GpuopsError, match="has adopted a server before"):
        adopt(lab, pid=by_hand().pid)
    with pytest.raises(GpuopsError, match="belongs to the service demo"):
        adopt(lab, service="other", pid=server.pid)
    assert lab.status()["server"]["pid"] == server.pid


def test_a_service_with_a_server_of_its_own_does_not_adopt(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    own = lab.good()
    with pytest.raises(GpuopsError, match="has a server already"):
        adopt(lab, pid=by_hand().pid)
    assert lab.status()["server"]["pid"] == own.outcome["pid"]


def test_a_locked_service_does_not_adopt(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    lab.service.path.mkdir(parents=True)
    lab.agent.call("lock", service="demo", by="bob", reason="mine")
    assert refusal(lab, pid=by_hand().pid).kind == "locked_by_person"
    lab.agent.call("unlock", service="demo", by="bob")


def test_a_server_that_does_not_generate_is_refused(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand("--hang")
    assert "does not generate" in refusal(lab, pid=server.pid, generate_s=0.5).what
    assert server.process.poll() is None


def test_another_version_is_refused_and_named(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    error = refusal(lab, pid=by_hand().pid, version="0.5.22")
    assert (error.kind, error.next) == ("engine_version", "gpuops adopt --engine-version 0.5.23")


def test_a_process_that_does_not_listen_is_refused(lab: Lab) -> None:
    with bystander() as process:
        assert "does not listen on any port" in refusal(lab, pid=process.pid).what


def test_a_process_that_ends_is_refused(lab: Lab) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert refusal(lab, pid=process.pid).what == f"there is no process {process.pid}"


def test_a_port_that_nobody_listens_on_is_refused(lab: Lab) -> None:
    assert "nothing listens" in refusal(lab, port=own_port()).what


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_is_refused(lab: Lab) -> None:
    process = subprocess.Popen(["sleep", "600"], user=65534, cwd="/")
    try:
        eventually(lambda: os.stat(f"/proc/{process.pid}").st_uid == 65534)
        error = refusal(lab, pid=process.pid)
        assert "another user" in error.what and "uid 65534" in error.evidence
    finally:
        process.kill()
        process.wait()


def test_several_servers_are_refused_and_listed(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    servers = [by_hand("--flavour", "sglang"), by_hand("--flavour", "sglang")]
    error = refusal(lab)
    assert all(f"pid {server.pid}" in error.evidence for server in servers)
    assert "--pid" in error.next


def test_a_process_whose_arguments_are_a_title_is_refused(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand(executable=sys.executable)
    titled = subprocess.Popen(["sglang::server", "600"], executable="/bin/sleep")
    try:
        assert "is no program" in refusal(lab, pid=titled.pid).evidence
    finally:
        titled.kill()
        titled.wait()
    assert server.process.poll() is None


def test_a_rollout_onto_a_foreign_server_says_how_to_adopt_it(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand()
    played = lab.up(port=server.port)
    assert played.code == REFUSED
    assert f"gpuops adopt --port {server.port}" in played.outcome["next"]


# A successor for a supervisor that died.


def successor(host: Host) -> records.ServerRecord:
    return records.ServerRecord.from_json(host.drive({"do": "adopt", "root": str(host.root.path), "service": "demo"}))


def test_a_server_whose_supervisor_was_killed_gets_another_one(host: Host) -> None:
    record = host.launch("child")
    kill(record.supervisor.pid)
    adopted = successor(host)
    assert adopted.identity == record.identity and adopted.supervisor != record.supervisor
    assert supervisor_alive(host.service) and server_alive(host.service) == adopted


def test_the_successor_notices_the_end_and_sweeps_what_is_left(host: Host) -> None:
    roles = ("child", "session", "orphan", "daemon")
    record = host.launch(*roles)
    tree = [host.recorded(role) for role in roles]
    kill(record.supervisor.pid)
    adopted = successor(host)
    kill(record.pid)
    ended = eventually(lambda: read_exit(host.service))
    assert (ended.pid, ended.code, ended.signal, ended.adopted) == (record.pid, None, None, True)
    eventually(lambda: gone(adopted.supervisor.pid))
    assert all(map(gone, tree))
    assert run_processes(host.service) == []


def test_the_successor_keeps_what_was_recorded_before(host: Host) -> None:
    record = host.launch("child", f"rank:{RANK}")
    rank = host.recorded(RANK)
    eventually(lambda: any(title.startswith(RANK) for _, title in run_processes(host.service)))
    kill(rank)
    eventually(lambda: lost_ranks(host.service))
    kill(record.supervisor.pid)
    successor(host)
    assert [each.pid for each in lost_ranks(host.service)] == [rank]
    assert host.pid("child") in host.recorded_pids()


def test_a_stop_under_the_successor_is_clean(host: Host) -> None:
    record = host.launch("child", "daemon")
    kill(record.supervisor.pid)
    successor(host)
    proof = host.stop()
    assert proof["clean"] and proof["pid"] == record.pid


def test_a_second_successor_is_refused(host: Host) -> None:
    host.launch()
    with pytest.raises(AgentError) as caught:
        successor(host)
    assert (caught.value.code, caught.value.kind) == (REFUSED, "supervised")


def test_a_server_that_has_ended_gets_no_successor(host: Host) -> None:
    record = host.launch()
    kill(record.supervisor.pid)
    kill(record.pid)
    with pytest.raises(AgentError) as caught:
        successor(host)
    assert caught.value.kind == "server_gone"


# Secrets in arguments and environment.


def concealed(argv: list[str], env: dict[str, str] | None = None) -> conceal.Concealed:
    return conceal.conceal(argv, env or {}, lambda _name, _value: True)


@pytest.mark.parametrize(
    ("argv", "hidden"),
    [
        (["--api-key", "abc"], ["--api-key", "@{secret:ADOPTED_API_KEY}"]),
        (["--api-key=abc"], ["--api-key=@{secret:ADOPTED_API_KEY}"]),
        (["--admin-api-key", "abc"], ["--admin-api-key", "@{secret:ADOPTED_ADMIN_API_KEY}"]),
        (["--ssl-keyfile-password", "abc"], ["--ssl-keyfile-password", "@{secret:ADOPTED_SSL_KEYFILE_PASSWORD}"]),
        (["--max-total-tokens", "9", "--tokenizer-path", "/m"], ["--max-total-tokens", "9", "--tokenizer-path", "/m"]),
        (["--api-key", "--tp", "2"], ["--api-key", "--tp", "2"]),
    ],
)
def test_values_of_secret_options_are_replaced(argv: list[str], hidden: list[str]) -> None:
    assert concealed(argv).argv == hidden


@pytest.mark.parametrize("option", ["--api-key", "--api_key"])
def test_the_api_key_is_what_clients_authenticate_with(option: str) -> None:
    assert concealed([option, "abc", "--admin-api-key", "def"]).api_key == f"ADOPTED_{option[2:].replace('-', '_').upper()}"
    assert concealed(["--admin-api-key", "def"]).api_key is None


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "hf_1", True),
        ("MY_APIKEY", "k", True),
        ("db_password", "1234", True),
        ("AWS_SECRET_ACCESS_KEY", "x/y", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/k.json", True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MAX_TOKENS", "4096", False),
        ("EMPTY_KEY", "", False),
        ("PATH", "/usr/bin", False),
    ],
)
def test_variables_are_secrets_by_their_names(name: str, value: str, secret: bool) -> None:
    assert (concealed([], {name: value}).secrets != {}) is secret


def test_a_long_secret_is_replaced_wherever_it_stands() -> None:
    found = concealed(["run", f"--header=Bearer {KEY}"], {"OPENAI_API_KEY": KEY, "URL": f"http://x/?k={KEY}"})
    assert found.argv[1] == "--header=Bearer @{secret:ADOPTED_OPENAI_API_KEY}"
    assert found.env["URL"] == "http://x/?k=@{secret:ADOPTED_OPENAI_API_KEY}"
    assert found.hide(f"got {KEY}") == "got @{secret:ADOPTED_OPENAI_API_KEY}"


def test_a_short_secret_is_replaced_only_in_its_own_place() -> None:
    found = concealed(["run", "abc"], {"THE_KEY": "abc", "OTHER": "abcdef"})
    assert (found.argv, found.env) == (["run", "abc"], {"THE_KEY": "@{secret:ADOPTED_THE_KEY}", "OTHER": "abcdef"})


def test_a_name_that_holds_another_value_already_is_not_overwritten() -> None:
    found = conceal.conceal([], {"HF_TOKEN": "mine"}, lambda name, _value: name != "ADOPTED_HF_TOKEN")
    assert found.secrets == {"ADOPTED_HF_TOKEN_2": "mine"}


def test_the_document_of_an_adopted_release_holds_what_a_launch_needs(lab: Lab, by_hand: Callable[..., ByHand]) -> None:
    server = by_hand("--api-key", KEY, "--flavour", "7")
    adopt(lab, pid=server.pid)
    document = json.loads((lab.service.release(0) / "release.json").read_text())
    assert document["argv"] == [*server.argv[:-3], "@{secret:ADOPTED_API_KEY}", "--flavour", "7"]
    assert (document["cwd"], document["port"], document["bind"]) == (str(server.cwd), server.port, "127.0.0.1")
    assert document["env"] == {
        **server.env,
        "HF_TOKEN": "@{secret:ADOPTED_HF_TOKEN}",
        "DB_PASSWORD": "@{secret:ADOPTED_DB_PASSWORD}",
        "AUTH_HEADER": "Bearer @{secret:ADOPTED_API_KEY}",
    }
    assert document["auth"] == "Bearer @{secret:ADOPTED_API_KEY}"
    assert document["model"]["path"] == "../model" and document["model"]["identity"]
    assert document["summary"]["flags"] == {"api-key": "@{secret:ADOPTED_API_KEY}", "flavour": 7}
