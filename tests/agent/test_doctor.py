"""`gpuops doctor` on this machine: each check finds what it is for, and one that fails spoils no other."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import check_gpu, check_host, check_run, check_start, doctor, gpus, proc, releases, session, shm
from gpuops_agent.ask import Silent
from gpuops_agent.check import FAIL, OK, UNKNOWN, WARN, Finding, Subject
from gpuops_agent.paths import Root
from gpuops_agent.records import RUN_TAG
from process_lab import bystander, eventually, kill
from rollouts import Lab
from test_gpus import OFF_THE_BUS, PAGE_FAULT, PRINTED, Tools
from test_session import USER

from gpuops.engines import facts

LISTEN = "import signal, socket; s = socket.create_server(('127.0.0.1', {port})); signal.pause()"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(tmp_path / "tools", monkeypatch)


def subject(lab_or_root: Lab | Path, port: int | None = None) -> Subject:
    if isinstance(lab_or_root, Path):
        return Subject(Root(lab_or_root), [], port)
    return Subject(lab_or_root.root, [lab_or_root.service], port)


def service_checks(lab: Lab) -> dict[str, Finding]:
    return {check.name: check.look(subject(lab), lab.service) for check in doctor.SERVICE}


# The verb.


def test_a_healthy_service_passes_every_check_of_it(lab: Lab) -> None:
    lab.good()
    told = lab.agent.call("doctor", service="demo")
    mine = [check for check in told["checks"] if check["group"] == "service demo"]
    assert [(check["name"], check["state"]) for check in mine] == [(check.name, "ok") for check in doctor.SERVICE]
    assert told["failed"] == sum(check["state"] == "fail" for check in told["checks"])
    assert all(set(check) == {"group", "name", "state", "what", "evidence", "next"} for check in told["checks"])


def test_a_host_without_any_service_can_be_asked_too(lab: Lab) -> None:
    told = lab.agent.call("doctor")
    assert {"start", "left over", "host"} <= {check["group"] for check in told["checks"]}


def test_the_doctor_changes_nothing_of_a_service(lab: Lab) -> None:
    lab.good()
    before = contents(lab)
    lab.agent.call("doctor", service="demo")
    assert contents(lab) == before


def contents(lab: Lab) -> dict[str, int]:
    """Every file and folder with its time of change, but for those that the server and its supervisor keep writing."""
    mine = (path for path in lab.service.path.rglob("*") if path.name not in ("server.log", "run") and path.parent.name != "run")
    return {str(path): path.lstat().st_mtime_ns for path in mine}


@pytest.mark.parametrize(("error", "evidence"), [(Silent("it hangs"), "it hangs"), (OSError(5, "bad disk"), "bad disk")])
def test_a_check_that_fails_is_unknown_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, evidence: str
) -> None:
    def broken(_subject: Subject) -> Finding:
        raise error

    monkeypatch.setattr(doctor, "START", (doctor.Check("first", broken), doctor.Check("second", check_start.cgroups)))
    first, second, *_ = doctor._examine(subject(tmp_path))
    assert first["state"] == UNKNOWN and evidence in first["evidence"]
    assert second["state"] == OK


# A service.


def test_a_server_without_its_supervisor_fails(lab: Lab) -> None:
    lab.good()
    kill(json.loads(lab.service.supervisor_lock.read_text())["pid"])
    found = check_run.supervisor(subject(lab), lab.service)
    assert found.state == FAIL and "without a supervisor" in found.what and found.next == "gpuops restart"


def test_a_server_that_died_is_told_with_its_end(lab: Lab) -> None:
    kill(lab.good().outcome["pid"])
    eventually(lambda: lab.status()["state"] == "died")
    found = service_checks(lab)["server"]
    assert found.state == FAIL and "is dead" in found.what and "signal 9" in found.evidence and found.next == "gpuops restore"


def test_a_pid_that_means_another_process_now_is_named_as_foreign(lab: Lab) -> None:
    lab.good()
    lab.down()
    with bystander("sleep", "600") as other:
        edit(lab, pid=other.pid)
        found = check_run.identity(subject(lab), lab.service)
    assert f"pid {other.pid} is now sleep 600, which is not ours" in found.what


@pytest.mark.failure_mode("stale-after-reboot")
def test_a_reboot_under_a_server_fails(lab: Lab) -> None:
    lab.good()
    edit(lab, boot_id="00000000-0000-0000-0000-000000000000")
    found = service_checks(lab)
    assert found["reboot"].state == FAIL and "the host was rebooted: release 1 is meant to run" in found["reboot"].what
    assert found["server"].state == WARN
    edit(lab, boot_id=proc.boot_id())


def test_a_server_of_another_pid_namespace_is_not_judged(lab: Lab) -> None:
    lab.good()
    edit(lab, pid_ns="pid:[1]")
    found = check_run.identity(subject(lab), lab.service)
    edit(lab, pid_ns=proc.pid_namespace())
    assert found.state == WARN and "another container" in found.what


def edit(lab: Lab, **changes: Any) -> None:
    """Change the PID file; of a server that has been stopped, make one."""
    value = {
        **proc.identify(os.getpid()).to_json(),  # type: ignore[union-attr]
        **dict.fromkeys(("pgid", "sid", "port"), 1),
        "release": 1,
        "executable": "x",
        "argv_sha256": "x",
        "supervisor": {"pid": os.getpid(), "start": 1},
        "run": "r",
        "started_at": 0.0,
        "started_boot": 0.0,
    }
    if lab.service.server_file.exists():
        value = json.loads(lab.service.server_file.read_text())
    lab.service.server_file.write_text(json.dumps({**value, **changes}))


def test_a_foreign_listener_on_the_port_fails(lab: Lab) -> None:
    served = lab.good().outcome
    kill(served["pid"])
    eventually(lambda: lab.status()["state"] == "died" and not lab.status()["foreign"])
    with bystander(sys.executable, "-c", LISTEN.format(port=served["port"])) as foreign:
        found = eventually(lambda: (port := check_run.port(subject(lab), lab.service)).state != OK and port)
        assert found.state == FAIL and found.evidence.startswith(f"pid {foreign.pid}: ")
        assert check_run.wanted_port(subject(lab, served["port"])).state == FAIL


def test_a_model_that_has_gone_fails(lab: Lab) -> None:
    lab.good()
    lab.model.rename(lab.folder / "moved")
    found = check_run.model(subject(lab), lab.service)
    assert found.state == FAIL and found.evidence == str(lab.model)


# What is left over.


@pytest.fixture
def all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may be leaving processes behind at this moment: name all."""
    monkeypatch.setattr(check_run, "_MANY", 10**6)


def test_a_process_of_a_run_without_a_supervisor_is_left_over(tmp_path: Path, all_named: None) -> None:
    orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, RUN_TAG: "gone"}, start_new_session=True)
    try:
        found = eventually(lambda: (told := check_run.leftover_processes(subject(tmp_path))).evidence.count("sleep 600") and told)
        assert f"pid {orphan.pid}: sleep 600" in found.evidence
    finally:
        orphan.kill()
        orphan.wait()


def test_a_run_with_its_supervisor_is_not_left_over(lab: Lab, all_named: None) -> None:
    pid = lab.good().outcome["pid"]
    assert f"pid {pid}:" not in check_run.leftover_processes(subject(lab)).evidence


def test_a_server_that_a_supervisor_has_adopted_is_not_left_over(lab: Lab, all_named: None) -> None:
    pid = lab.good().outcome["pid"]
    kill(json.loads(lab.service.supervisor_lock.read_text())["pid"])
    assert f"pid {pid}:" in check_run.leftover_processes(subject(lab)).evidence
    with lab.service.supervisor_lock.open("rb") as lock:
        # Who holds the lock is the supervisor, whether it descends from it or not.
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"pid {pid}:" not in check_run.leftover_processes(subject(lab)).evidence


def test_shared_memory_of_a_dead_process_is_left_over_and_of_a_living_one_is_not(tmp_path: Path, all_named: None) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = Path(shm.FOLDER) / f"gpuopstest_{ended.pid}_1"
    living = Path(shm.FOLDER) / f"gpuopstest_{os.getpid()}_1"
    for path in (dead, living):
        path.write_bytes(b"x")
    try:
        found = check_run.leftover_shm(subject(tmp_path))
        assert found.state == WARN and str(dead) in found.evidence and str(living) not in found.evidence
        with dead.open("rb"):
            assert str(dead) not in check_run.leftover_shm(subject(tmp_path)).evidence
    finally:
        dead.unlink()
        living.unlink()


# Start and host.


def with_facts(tmp_path: Path, **changes: Any) -> Subject:
    made = subject(tmp_path)
    made.facts = session.Facts(**{**vars(USER), **changes})
    return made


@pytest.mark.parametrize(
    ("check", "changes", "state"),
    [
        (check_start.start_method, {}, OK),
        (check_start.start_method, {"linger": False, "kill_user_processes": True}, WARN),
        (check_start.kill_user_processes, {"kill_user_processes": True}, OK),
        (check_start.kill_user_processes, {"kill_user_processes": True, "linger": False}, WARN),
        (check_start.kill_user_processes, {"kill_user_processes": None}, UNKNOWN),
        (check_start.kill_user_processes, {"systemd": False}, OK),
        (check_start.linger, {}, OK),
        (check_start.linger, {"linger": False}, WARN),
        (check_start.linger, {"linger": False, "uid": 0}, OK),
        (check_start.remove_ipc, {"remove_ipc": True}, OK),
        (check_start.remove_ipc, {"remove_ipc": True, "linger": False}, WARN),
        (check_start.remove_ipc, {"remove_ipc": None}, UNKNOWN),
        (check_start.oom, {"linger": False, "version": 252}, WARN),
        (check_start.oom, {"version": 252}, OK),
    ],
)
@pytest.mark.failure_mode("logout-kills")
def test_what_a_logout_would_do_is_judged(tmp_path: Path, check: Any, changes: dict[str, Any], state: str) -> None:
    assert check(with_facts(tmp_path, **changes)).state == state


@pytest.mark.failure_mode("oom-session")
def test_a_supervisor_that_the_kernel_would_end_first_is_a_warning(lab: Lab) -> None:
    lab.good()
    supervisor = json.loads(lab.service.supervisor_lock.read_text())["pid"]
    Path(f"/proc/{supervisor}/oom_score_adj").write_text("900")
    found = check_start.oom(subject(lab))
    assert found.state == WARN and "the supervisor before the server" in found.what


def test_a_folder_of_another_file_system_is_not_taken_for_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_start, "_CGROUPS", tmp_path)
    assert "v1 or hybrid" in check_start.cgroups(subject(tmp_path)).what


@pytest.mark.parametrize(
    ("free", "state"), [(check_host.FREE_DISK_BYTES - 1, FAIL), (check_host._DISK_WARN_BYTES - 1, WARN), (1 << 40, OK)]
)
@pytest.mark.failure_mode("disk-full-before")
def test_the_disk_is_judged_by_what_a_rollout_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    size = os.statvfs_result((1, 1, 1 << 42, free, free, 100, 50, 50, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: size)
    assert check_host.disk(subject(tmp_path)).state == state


@pytest.mark.parametrize(("files", "free", "state"), [(0, 0, OK), (100, 50, OK), (100, 4, WARN), (100, 0, FAIL)])
def test_inodes_that_run_out_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, free: int, state: str) -> None:
    size = os.statvfs_result((4096, 4096, 100, 50, 50, files, free, free, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: size)
    assert check_host.inodes(subject(tmp_path)).state == state


@pytest.mark.parametrize(
    ("blocks", "free", "state"), [(1 << 14, 1 << 14, WARN), (1 << 20, 1 << 17, WARN), (1 << 20, 1 << 19, OK)]
)
@pytest.mark.failure_mode("shm-leaked")
def test_shared_memory_that_is_small_or_full_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, state: str
) -> None:
    size = os.statvfs_result((4096, 4096, blocks, free, free, 100, 50, 50, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: size)
    assert check_host.shared_memory(subject(tmp_path)).state == state


def test_the_limit_of_the_server_that_runs_is_what_counts(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    subprocess.run(["prlimit", f"--pid={pid}", "--nofile=512:1024"], check=True)
    found = check_host.descriptors(subject(lab))
    assert found.state == WARN and found.evidence == f"soft 512, hard 1024, of the server, pid {pid}"


def test_the_last_mount_at_a_place_counts(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 2 0:3 / /proc rw - proc proc rw\n4 2 0:5 / /proc rw shared:1 - proc proc rw,hidepid=invisible\n")
    assert check_host._mount_options(mounts, "/proc") == ["rw", "hidepid=invisible"]


# The cards.


def test_without_cards_there_is_no_check_of_them(lab: Lab, tools: Tools) -> None:
    if check_gpu.present():
        pytest.skip("this machine has cards")
    assert "GPU" not in {check["group"] for check in lab.agent.call("doctor")["checks"]}


def test_the_cards_are_checked_through_the_verb(lab: Lab, tools: Tools) -> None:
    tools.add_cards()
    tools.add("dmesg", f'echo "{OFF_THE_BUS}"')
    told = lab.agent.call("doctor")
    cards = {check["name"]: check for check in told["checks"] if check["group"] == "GPU"}
    assert cards["driver"]["what"] == "driver 580.159.04, 2 x NVIDIA H200"
    assert cards["GPU memory"]["state"] == "warn" and "pid 563" in cards["GPU memory"]["what"]
    assert (cards["card health"]["state"], cards["topology"]["what"]) == ("ok", "2 cards, NVLink between all")
    assert cards["Xid"]["state"] == "fail" and "a restart will not help: reboot the host" in cards["Xid"]["next"]
    assert told["failed"] >= 1


def test_a_driver_that_does_not_answer_is_unknown_with_its_words(tmp_path: Path, tools: Tools) -> None:
    tools.add("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    told = {each["name"]: each for each in doctor._examine(subject(tmp_path)) if each["group"] == "GPU"}
    assert told["driver"]["state"] == "unknown" and "version mismatch" in told["driver"]["evidence"]


def test_our_own_use_of_the_cards_is_no_stranger(tmp_path: Path, tools: Tools) -> None:
    tools.add_cards()
    mine = subject(tmp_path)
    mine.ours = {563}
    assert check_gpu.memory(mine).state == OK


def test_memory_that_no_visible_process_holds_is_told(tmp_path: Path, tools: Tools) -> None:
    tools.add_cards()
    (tools.folder / "apps.csv").write_text("gpu_uuid, pid, used_gpu_memory [MiB], process_name\n")
    script = (tools.folder / "nvidia-smi").read_text()
    (tools.folder / "nvidia-smi").write_text(script.replace(str(PRINTED / "h200x2_apps.csv"), str(tools.folder / "apps.csv")))
    found = check_gpu.memory(subject(tmp_path))
    assert found.state == WARN and "memory of card 0 is held by no process" in found.what


@pytest.mark.failure_mode("card-shared")
def test_a_stranger_on_a_card_of_the_service_is_told_with_the_card(tmp_path: Path, tools: Tools) -> None:
    tools.add_cards()
    found = check_gpu.memory(service_on_cards(tmp_path, "0,1", ranks=2))
    assert found.state == WARN and found.what.startswith("foreign process on card 0 only: pid 563, ")
    assert found.what.endswith(", 2566 MiB")


@pytest.mark.failure_mode("card-shared")
def test_a_stranger_on_a_card_that_the_service_does_not_use_is_a_note(tmp_path: Path, tools: Tools) -> None:
    tools.add_cards()
    found = check_gpu.memory(service_on_cards(tmp_path, "1", ranks=1))
    assert (found.state, found.what) == (OK, "memory of card 1 is ours or free")
    assert "another process on card 0, not used by this service: pid 563" in found.evidence


def service_on_cards(root: Path, visible: str, ranks: int) -> Subject:
    """A service whose release sees these cards."""
    service = Root(root).service("demo")
    engine = facts("sglang", "0.5.23").as_order(schedulers=ranks)
    releases.stage(service, {"env": {"CUDA_VISIBLE_DEVICES": visible}, "engine": engine})
    service.current.symlink_to("releases/1")
    return Subject(Root(root), [service])


@pytest.mark.parametrize(
    ("matrix", "what", "evidence"),
    [
        ("h200x2_topo.txt", "2 cards, NVLink between all", "NV18: 1 pair"),
        ("h200x8_topo.txt", "8 cards, NVLink between all", "NV18: 28 pairs"),
        ("rtxpro6000x8_topo.txt", "8 cards, PCIe between all, over two sockets", "NODE: 8 pairs, PHB: 4 pairs, SYS: 16 pairs"),
    ],
)
def test_how_the_cards_are_linked_is_read_from_the_drivers_matrix(
    tmp_path: Path, tools: Tools, matrix: str, what: str, evidence: str
) -> None:
    tools.add("nvidia-smi", f"cat {PRINTED / matrix}")
    found = subject(tmp_path)
    found.cards = gpus.parse_cards((PRINTED / "h200x2_cards.csv").read_text())
    told = check_gpu.topology(found)
    assert (told.state, told.what, told.evidence) == (OK, what, evidence)


@pytest.mark.parametrize(
    ("healthy", "ill", "state"),
    [
        ("<gpu_recovery_action>None", "<gpu_recovery_action>Reset", FAIL),
        ("<remapped_row_failure>No", "<remapped_row_failure>Yes", FAIL),
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", WARN),
        ("<dram_uncorrectable>0", "<dram_uncorrectable>3", WARN),
    ],
)
@pytest.mark.failure_mode("card-ill")
def test_an_ill_card_is_told(tmp_path: Path, tools: Tools, healthy: str, ill: str, state: str) -> None:
    (tools.folder / "q.xml").write_text((PRINTED / "h200_q.xml").read_text().replace(healthy, ill, 1))
    tools.add("nvidia-smi", f"cat {tools.folder}/q.xml")
    assert check_gpu.health(subject(tmp_path)).state == state


def test_an_xid_that_a_restart_heals_is_history_once_the_server_was_started_again(lab: Lab, tools: Tools) -> None:
    tools.add("dmesg", f"echo '{PAGE_FAULT}'")
    assert check_gpu.xids(subject(lab)).state == WARN
    lab.good()
    # The fault came 200 s after boot; the server was started now.
    edit(lab, started_boot=proc.boottime() + 1000)
    assert check_gpu.xids(subject(lab)).state == OK
