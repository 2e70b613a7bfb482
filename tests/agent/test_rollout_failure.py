"""Candidates that fail: what is noticed, what is said of it, and that the known-good release serves again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpuops_agent import net, records
from process_lab import bystander, eventually, kill, own_port
from rollouts import AGAIN, CAPITAL, Json, Lab, Played, make_model

from gpuops.errors import GpuopsError

LISTEN = """
import signal, socket
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", {port}))
s.listen()
signal.pause()
"""


def assert_restored(lab: Lab, played: Played, *, failed: int = 2, state: str = "bad") -> None:
    """The one ending of a failed candidate: release 1 serves, on its port, and the record of the candidate says why it does not."""
    assert (played.name, played.code) == ("restored", 10), played.outcome
    assert (played.outcome["release"], played.outcome["failed"], played.outcome["known_good"]) == (1, failed, 1)
    assert (lab.link("current"), lab.link("good")) == (1, 1)
    assert lab.state(failed)["state"] == state and lab.state(failed)["reason"]
    assert lab.state(1)["state"] == "good"
    assert played.outcome["serving"] and lab.engines() == [played.outcome["pid"]]
    assert played.outcome["port"] == json.loads(lab.service.port_file.read_text())["port"]


@pytest.mark.failure_mode("garbage")
def test_garbage_answers_restore_the_known_good_release_and_keep_the_evidence(lab: Lab) -> None:
    lab.good()
    played = lab.up("--garbage")
    assert_restored(lab, played)
    assert played.outcome["reason"] == "probe capital failed (1 of 2 put)"
    assert "'!!!!!!!!'" in played.outcome["evidence"] and "contains 'Paris'" in played.outcome["evidence"]
    assert played.outcome["next"] == "gpuops logs --release 2"
    assert "fired up" in lab.service.server_log(2).read_text()
    gates = json.loads((lab.service.release(2) / "gates.json").read_text())
    assert not gates["passed"] and gates["probes"][0]["answer"] == "!!!!!!!!"
    story = ["probe", "state", "stopping", "stopped", "restoring", "server", "ready", "probe", "outcome"]
    heard = played.names(*story)
    assert heard[heard.index("probe") :] == story


@pytest.mark.failure_mode("garbage")
def test_a_wanted_probe_that_fails_is_only_told(lab: Lab) -> None:
    played = lab.up(probes=[CAPITAL, {**AGAIN, "expect": {"contains": "Rome"}}])
    assert played.name == "promoted"
    assert [probe["passed"] for probe in played.all("probe")] == [True, False]


def test_content_equal_to_a_bad_release_is_a_new_attempt_with_a_new_number(lab: Lab) -> None:
    lab.good()
    assert lab.up("--garbage").outcome["failed"] == 2
    played = lab.up("--garbage")
    assert_restored(lab, played, failed=3)


@pytest.mark.failure_mode("nothing-to-restore")
def test_the_first_up_ever_that_fails_leaves_nothing_running(lab: Lab) -> None:
    played = lab.up("--garbage")
    assert (played.name, played.code, played.outcome["serving"]) == ("nothing_to_restore", 14, False)
    assert lab.engines() == [] and lab.link("current") is None and lab.link("good") is None
    assert lab.state(1)["state"] == "bad"


@pytest.mark.failure_mode("restore-fails")
def test_when_the_restore_fails_too_nobody_serves_and_the_outcome_says_so(lab: Lab) -> None:
    lab.good()
    lab.faults.write_text("--garbage")
    played = lab.up("--flavour", "b")
    assert (played.name, played.code, played.outcome["serving"]) == ("restore_failed", 11, False)
    assert (played.outcome["release"], played.outcome["failed"]) == (1, 2)
    assert "probe capital failed" in played.outcome["reason"]
    assert lab.engines() == []
    assert lab.state(1)["state"] == "good"


@pytest.mark.failure_mode("restore-fails")
def test_a_known_good_server_that_is_killed_while_it_comes_back_is_started_once_more(lab: Lab) -> None:
    lab.good()
    killed: list[int] = []

    def kill_the_first_to_come_back(event: Json) -> None:
        if event["event"] == "server" and event["release"] == 1 and not killed:
            killed.append(event["pid"])
            os.kill(event["pid"], signal.SIGKILL)

    played = lab.play(lab.order("--garbage"), kill_the_first_to_come_back)
    assert (played.name, lab.link("current")) == ("restored", 1)
    assert killed and played.outcome["pid"] != killed[0]


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("launch=3", "exited with status 3"),
        ("weights=KILL", "was killed by signal 9"),
        ("capture=SEGV", "was killed by signal 11"),
        ("warm-up=1", "exited with status 1"),
        ("listening=TERM", "exited with status 0"),
        ("generating=ABRT", "was killed by signal 6"),
        ("probes=7", "exited with status 7"),
    ],
)
@pytest.mark.failure_mode("candidate-dies")
def test_death_at_every_phase_is_noticed_with_its_status_and_last_words(lab: Lab, fault: str, how: str) -> None:
    phase = fault.partition("=")[0]
    played = lab.up("--die", fault)
    assert played.name == "nothing_to_restore"
    died = played.all("died")[0]
    assert how in died["what"]
    assert died["line"] == f"RuntimeError: broken in {phase}"
    # The port listens as soon as the warm-up begins: both names are right then.
    assert died["phase"] in ({"warm-up", "listening"} if phase == "warm-up" else {phase})
    assert how in played.outcome["reason"] and played.outcome["reason"].endswith(f"in phase {died['phase']}")
    assert played.outcome["evidence"] == died["line"]
    assert played.names("died", "state", "outcome")[-3:] == ["died", "state", "outcome"]


@pytest.mark.failure_mode("candidate-dies")
def test_death_of_a_candidate_brings_the_known_good_release_back(lab: Lab) -> None:
    lab.good()
    played = lab.up("--die", "weights=1")
    assert_restored(lab, played)
    assert played.names("died", "restoring") == ["died", "restoring"]


@pytest.mark.failure_mode("rank-lost")
def test_a_lost_scheduler_is_noticed_while_its_server_lives(lab: Lab) -> None:
    lab.good()
    go = lab.folder / "go"
    # Without its scheduler it waits for ever: only the loss ends this start.
    running = lab.begin(lab.order("--hold", f"weights={go}", "--lose", "weights", "--hold", f"capture={lab.folder}/never"))
    server = running.until("server", release=2)["pid"]
    eventually(lambda: any(title.startswith("sglang::") for _, title in records.run_processes(lab.service)), "the rank is known")
    go.touch()
    played = running.end()
    assert_restored(lab, played)
    assert played.all("died")[0]["what"].startswith("sglang::scheduler") and f"pid {server}" not in played.outcome["reason"]
    assert played.outcome["reason"].endswith("in phase weights") or played.outcome["reason"].endswith("in phase capture")


@pytest.mark.failure_mode("never-listens")
def test_a_server_that_never_listens_meets_the_deadline_of_its_start(lab: Lab) -> None:
    lab.good()
    played = lab.up("--chatter", start_s=1.0)
    assert_restored(lab, played)
    assert played.outcome["reason"] == "not ready after 1 s"
    assert played.outcome["evidence"] == "last phase: capture; last log line: still compiling"


@pytest.mark.failure_mode("never-listens")
def test_a_server_without_any_sign_of_work_is_stalled(lab: Lab) -> None:
    played = lab.up("--mute", stall_s=1.2)
    assert played.outcome["kind"] == "stalled"
    assert played.outcome["reason"] == "no log line and no CPU use for 1.2 s"


@pytest.mark.failure_mode("hang")
def test_a_server_that_hangs_at_its_first_generation_is_called_hung(lab: Lab) -> None:
    played = lab.up("--hang", generate_s=1.0)
    assert played.outcome["kind"] == "hung"
    assert "no process of the server used more than" in played.outcome["evidence"]


@pytest.mark.failure_mode("hang")
def test_a_scheduler_that_is_stopped_before_its_server_listens_is_named_with_the_stall(lab: Lab) -> None:
    played = lab.up("--freeze", "capture", "--mute", stall_s=1.2)
    assert played.outcome["kind"] == "stalled"
    assert "sglang::scheduler" in played.outcome["evidence"] and "is stopped (state T)" in played.outcome["evidence"]


@pytest.mark.failure_mode("hang")
def test_a_scheduler_that_is_stopped_during_the_start_is_named(lab: Lab) -> None:
    lab.good()
    played = lab.up("--freeze", "capture", generate_s=1.0)
    assert_restored(lab, played)
    assert (played.outcome["kind"], played.outcome["reason"]) == ("hung", "the server listens but does not say what it serves")
    assert "no word of what it serves in 1 s; sglang::scheduler" in played.outcome["evidence"]
    assert "is stopped (state T)" in played.outcome["evidence"]


@pytest.mark.failure_mode("slow")
def test_a_server_that_works_but_does_not_say_what_it_serves_is_slow_until_the_deadline(lab: Lab) -> None:
    played = lab.up("--ponder", generate_s=0.8, start_s=2.0)
    assert played.outcome["kind"] == "deadline"
    assert "no word of what it serves in 0.8 s, but it works" in played.outcome["evidence"]


@pytest.mark.failure_mode("slow")
def test_a_server_that_works_but_does_not_answer_is_called_slow_until_the_deadline(lab: Lab) -> None:
    played = lab.up("--slow", generate_s=0.8, start_s=2.0)
    assert played.outcome["kind"] == "deadline"
    assert "no token in 0.8 s, but it works" in played.outcome["evidence"]
    assert "s of CPU" in played.outcome["evidence"]


@pytest.mark.failure_mode("slow")
def test_a_server_that_stays_busy_says_so_at_the_deadline(lab: Lab) -> None:
    played = lab.up("--busy", "100000", start_s=1.5)
    assert played.outcome["kind"] == "deadline"
    assert "HTTP 503" in played.outcome["evidence"]


@pytest.mark.failure_mode("another-server")
def test_a_server_of_another_model_is_not_ours(lab: Lab) -> None:
    played = lab.up("--identity", "/models/other")
    assert played.outcome["kind"] == "wrong_identity"
    assert played.outcome["evidence"] == f"model_path is '/models/other', expected '{lab.model}'"


@pytest.mark.failure_mode("port-taken")
def test_a_port_of_a_foreign_process_is_refused_and_nothing_is_touched(lab: Lab) -> None:
    old = lab.good().outcome["pid"]
    port = own_port()
    with bystander(sys.executable, "-c", LISTEN.format(port=port)) as foreign:
        eventually(lambda: net.listeners(port))
        played = lab.up("--flavour", "b", port=port)
        assert (played.name, played.code) == ("refused", 13)
        assert f"port {port} is taken" in played.outcome["reason"]
        assert f"pid {foreign.pid}:" in played.outcome["evidence"] and "socket" in played.outcome["evidence"]
        assert not played.names("stopping", "staged")
    assert lab.engines() == [old] and lab.status()["state"] == "running"


@pytest.mark.failure_mode("port-taken")
def test_a_port_that_a_foreign_process_takes_during_the_start_fails_the_candidate(lab: Lab) -> None:
    port = own_port()
    go = lab.folder / "go"
    running = lab.begin(lab.order("--hold", f"weights={go}", port=port))
    running.until("phase", phase="weights")
    with bystander(sys.executable, "-c", LISTEN.format(port=port)) as foreign:
        played = running.end()
        assert played.outcome["kind"] == "port_taken"
        assert f"pid {foreign.pid}" in played.outcome["evidence"]


@pytest.mark.failure_mode("model-incomplete")
def test_an_incomplete_model_is_found_before_the_old_server_is_touched(lab: Lab) -> None:
    old = lab.good().outcome["pid"]
    model = make_model(lab.folder / "cut")
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(60)
    played = lab.up(model={"kind": "path", "path": str(model)}, spec="another")
    assert (played.name, played.code, played.outcome["kind"]) == ("failed", 5, "model_incomplete")
    assert "60 bytes on disk" in played.outcome["evidence"] or "cut" in played.outcome["evidence"]
    assert not played.names("stopping", "staged")
    assert lab.engines() == [old]


@pytest.mark.failure_mode("secret-missing")
def test_a_secret_that_is_not_on_the_host_is_found_before_the_old_server_is_touched(lab: Lab) -> None:
    old = lab.good().outcome["pid"]
    played = lab.up(env={"KEY": "@{secret:KEY}"}, secret_names=("KEY",))
    assert (played.name, played.code, played.outcome["kind"]) == ("failed", 5, "secret_missing")
    assert not played.names("stopping")
    assert lab.engines() == [old]
    assert lab.state(2) == {**lab.state(2), "state": "unknown"}
    assert "never started" in lab.state(2)["reason"]


@pytest.mark.failure_mode("program-missing")
def test_a_program_that_cannot_be_executed_restores(lab: Lab) -> None:
    lab.good()
    order = lab.order()
    order["candidate"]["argv"][0] = "/nowhere/python"
    played = lab.play({**order, "spec": "broken"})
    assert_restored(lab, played)
    assert "/nowhere/python" in played.outcome["reason"] + played.outcome["evidence"]


@pytest.mark.failure_mode("restore-fails")
def test_a_good_release_that_fails_once_stays_good_and_gets_a_second_chance(lab: Lab) -> None:
    first = lab.good().outcome
    go = lab.folder / "go"
    lab.faults.write_text(f"--hold launch={go} --die launch=4")
    running = lab.begin(lab.simple("restart"))
    running.until("phase", phase="launch", detail="joining ranks")
    lab.faults.unlink()
    go.touch()
    played = running.end()
    assert (played.name, played.code, played.outcome["release"]) == ("restored", 10, 1)
    assert lab.state(1)["state"] == "good"
    assert played.outcome["port"] == first["port"] and lab.engines() == [played.outcome["pid"]]


@pytest.mark.failure_mode("restore-fails")
def test_a_good_release_that_comes_back_without_one_of_its_ranks_is_started_once_more(lab: Lab) -> None:
    good, bad = lab.order(stall_s=2), lab.order("--garbage", "--hold", f"weights={lab.folder / 'wrong'}", stall_s=2)
    for order in (good, bad):
        # Only a server that is silent is asked whether its ranks are there.
        order["engine"]["ranks"]["schedulers"] = 2
    assert lab.play(good).name == "promoted"
    running = lab.begin(bad)
    running.until("phase", phase="weights")
    lab.faults.write_text(f"--mute --hold launch={lab.folder / 'go'}")
    (lab.folder / "wrong").touch()
    # It has read what is wrong with it, and waits.
    joining = {"event": "phase", "phase": "launch", "detail": "joining ranks"}
    eventually(lambda: sum(joining.items() <= each.items() for each in list(running.events)) == 2, "the good release starts")
    lab.faults.unlink()
    (lab.folder / "go").touch()
    played = running.end()
    assert [each["class"] for each in played.all("diagnosis") if each["release"] == 1] == ["stall_missing_rank"]
    assert (played.name, played.code, played.outcome["release"]) == ("restored", 10, 1)
    assert lab.engines() == [played.outcome["pid"]]


# Disks.


@pytest.fixture
def small_disk(tmp_path: Path, agent_folder: Path) -> Iterator[Lab]:
    """A lab whose ROOT is a disk of its own of 300 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(disk)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a tmpfs needs root: {mounted.stderr.strip()}")
    try:
        lab = Lab(disk, agent_folder)
        yield lab
        (disk / "filler").unlink(missing_ok=True)
        assert not lab.clean_up()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.failure_mode("disk-full-before")
def test_a_disk_that_is_nearly_full_is_found_before_the_old_server_is_touched(small_disk: Lab) -> None:
    old = small_disk.good().outcome["pid"]
    fill_but(small_disk.folder, 100 << 20)
    played = small_disk.up("--flavour", "b")
    assert (played.name, played.code, played.outcome["kind"]) == ("failed", 5, "disk_full")
    assert "nearly full" in played.outcome["reason"]
    assert not played.names("staged", "stopping")
    assert small_disk.engines() == [old]


@pytest.mark.failure_mode("disk-full-before")
def test_a_disk_without_any_room_refuses_the_order_itself(small_disk: Lab) -> None:
    old = small_disk.good().outcome["pid"]
    fill_but(small_disk.folder, 0)
    order = small_disk.order("--flavour", "b")
    with pytest.raises(GpuopsError) as refused:
        small_disk.play(order)
    assert (refused.value.code, refused.value.kind) == (5, "disk_full")
    assert small_disk.engines() == [old] and small_disk.status()["state"] == "running"
    (small_disk.folder / "filler").unlink()
    # Nothing was begun, so the same order can be sent again.
    assert small_disk.play(order).name == "promoted"


@pytest.mark.failure_mode("disk-full-during")
def test_a_candidate_that_fills_the_disk_still_gives_way_to_the_known_good_release(small_disk: Lab) -> None:
    small_disk.good()
    played = small_disk.up("--fill", str(small_disk.folder))
    assert os.statvfs(small_disk.folder).f_bavail * os.statvfs(small_disk.folder).f_frsize < 8 << 20, "the disk is full"
    assert (played.name, played.code, played.outcome["release"]) == ("restored", 10, 1), played.outcome
    assert small_disk.engines() == [played.outcome["pid"]]
    assert small_disk.state(2)["state"] in ("bad", "unknown")


def fill_but(folder: Path, left: int) -> None:
    disk = os.statvfs(folder)
    with (folder / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - left)


@pytest.mark.failure_mode("server-died")
def test_the_old_server_that_dies_while_the_candidate_is_prepared_is_no_obstacle(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    kill(pid)
    assert lab.up("--flavour", "b").name == "promoted"
